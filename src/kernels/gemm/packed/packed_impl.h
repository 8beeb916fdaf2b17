// SPDX-License-Identifier: Apache-2.0
// What packed_linear.cpp chooses from.
#pragma once
#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::kernels::packed {

void linear_f32_avx512(const Context& ctx, const PackedLinearArgs& args);
void linear_f32_avx2(const Context& ctx, const PackedLinearArgs& args);
void linear_f32_plain(const Context& ctx, const PackedLinearArgs& args);
// These take the scratch as ctx.workspace.
void linear_s8_amx(const Context& ctx, const PackedLinearArgs& args);
void linear_s8_vnni(const Context& ctx, const PackedLinearArgs& args);
void linear_s8_avx2(const Context& ctx, const PackedLinearArgs& args);
void linear_s8_plain(const Context& ctx, const PackedLinearArgs& args);
void linear_bf16_amx(const Context& ctx, const PackedLinearArgs& args);
void linear_bf16_dot(const Context& ctx, const PackedLinearArgs& args);
void linear_bf16_avx512(const Context& ctx, const PackedLinearArgs& args);
void linear_bf16_avx2(const Context& ctx, const PackedLinearArgs& args);
void linear_bf16_plain(const Context& ctx, const PackedLinearArgs& args);
int64_t bf16_scratch_bytes(const Context& ctx, const PackedLinearArgs& args) noexcept;
int64_t s8_scratch_bytes(const Context& ctx, const PackedLinearArgs& args) noexcept;
// Up to 16 rows of k weights, w, as one panel, which is zeros before. s8: and their scales and offsets.
void pack_panel_f32(const float* w, int64_t rows, int64_t k, char* panel);
void pack_panel_bf16(const float* w, int64_t rows, int64_t k, char* panel);
void pack_panel_s8(const float* w, int64_t rows, int64_t k, char* panel, float* scales,
                   int32_t* offsets);

}  // namespace saturate::kernels::packed
