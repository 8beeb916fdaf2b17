// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

constexpr int32_t kMostAdapters = 64;

// Adapters of low rank beside one projection have columns of one z = A x, and a row only has one adapter:
//   x[r][c] stays where begins[g] <= c < begins[g + 1] for g = group_of_row[r * group_stride], else 0.
//
// Shapes    x (rows, begins[groups]), in place; begins ascending from 0; a row of no group (outside
//           0 .. groups - 1) becomes zeros.
// Types     x in dtype.
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     no sums; what is cleared may hold anything, infinities too.
// Errors    invalid_argument for sizes, groups and pointers; unsupported when no implementation fits;
//           device.
// Cost      one write of what is cleared, and a read of group_of_row.
// Source    the masked sum of Chen et al., arXiv:2310.18547, without their gather: all A are one matrix.
struct KeepColumnsArgs {
  void* x = nullptr;
  const int32_t* group_of_row = nullptr;
  int64_t group_stride = 1;  // in numbers
  int64_t rows = 0;
  int32_t groups = 0;
  std::array<int32_t, kMostAdapters + 1> begins = {};
  DType dtype = DType::f32;
};

void keep_columns(const Context& ctx, const KeepColumnsArgs& args);

}  // namespace saturate::kernels
