// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "runtime/context.h"

namespace saturate::kernels {

// Softmax cross-entropy with label smoothing of z = x w^T + bias, without z and without its gradient: the
// product stores exponentials, which the gradients' products read, and rows are scaled outside of them.
//
//   e[t][c]      = exp(min(z[t][c] - z[t][target], 69)),  0 for c >= vocab
//   sum[t]       = sum_c e[t][c]
//   nll[t]       = log(sum[t])
//   loss[t]      = nll[t] + s (z[t][target] - mean_c z[t][c])
//   e[t][target] = 1 - (1 - s) sum[t]                      from here on
//   factor[t]    = g / sum[t],  g = grad_scale * *device_scale
//   scaled[t][k] = factor[t] x[t][k]
//   uniform[k]   = -g s / vocab sum_c w[c][k]
//
// so that with d_z[t][c] = factor[t] e[t][c] - g s / vocab
//
//   d_x[t][k] = factor[t] sum_c e[t][c] w[c][k] + uniform[k]    linear_cross_entropy_backward()
//   d_w[c][k] = sum_t e[t][c] scaled[t][k]                      matmul(), over linear_cross_entropy_rows()
//
// With smoothing e and scaled have eight rows more, whose first is 1 for c < vocab, and -g s / vocab times the
// sum of x over the rows that have a loss; the others are 0. A row's differences from its target cannot
// vanish as a whole, and one above 69 counts as 69: a loss of 69 and more is a bound from below.
//
// Shapes    x (rows, width), w (ld, width), bias (ld) or null; the first `vocab` of ld classes count.
//           targets (rows) i32; a target < 0 means that the row has no loss: loss, nll, factor and scaled 0.
//           e (linear_cross_entropy_rows(), ld), scaled (the same rows, width), factor, loss, nll (rows),
//           uniform (width), written with smoothing only; scratch: linear_cross_entropy_scratch_bytes().
// Types     x, w, bias, e, scaled in dtype; factor, uniform, loss, nll in wide_of(dtype). device_scale is an
//           f32 device scalar (loss scale), or null for 1.
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: sums in a fixed order, no atomics.
// Errors    invalid_argument for sizes, pointers and label_smoothing; unsupported when no
//           implementation fits; device.
// Cost      2 rows ld width flops and one write of e, where a product and cross_entropy() write twice and
//           read once.
// Source    Szegedy et al., arXiv:1512.00567, section 7 (label smoothing); exponentials in the product's
//           epilogue: the idea of quack's linear_cross_entropy, there with an offset for each tile.
struct LinearCrossEntropyArgs {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  const int32_t* targets = nullptr;
  void* e = nullptr;
  void* scaled = nullptr;
  void* factor = nullptr;
  void* uniform = nullptr;
  void* loss = nullptr;
  void* nll = nullptr;
  void* scratch = nullptr;
  int64_t rows = 0, width = 0, vocab = 0, ld = 0;
  DType dtype = DType::f32;
  float label_smoothing = 0.0f;
  float grad_scale = 1.0f;
  const float* device_scale = nullptr;
};
void linear_cross_entropy(const Context& ctx, const LinearCrossEntropyArgs& args);
int64_t linear_cross_entropy_scratch_bytes(Device device, const LinearCrossEntropyArgs& args);

constexpr int64_t linear_cross_entropy_rows(int64_t rows, float label_smoothing) {
  return label_smoothing > 0.0f ? rows + 8 : rows;
}

// Whether it runs in a context, and whether it is also expected to be faster there than the product and
// cross_entropy() with their gradients; the reason where not. They read sizes and dtype only.
Fit linear_cross_entropy_fits(const Context& ctx, const LinearCrossEntropyArgs& args);
Fit linear_cross_entropy_pays(const Context& ctx, const LinearCrossEntropyArgs& args);

// d_x of above.
//
// Shapes    e (rows, ld), w (ld, width), factor (rows), uniform (width) or null; d_x (rows, width). A row
//           whose factor is 0 gets 0.
// Types     as above; d_x in dtype.
// Aliasing  none.
// Stream    as above.
// Order     as above.
// Errors    as above.
// Cost      2 rows ld width flops.
// Source    as above.
struct LinearCrossEntropyBackwardArgs {
  const void* e = nullptr;
  const void* w = nullptr;
  const void* factor = nullptr;
  const void* uniform = nullptr;
  void* d_x = nullptr;
  int64_t rows = 0, width = 0, ld = 0;
  DType dtype = DType::f32;
};
void linear_cross_entropy_backward(const Context& ctx, const LinearCrossEntropyBackwardArgs& args);

}  // namespace saturate::kernels
