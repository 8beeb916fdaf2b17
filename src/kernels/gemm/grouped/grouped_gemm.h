// SPDX-License-Identifier: Apache-2.0
// Products of groups of rows, each group with a weight of its own: the linear layers of a mixture
// of experts, whose rows lie sorted by expert.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "runtime/context.h"

namespace saturate::kernels {

enum class GroupedForm : uint8_t { forward, input_gradient, weight_gradient };

// With R_g = rows offsets[g] up to offsets[g + 1] of a matrix with a row a token:
//
//   forward          d[R_g] = a[R_g] b_g^T            a = x,  b = w,  d = y
//   input_gradient   d[R_g] = a[R_g] b_g              a = dy, b = w,  d = dx
//   weight_gradient  d_g = a[R_g]^T b[R_g] + beta d_g  a = dy, b = x,  d = dw
//
// Shapes    x, dx (rows, k); y, dy (rows, n); w, dw (groups, n, k); all row-major without gaps.
//           offsets (groups + 1) in the device's memory, so that one captured graph serves every
//           routing: 0 <= offsets[g] <= offsets[g + 1] <= rows. Groups may be empty (d_g = beta
//           d_g). Rows of y and dx in no group stay as they are; other offsets give meaningless
//           values in y, dx or dw but touch nothing else.
// Types     a, b, y and dx in dtype; dw in f32 (f64 for f64). Sums in fp32 (f64 for f64). bf16,
//           f16 and f32 on GPUs, f32 and f64 on the CPU. beta is read by weight_gradient alone.
// Exact     nothing of another group's rows or weights enters a result, not even as 0 x NaN.
// Aliasing  nothing may overlap.
// Stream    enqueued on ctx.stream; never synchronises; capturable; the CPU reads offsets at once.
// Order     bitwise equal run to run for the same offsets on one device.
// Errors    invalid_argument for sizes and pointers; unsupported when no implementation fits;
//           device.
// Cost      2 rows n k flops. weight_gradient writes 4 groups n k bytes, which limits small groups.
// Source    Shazeer et al., arXiv:1701.06538 (the layer); Gale et al., arXiv:2211.15841 (grouped).
struct GroupedGemmArgs {
  GroupedForm form = GroupedForm::forward;
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const int32_t* offsets = nullptr;
  int64_t groups = 0, rows = 0, n = 0, k = 0;
  DType dtype = DType::f32;
  float beta = 0.0f;
};

void grouped_gemm(const Context& ctx, const GroupedGemmArgs& args);

}  // namespace saturate::kernels
