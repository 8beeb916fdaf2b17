// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/ranking.cuh"
#include "kernels/decode/sample_step_impl.h"
#include "kernels/decode/token_draw.cuh"
#include "kernels/decode/token_rules.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 1024, kPlaceThreads = 512, kAhead = 2;

// The logarithm of the token's share of softmax(z), from whole numbers: no order of adding changes
// them. All threads call and each gets the result.
template <class T>
__device__ float log_share(const T* z, int vocab, float top, int id, DrawScratch& scratch) {
  constexpr float kOne = 549755813888.0f;  // 2^39: 2^24 of them are below 2^64
  Running mine = {}, all;
  each_value<kAhead>(z, vocab, [&](float v, int) {
    if (v == v) mine.weight += static_cast<uint64_t>(__expf(v - top) * kOne);
  });
  before_thread(mine, scratch, all);
  return to_float(z[id]) - top - logf(static_cast<float>(all.weight) / kOne);
}

// One block, one row.
template <class T>
__global__ void __launch_bounds__(kThreads) sample_step_kernel(SampleStepArgs a) {
  __shared__ union {
    RuleScratch rules;
    DrawScratch draw;
  } scratch;
  __shared__ uint64_t rank_scratch[kWarp];
  const int64_t row = blockIdx.x;
  const SampleState& s = a.state;
  if (s.finished[row] != 0) return;
  const int position = s.positions[row];
  const SampleSequence& c = s.sequences[row];
  if (position + 1 < c.prompt) {
    __syncthreads();  // every thread has read the state
    if (threadIdx.x == 0) advance(a, row, -1, 0.0f);
    return;
  }
  T* const z = static_cast<T*>(a.logits) + row * a.ld;
  const int vocab = static_cast<int>(a.vocab);
  const int32_t* const said = s.tokens + s.starts[row];
  const TokenChoice choice = choice_of(a.choices, c);
  apply_biases(choice, vocab, z);
  TokenRules rules = c.rules;
  rules.least += c.prompt;
  apply_rules(
      rules, a.suppressed, c.ends, c.end_count, c.prompt, position + 1,
      [said](int j) { return said[j]; }, vocab, z, scratch.rules);
  apply_allowed(choice, vocab, z);
  uint64_t mine = 0;
  each_value<kAhead>(z, vocab, [&](float v, int i) { mine = larger(mine, rank_of(v, i)); });
  const uint64_t best = block_best(mine, rank_scratch);
  const float top = ranked_value(best);
  int drawn = best != 0 && isfinite(top) ? ranked_index(best) : -1;
  if (drawn >= 0 && c.temperature > 0.0f) {
    drawn = draw_token(z, vocab, top, draw_of(c), position, scratch.draw);
  }
  float log_probability = 0.0f;
  if (drawn >= 0 && c.wants_scores != 0) {
    log_probability = log_share(z, vocab, top, drawn, scratch.draw);
  }
  __syncthreads();  // every thread has read the state
  if (threadIdx.x == 0) advance(a, row, drawn, log_probability);
}

// One block, one placement.
__global__ void __launch_bounds__(kPlaceThreads) sample_place_kernel(SamplePlaceArgs a) {
  if (static_cast<int>(blockIdx.x) >= *a.count) return;
  place_sequence(a, a.placements[blockIdx.x], threadIdx.x, kPlaceThreads);
}

}  // namespace

void sample_step_cuda(const Context& ctx, const SampleStepArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    sample_step_kernel<T><<<static_cast<unsigned>(a.rows), kThreads, 0, cuda::stream_of(ctx)>>>(a);
    SAT_CUDA_LAUNCHED("sample_step_kernel");
  });
}

void sample_place_cuda(const Context& ctx, const SamplePlaceArgs& a) {
  sample_place_kernel<<<static_cast<unsigned>(a.most), kPlaceThreads, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("sample_place_kernel");
}

}  // namespace saturate::kernels
