// SPDX-License-Identifier: Apache-2.0
// What sample_step.cpp shares with the implementations.
#pragma once
#include "kernels/decode/sample_step.h"

namespace saturate::kernels {

constexpr float kWeightOne = 4294967296.0f;  // 2^32

// The running sum that the drawn token is the first to reach: 1 + floor(total * x / 2^32).
SAT_HD uint64_t draw_target(const SampleSequence& s, int32_t position, uint64_t total) {
  const uint64_t x = random_block(s.seed, static_cast<uint32_t>(s.stream), kSampleOp,
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
SAT_HD void advance(const SampleStepArgs& a, int64_t row, int32_t drawn, float log_probability) {
  const SampleState& s = a.state;
  const SampleSequence& wish = s.sequences[row];
  const int32_t next = s.positions[row] + 1;
  s.positions[row] = next;
  if (next < wish.prompt) {
    s.ids[row] = s.tokens[s.starts[row] + next];
    return;
  }
  const int64_t at = wish.result * a.result.stride;
  volatile int32_t* const result = a.result.tokens + at;
  const int32_t count = next - wish.prompt;
  bool ends = drawn < 0;
  for (int32_t i = 0; i < wish.end_count; ++i) ends = ends || drawn == wish.ends[i];
  if (!ends) {
    s.ids[row] = drawn;
    s.tokens[s.starts[row] + next] = drawn;
    result[2 + count] = drawn;
    if (wish.wants_scores != 0) {
      static_cast<volatile float*>(a.result.log_probabilities)[at + 2 + count] = log_probability;
    }
#ifdef __CUDA_ARCH__
    __threadfence_system();  // the host sees the token before the count
#endif
    result[0] = count + 1;
  }
  if (ends || next + 1 >= wish.limit) {
    s.finished[row] = 1;
#ifdef __CUDA_ARCH__
    __threadfence_system();  // and the last count before the end
#endif
    result[1] = drawn < 0 ? 2 : 1;
  }
}

// What placement p does to its row, of which this is worker `worker` of `workers`. For CPU and GPU.
SAT_HD void place_sequence(const SamplePlaceArgs& a, const SamplePlacement& p, int worker,
                           int workers) {
  const SampleState& s = a.state;
  if (p.what == SamplePlacement::What::start) {
    for (int32_t j = worker; j < p.sequence.prompt; j += workers)
      s.tokens[p.first_slot + j] = a.prompts[p.prompt_at + j];
  }
  if (worker != 0) return;
  if (p.what == SamplePlacement::What::clear) {
    s.finished[p.to] = 1;
    return;
  }
  if (p.what == SamplePlacement::What::move) {
    s.ids[p.to] = s.ids[p.from];
    s.positions[p.to] = s.positions[p.from];
    s.finished[p.to] = s.finished[p.from];
    s.starts[p.to] = s.starts[p.from];
    s.sequences[p.to] = s.sequences[p.from];
    s.finished[p.from] = 1;
    return;
  }
  s.ids[p.to] = a.prompts[p.prompt_at + p.first];
  s.positions[p.to] = p.first;
  s.finished[p.to] = 0;
  s.starts[p.to] = p.first_slot;
  s.sequences[p.to] = p.sequence;
}

void sample_step_cpu(const Context& ctx, const SampleStepArgs& args);
void sample_step_cuda(const Context& ctx, const SampleStepArgs& args);
void sample_place_cpu(const Context& ctx, const SamplePlaceArgs& args);
void sample_place_cuda(const Context& ctx, const SamplePlaceArgs& args);

}  // namespace saturate::kernels
