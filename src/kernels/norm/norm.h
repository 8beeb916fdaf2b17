// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

struct FoldList;  // device/fold_columns.h

enum class NormKind : uint8_t { layer_norm, rms_norm };

// The joint between two sublayers in one pass: dropout of the branch, residual sum, normalisation.
//
//   sum[r][c] = x[r][c] + drop(branch[r][c])
//   y[r][c]   = (sum[r][c] - mean[r]) * rstd[r] * weight[c] + bias[c]
//   rstd[r]   = 1 / sqrt(mean_c((sum[r][c] - mean[r])^2) + eps);  rms_norm: mean = 0, no bias
//
// branch may be null: sum is then x and is not written.
//
// Shapes    x, branch, sum, y (rows, cols) dense row-major; weight, bias (cols); mean, rstd (rows).
//           bias may be null; mean is not written by rms_norm.
// Types     x, branch, sum, y in dtype; weight, bias, mean, rstd in wide_of(dtype); sums in it too.
//           The statistics are those of the sum as rounded to dtype.
// Dropout   element as RngRef numbers it: block = element / 4, word = element % 4; kept ones times
//           1/(1-p).
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: one block or thread sums a row, in a fixed order.
// Errors    invalid_argument for sizes, pointers, dropout and a bias of rms_norm; unsupported when
//           no implementation fits; device.
// Cost      rows * cols * (reads of x and branch + writes of sum and y).
// Source    Ba et al., arXiv:1607.06450; Zhang and Sennrich, arXiv:1910.07467.
struct NormForwardArgs {
  NormKind kind = NormKind::layer_norm;
  const void* x = nullptr;
  const void* branch = nullptr;
  void* sum = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  float eps = 1e-5f;
  float dropout = 0.0f;  // of the branch
  RngRef rng;
};

// d_x[r][c]      = d_sum[r][c] + gradient of y through the norm     (d_sum may be null)
// d_branch[r][c] = d_x[r][c] through the dropout mask               (may be null: not wanted)
// d_weight, d_bias: column sums, added to what is there when accumulate, else overwritten. Either
// may be null.
// d_branch_sum[c] (+)= sum over r of d_branch[r][c], of d_x where d_branch is null, as stored: the gradient of the
// bias that the branch ended with. May be null.
//
// `sum` is the forward's sum (x when there was no branch).
//
// Shapes    as forward; d_x, d_branch, d_sum, d_y (rows, cols) dense; d_weight, d_bias, d_branch_sum
//           (cols); partial: scratch of norm_backward_scratch_bytes.
// Types     d_y, d_sum, d_x, d_branch in dtype; d_weight, d_bias in wide_of(dtype).
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: column sums in two stages, no atomics.
// Errors    as forward.
// Cost      reads of d_y, d_sum and sum, writes of d_x and d_branch, rows * cols elements each.
// Source    as forward.
struct NormBackwardArgs {
  NormKind kind = NormKind::layer_norm;
  const void* d_y = nullptr;
  const void* d_sum = nullptr;
  const void* sum = nullptr;
  const void* weight = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  void* d_x = nullptr;
  void* d_branch = nullptr;
  void* d_weight = nullptr;
  void* d_bias = nullptr;
  bool accumulate = false;
  void* d_branch_sum = nullptr;
  bool accumulate_branch_sum = false;
  void* partial = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  float dropout = 0.0f;
  RngRef rng;
  FoldList* later =
      nullptr;  // on a GPU: takes the second stage of the column sums; partial lives on
};

void norm_forward(const Context& ctx, const NormForwardArgs& args);
void norm_backward(const Context& ctx, const NormBackwardArgs& args);
int64_t norm_backward_scratch_bytes(Device device, const NormBackwardArgs& args);

}  // namespace saturate::kernels
