// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// Softmax cross-entropy with label smoothing, loss and gradient in one visit to the logits.
//
//   nll[t]  = lse[t] - z[t][target]                      (plain negative log-likelihood)
//   loss[t] = (1 - s) * nll[t] + s * (lse[t] - mean_c z[t][c])
//   d_z[t][c] = grad_scale * *device_scale * (softmax(z)[c] - (1 - s) [c == target] - s / vocab)
//
// Shapes    logits (rows, ld): the first `vocab` columns count, the others get gradient 0.
//           targets (rows) i32; a target < 0 means the row has no loss: loss = nll = 0, d_z = 0.
// Types     logits in dtype, overwritten by d_z in dtype when `write_gradient`; loss, nll in
//           wide_of(dtype). device_scale is an f32 device scalar (loss scale), or null for 1.
// Aliasing  in place by contract: no second copy of the logits exists.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: one block or thread sums a row, in a fixed order.
// Errors    invalid_argument for sizes, pointers and label_smoothing; unsupported when no
//           implementation fits; device.
// Cost      one read, and with gradient one write, of rows * ld * sizeof(dtype) bytes.
// Source    Szegedy et al., arXiv:1512.00567, section 7 (label smoothing).
struct CrossEntropyArgs {
  void* logits = nullptr;
  const int32_t* targets = nullptr;
  void* loss = nullptr;
  void* nll = nullptr;
  int64_t rows = 0, vocab = 0, ld = 0;
  DType dtype = DType::f32;
  float label_smoothing = 0.0f;
  float grad_scale = 1.0f;
  const float* device_scale = nullptr;
  bool write_gradient = true;
};

void cross_entropy(const Context& ctx, const CrossEntropyArgs& args);

// The same where ranks have a part of the columns each (vocabulary parallel), in two visits with a
// gather of `statistics` over the ranks between them, 4 numbers a row and rank:
//
//   loss_statistics       of this rank's columns of row t: the largest logit, the sum of
//                         exp(z - largest), the target's logit (0: another rank has it) and the sum
//                         of the logits
//   cross_entropy_finish  joins the statistics of all ranks in their order; loss, nll and gradient
//                         as above
//
// Shapes    logits (rows, ld): column c is class first_class + c of `vocab`; classes from vocab on
//           do not count and get gradient 0. A rank may have none that count. statistics (rows, 4);
//           for the second (parts, rows, 4).
// Types     statistics in wide_of(dtype); else as above.
// Aliasing  as above.
// Stream    as above.
// Order     as above; parts are joined in the order of ranks.
// Errors    as above.
// Cost      as above, and a second read of the logits for the gradient.
// Source    Shoeybi et al., arXiv:1909.08053, section 3.
struct LossStatisticsArgs {
  const void* logits = nullptr;
  const int32_t* targets = nullptr;
  void* statistics = nullptr;
  int64_t rows = 0, vocab = 0, ld = 0, first_class = 0;
  DType dtype = DType::f32;
};
struct CrossEntropyFinishArgs {
  CrossEntropyArgs forward;  // vocab is that of all ranks, ld this rank's columns
  const void* statistics = nullptr;
  int64_t parts = 0, first_class = 0;
};

void loss_statistics(const Context& ctx, const LossStatisticsArgs& args);
void cross_entropy_finish(const Context& ctx, const CrossEntropyFinishArgs& args);

// totals[0] (+)= sum loss[t], totals[1] (+)= sum nll[t], totals[2] (+)= count of targets >= 0, as
// f64 (three device doubles, so that sums over any run length stay exact enough to compare ranks).
//
// Shapes    loss, nll, targets (rows); totals (3).
// Types     loss, nll in wide_of(dtype); totals in f64.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: a fixed order, no atomics.
// Errors    invalid_argument for sizes and pointers; unsupported when no implementation fits;
//           device.
// Cost      one read of loss, nll and targets.
// Source    the formula.
struct LossTotalsArgs {
  const void* loss = nullptr;
  const void* nll = nullptr;
  const int32_t* targets = nullptr;
  int64_t rows = 0;
  DType dtype = DType::f32;  // of the logits: loss and nll are wide_of(dtype)
  double* totals = nullptr;
  bool accumulate = false;
};

void loss_totals(const Context& ctx, const LossTotalsArgs& args);

}  // namespace saturate::kernels
