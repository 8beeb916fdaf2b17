// SPDX-License-Identifier: Apache-2.0
// The rules of token_rules.h on one row of logits, by one block.
#pragma once
#include <math_constants.h>

#include "kernels/decode/token_rules.h"
#include "kernels/device/vector.cuh"

namespace saturate::kernels {

// How often a sequence holds each id of a range, for one range of the vocabulary after the other: a
// look at each token for each range, where comparing tokens with each other would take their square.
struct RuleScratch {
  static constexpr int kIds = 6144;
  uint32_t times[kIds];  // said so often, and kHeld where the prompt holds it
};

// Repetition, presence and frequency penalty. All threads of the block call.
template <class T, class Token>
__device__ void apply_penalties(const TokenRules& rules, int said, int length, const Token& token,
                                int vocab, T* z, RuleScratch& scratch) {
  constexpr uint32_t kHeld = 0x80000000u;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const bool repeats = rules.repetition_penalty != 1.0f;
  for (int first = 0; first < vocab; first += RuleScratch::kIds) {
    const int ids = min(RuleScratch::kIds, vocab - first);
    for (int i = thread; i < ids; i += threads) scratch.times[i] = 0;
    __syncthreads();  // nothing is counted
    for (int j = (repeats ? 0 : said) + thread; j < length; j += threads) {
      const int id = token(j) - first;
      if (id < 0 || id >= ids) continue;
      if (j < said)
        atomicOr(&scratch.times[id], kHeld);
      else
        atomicAdd(&scratch.times[id], 1u);
    }
    __syncthreads();  // all is counted
    for (int i = thread; i < ids; i += threads) {
      const uint32_t times = scratch.times[i];
      if (times == 0) continue;
      float v = to_float(z[first + i]);
      if (repeats)
        v = round_to<T>(v > 0.0f ? v / rules.repetition_penalty : v * rules.repetition_penalty);
      if ((times & ~kHeld) != 0)
        v = v - rules.presence_penalty -
            static_cast<float>(times & ~kHeld) * rules.frequency_penalty;
      z[first + i] = from_float<T>(v);
    }
    __syncthreads();  // the counts have been read
  }
}

// All threads of the block call; afterwards each sees the row as it is left. token(j) is the
// sequence's j-th token, j < length; it says them from `said` on. `ends` lists `end_count` ids that
// end a sequence. Ids are below `vocab`.
template <class T, class Token>
__device__ void apply_rules(const TokenRules& rules, const SuppressedTokens& suppressed,
                            const int32_t* ends, int end_count, int said, int length,
                            const Token& token, int vocab, T* z, RuleScratch& scratch) {
  const int n = rules.no_repeat_ngram;
  const bool repeats = rules.repetition_penalty != 1.0f, too_short = length < rules.least;
  const bool counts = rules.presence_penalty != 0.0f || rules.frequency_penalty != 0.0f;
  if (!repeats && !counts && n <= 0 && !too_short && suppressed.count == 0) return;
  const T never = from_float<T>(-CUDART_INF_F);
  if (repeats || counts) apply_penalties(rules, said, length, token, vocab, z, scratch);
  if (n > 0) {
    for (int j = threadIdx.x; j + n <= length; j += blockDim.x) {
      bool same = true;
      for (int i = 0; i + 1 < n && same; ++i) same = token(j + i) == token(length - (n - 1) + i);
      if (same) z[token(j + n - 1)] = never;
    }
  }
  if (too_short) {
    for (int i = threadIdx.x; i < end_count; i += blockDim.x) z[ends[i]] = never;
  }
  for (int64_t i = threadIdx.x; i < suppressed.count; i += blockDim.x) z[suppressed.ids[i]] = never;
  __syncthreads();  // the row is as it is read from here on
}

// What stands before the rules. All threads of the block call, as below.
template <class T>
__device__ void apply_biases(const TokenChoice& choice, int vocab, T* z) {
  if (choice.bias_count == 0) return;
  for (int64_t i = threadIdx.x; i < choice.bias_count; i += blockDim.x) {
    const TokenBias b = choice.biases[i];
    if (b.id < vocab) z[b.id] = from_float<T>(to_float(z[b.id]) + b.bias);
  }
  __syncthreads();  // the row is as the rules read it
}

// What stands behind them. A word a thread: its words may lie in host memory, which is read in whole lines.
template <class T>
__device__ void apply_allowed(const TokenChoice& choice, int vocab, T* z) {
  if (choice.allowed == nullptr) return;
  const T never = from_float<T>(-CUDART_INF_F);
  for (int first = static_cast<int>(threadIdx.x) * 32; first < vocab;
       first += static_cast<int>(blockDim.x) * 32) {
    const uint32_t word = choice.allowed[first / 32];
    const int ids = min(32, vocab - first);
    for (int i = 0; i < ids; ++i)
      if ((word >> i & 1u) == 0) z[first + i] = never;
  }
  __syncthreads();  // the row is as it is read from here on
}

}  // namespace saturate::kernels
