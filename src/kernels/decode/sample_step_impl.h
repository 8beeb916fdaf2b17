// SPDX-License-Identifier: Apache-2.0
// What sample_step.cpp shares with the implementations.
#pragma once
#include "kernels/decode/sample_step.h"
#include "kernels/decode/token_draw.h"

namespace saturate::kernels {

// What draws the tokens of a sequence.
SAT_HD TokenDraw draw_of(const SampleSequence& s) {
  return {s.seed, s.stream, 0, s.temperature, s.top_p, s.top_k, s.min_p};
}

// What a sequence asks by id.
SAT_HD TokenChoice choice_of(const SampleChoices& all, const SampleSequence& s) {
  TokenChoice one;
  if (s.biases > 0) {
    one.biases = all.biases + s.result * all.bias_stride;
    one.bias_count = s.biases;
  }
  if (s.chooses != 0) one.allowed = all.allowed + s.result * all.word_stride;
  return one;
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
