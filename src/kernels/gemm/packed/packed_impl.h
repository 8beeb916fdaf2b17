// SPDX-License-Identifier: Apache-2.0
// What packed_linear.cpp chooses from.
#pragma once
#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::kernels::packed {

void linear_f32_avx512(const Context& ctx, const PackedLinearArgs& args);
void linear_f32_avx2(const Context& ctx, const PackedLinearArgs& args);
void linear_f32_plain(const Context& ctx, const PackedLinearArgs& args);
// These take the scratch as ctx.workspace.
void linear_s8_vnni(const Context& ctx, const PackedLinearArgs& args);
void linear_s8_avx2(const Context& ctx, const PackedLinearArgs& args);
void linear_s8_plain(const Context& ctx, const PackedLinearArgs& args);
int64_t s8_scratch_bytes(const Context& ctx, const PackedLinearArgs& args) noexcept;

// The q of rows [begin, end) of x, padded with zeros to a multiple of four: as u8, 128 more (Out =
// uint8_t), or as s16; and the rows' scales. Rows of `out` are `stride` elements apart.
template <class Out>
void quantise_rows(const PackedLinearArgs& args, int64_t begin, int64_t end, int64_t stride,
                   Out* out, float* scales);

}  // namespace saturate::kernels::packed
