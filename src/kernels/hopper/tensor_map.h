// SPDX-License-Identifier: Apache-2.0
// What the host does before a launch of the Hopper kernels: tensor maps for TMA, and how many blocks.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "runtime/context.h"

namespace saturate::kernels::wgmma {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The driver's encoder of tensor maps, found at run time so that nothing links the driver; null
// where there is none.
decltype(&cuTensorMapEncodeTiled) encoder();

// Why the context's device cannot run them: they need compute capability 9.0 and tensor maps.
Fit device_fits(const Context& ctx) noexcept;

// Blocks that run together: one a multiprocessor, in pairs.
int blocks_of(const Context& ctx);

// Matrix (rows, cols) of bf16, f16 or f32 by rows; boxes of `box_rows` rows of 128 bytes, swizzled
// over 128 bytes. Errors: device, when the driver refuses.
CUtensorMap map_of(const void* data, DType type, int64_t rows, int64_t cols, int64_t ld,
                   int box_rows);
// The same of f32, which TMA rounds to tf32 on the way.
CUtensorMap tf32_map_of(const void* data, int64_t rows, int64_t cols, int64_t ld, int box_rows);
// `matrices` such matrices, one after the other without gaps: boxes of one of them, which TMA fills
// with zeros where that matrix ends.
CUtensorMap map_of_stack(const void* data, DType type, int64_t matrices, int64_t rows, int64_t cols,
                         int box_rows);

}  // namespace saturate::kernels::wgmma
