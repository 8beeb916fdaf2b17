// SPDX-License-Identifier: Apache-2.0
// Adafactor: AdamW's second moment of a matrix as one number a row and one a column, and no first.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/optimizer/optimizer.h"

namespace saturate::kernels {

// A matrix, or with rows = 1 a vector. Of its elements the rank updates [begin, end).
struct AdafactorTensor {
  int64_t rows = 1, cols = 0;
  int64_t begin = 0, end = 0;
  // Where element 0 is, or would be: [begin, end) lies in the arrays.
  int64_t master = 0, grad = 0, compute = 0;
  int64_t factors = 0;  // where rows, then columns begin; of a vector its second moments
  DecayRule decay = DecayRule::plain;
  // Set by adafactor_pieces(): the tensor's, and where their sums of columns begin.
  int64_t first_piece = 0, pieces = 0, partial = 0;
  SAT_HD int64_t count() const noexcept { return rows * cols; }
};

// Some rows of a tensor.
constexpr int64_t kAdafactorRows = 32;
struct AdafactorPiece {
  int64_t tensor = 0, row = 0, partial = 0;
};

// Cuts tensors into pieces, those that have own elements. `partials`: how many sums of columns there are.
std::vector<AdafactorPiece> adafactor_pieces(std::span<AdafactorTensor> tensors, int64_t& partials);

// One step on all tensors, with the clipped gradient g of adamw(), t the update counted from 1 and
// b = 1 - t^-0.8, in three calls:
//
//   sums      of a matrix sum of g^2 over each row and column, of a vector g^2
//   measure   of a matrix row = b row + (1-b) (sum / cols + 1e-30), col likewise; of a vector
//             v = b v + (1-b) (g^2 + 1e-30)
//             u = g / sqrt(row col / mean(row)), or g / sqrt(v);  totals = sum of u^2, of w^2
//   apply     w = w - a (u / max(1, rms(u)) + weight_decay w)
//             a = lr, or with `relative` lr max(0.001, rms(w))
//
// Ranks that share the elements add up `sums` after the first call and `totals` after the second. EMA,
// the low-precision copy and bad steps as in adamw().
//
// Shapes    master, grad, ema, compute as the tensors say; ema and compute may be null. factors, sums as
//           AdafactorTensor::factors says; totals (tensors, 2); scratch: adafactor_scratch_bytes(). The
//           tensors, pieces and what they name lie in the device's memory.
// Types     master, grad, factors, ema in f32, or all in f64 on the CPU; compute bf16 or f16; sums and
//           totals in f64.
// Aliasing  none.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises.
// Order     bitwise equal run to run; over ranks to the order of f64 sums.
// Errors    invalid_argument for sizes, pointers and types; device.
// Cost      16 bytes of memory traffic an element in f32 (gradient three times, of which sums read it a
//           second time from the cache), 8 more with ema and 2 with compute; six launches.
// Source    Shazeer and Stern, arXiv:1804.04235, algorithms 4 and 5 without first moment; decay of
//           weights and order of rounding as in transformers.Adafactor.
struct AdafactorArgs {
  void* master = nullptr;
  const void* grad = nullptr;
  void* factors = nullptr;
  void* ema = nullptr;
  void* compute = nullptr;
  double* sums = nullptr;
  double* totals = nullptr;
  void* scratch = nullptr;
  const AdafactorTensor* tensors = nullptr;
  const AdafactorPiece* pieces = nullptr;
  int64_t tensor_count = 0, piece_count = 0;
  int64_t factor_count = 0, partial_count = 0;
  int64_t widest = 0;  // most columns of a matrix
  DType dtype = DType::f32;
  DType compute_type = DType::bf16;
  bool relative = false;
  float weight_decay = 0.0f;
  float clip_norm = 0.0f;
  float ema_decay = 0.0f;
  float token_budget = 1.0f;
  Schedule schedule = {};
  const StepState* state = nullptr;
};
void adafactor_sums(const Context& ctx, const AdafactorArgs& args);
void adafactor_measure(const Context& ctx, const AdafactorArgs& args);
void adafactor_apply(const Context& ctx, const AdafactorArgs& args);
size_t adafactor_scratch_bytes(int64_t tensors, int64_t pieces, int64_t partials);

}  // namespace saturate::kernels
