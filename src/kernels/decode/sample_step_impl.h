// SPDX-License-Identifier: Apache-2.0
// What sample_step.cpp shares with the implementations.
#pragma once
#include "kernels/decode/sample_step.h"

namespace saturate::kernels {

constexpr float kWeightOne = 4294967296.0f;  // 2^32

// The running sum that the drawn token is the first to reach: 1 + floor(total * x / 2^32).
SAT_HD uint64_t draw_target(const SampleControls& c, int32_t stream, int32_t position,
                            uint64_t total) {
  const uint64_t x = random_block(c.seed, static_cast<uint32_t>(stream), kSampleOp,
                                  static_cast<uint32_t>(position))
                         .x[0];
  return 1 + (total >> 32) * x + ((total & 0xFFFFFFFFu) * x >> 32);
}

// The running sum that ends the set of top_p: at least 1, at most total.
SAT_HD uint64_t share_target(float top_p, uint64_t total) {
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  const uint64_t floor = static_cast<uint64_t>(share);
  const uint64_t target = floor + (static_cast<double>(floor) < share ? 1 : 0);
  return target < 1 ? 1 : target > total ? total : target;
}

// Moves one row on after its token is known: `drawn` is -1 for a row that has nothing to draw from,
// and within the prompt, where it does not count.
SAT_HD void advance(const SampleStepArgs& a, int64_t row, int32_t drawn) {
  const SampleState& s = a.state;
  const int32_t next = s.positions[row] + 1;
  s.positions[row] = next;
  if (next < s.prompt_lengths[row]) {
    s.ids[row] = a.state.prompts[row * a.prompt_stride + next];
    return;
  }
  volatile int32_t* const result = a.result + row * a.result_stride;
  const int32_t count = next - s.prompt_lengths[row];
  const bool ends = drawn < 0 || drawn == a.controls->eos;
  if (!ends) {
    s.ids[row] = drawn;
    result[2 + count] = drawn;
#ifdef __CUDA_ARCH__
    __threadfence_system();  // the host sees the token before the count
#endif
    result[0] = count + 1;
  }
  if (ends || next + 1 >= s.limits[row]) {
    s.finished[row] = 1;
    result[1] = drawn < 0 ? 2 : 1;
  }
}

void sample_step_cpu(const Context& ctx, const SampleStepArgs& args);
void sample_step_cuda(const Context& ctx, const SampleStepArgs& args);

}  // namespace saturate::kernels
