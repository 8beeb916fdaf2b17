// SPDX-License-Identifier: Apache-2.0
// The tiled fp32 rung (sgemm/sgemm_tiled.cuh) compiled at run time, one kernel a parameter set. The
// functions are those of ConfiguredImpl; a configuration is text_of(TileSet).
#pragma once
#include "kernels/gemm/tune/configured.h"
#include "kernels/gemm/tune/nvrtc.h"
#include "kernels/gemm/tune/sgemm_space.h"

namespace saturate::kernels {

// The kernel for `tile`; aligned: every pointer and row starts on 16 bytes. Compiled, or taken from
// the cache folder ("" for none). Needs no GPU. Errors: those of nvrtc_compile().
NvrtcKernel compile_sgemm_tile(const std::string& folder, const std::string& arch,
                               const TileSet& tile, bool aligned);

// Limits of a GPU as the driver states them. Errors: device.
ChipLimits chip_limits(Device device);

Fit sgemm_jit_fits(const Context& ctx, const MatmulArgs& args) noexcept;
std::vector<std::string> sgemm_jit_configurations(const Context& ctx, const MatmulArgs& args,
                                                  Search search);
void sgemm_jit_prepare(const Context& ctx, const MatmulArgs& args,
                       std::span<const std::string> configs, const TuneProgress& progress);
Fit sgemm_jit_ready(const Context& ctx, const MatmulArgs& args, const std::string& config);
void sgemm_jit_run(const Context& ctx, const MatmulArgs& args, const std::string& config);
double sgemm_jit_predict(const Context& ctx, const MatmulArgs& args, const std::string& config);

}  // namespace saturate::kernels
