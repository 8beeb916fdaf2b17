// SPDX-License-Identifier: Apache-2.0
// Everything about a training step that changes between replays of the captured graph. It lies in
// the memory of the training device; the host sees it only through StepRecord and at checkpoints.
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/philox.h"

namespace saturate {

struct StepState {
  // RngRef::state points here: [0] seed, [1] micro-batch counter (below).
  uint64_t rng[2] = {0, 0};
  int64_t step = 0;  // optimizer steps finished, skipped ones included
  double totals[4] =
      {};  // loss sum, nll sum, target tokens of this step over all ranks; [3] unused
  double grad_square_sum = 0;  // of the gradients as stored (scaled); inf or NaN marks a bad step
  float loss_scale = 1.0f;     // multiplies the loss before backward; 1 except for fp16
  int32_t good_steps = 0;      // since the loss scale last changed
  int32_t bad_steps_in_row = 0;
  int32_t updates = 0;  // steps that changed the weights: AdamW's bias correction counts these
  float lr = 0.0f;
  float padding = 0.0f;
};
static_assert(std::is_trivially_copyable_v<StepState>);

// Micro-batches are numbered over all data-parallel ranks: rank d of n takes d, d + n, ... The
// counter of a rank is 1 + the number of the one it took last, so that masks do not depend on n;
// before the first, d + 1 - n in 64 bits without sign.
SAT_HD uint64_t micro_batch_counter(uint64_t taken, uint64_t rank, uint64_t ranks) {
  return taken * ranks + rank + 1 - ranks;
}
SAT_HD uint64_t micro_batches_taken(uint64_t counter, uint64_t rank, uint64_t ranks) {
  return (counter + ranks - 1 - rank) / ranks;
}

// One finished step as the host sees it: written by the device into a ring in mapped host memory.
// `sequence` (step number from 1) is written last, so a record is whole when sequence is what was
// expected.
struct StepRecord {
  int64_t step = 0;
  double loss_sum = 0, nll_sum = 0, target_tokens = 0;
  float lr = 0, grad_norm = 0, loss_scale = 0;
  int32_t skipped = 0;  // 1: non-finite gradients, weights untouched
  int32_t bad_steps_in_row = 0;
  int32_t reserved = 0;
  uint64_t sequence = 0;
};
static_assert(std::is_trivially_copyable_v<StepRecord>);

}  // namespace saturate
