// SPDX-License-Identifier: Apache-2.0
// The rules of token_rules.h on one row of logits, by one block.
#pragma once
#include <math_constants.h>

#include "kernels/decode/token_rules.h"
#include "kernels/device/vector.cuh"

namespace saturate::kernels {

// All threads of the block call; afterwards each sees the row as it is left. token(j) is the
// sequence's j-th token, j < length; it says them from `said` on. `ends` lists `end_count` ids that end
// a sequence.
template <class T, class Token>
__device__ void apply_rules(const TokenRules& rules, const SuppressedTokens& suppressed,
                            const int32_t* ends, int end_count, int said, int length,
                            const Token& token, T* z) {
  const int n = rules.no_repeat_ngram;
  const bool repeats = rules.repetition_penalty != 1.0f, too_short = length < rules.least;
  const bool counts = rules.presence_penalty != 0.0f || rules.frequency_penalty != 0.0f;
  if (!repeats && !counts && n <= 0 && !too_short && suppressed.count == 0) return;
  const T never = from_float<T>(-CUDART_INF_F);
  if (repeats) {
    for (int j = threadIdx.x; j < length; j += blockDim.x) {
      const int32_t id = token(j);
      bool first = true;  // a token is changed once, by the thread of its first place
      for (int i = 0; i < j && first; ++i) first = token(i) != id;
      if (!first) continue;
      const float v = to_float(z[id]);
      z[id] = from_float<T>(v > 0.0f ? v / rules.repetition_penalty : v * rules.repetition_penalty);
    }
    __syncthreads();  // what is counted or forbidden below stays so
  }
  if (counts) {
    for (int j = said + threadIdx.x; j < length; j += blockDim.x) {
      const int32_t id = token(j);
      bool first = true;
      for (int i = said; i < j && first; ++i) first = token(i) != id;
      if (!first) continue;
      int times = 1;
      for (int i = j + 1; i < length; ++i) times += token(i) == id ? 1 : 0;
      z[id] = from_float<T>(to_float(z[id]) - rules.presence_penalty -
                            static_cast<float>(times) * rules.frequency_penalty);
    }
    __syncthreads();
  }
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

}  // namespace saturate::kernels
