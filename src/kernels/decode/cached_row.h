// SPDX-License-Identifier: Apache-2.0
// The two passes of cached attention on the CPU over what one row sees: scores from keys, and the sum of
// values. The vectors that do them depend on the processor, the order of every sum does not.
#pragma once
#include <cstdint>

namespace saturate::kernels {

// Positions that are taken together.
constexpr int64_t kCachedKeys = 4;

template <class T>
struct CachedRow {
  const T* q = nullptr;            // (heads, head_size)
  const T* const* keys = nullptr;  // [k | v] of each position, `fours` times kCachedKeys of them
  int64_t fours = 0, count = 0;    // count: positions, without what fills the last four
  int64_t heads = 0, group = 0;    // query heads; of which as many read one key head
  int64_t head_size = 0;
  int64_t values = 0;    // from the keys of a position to its values
  T scale = 0;           // of scores
  T* weights = nullptr;  // (heads, stride): scores, then what values are multiplied with
  int64_t stride = 0;
  T* o = nullptr;  // (heads, head_size)
};

// weights[h][j] = scale * q[h].k[j]. A product of one head: lanes of eight floats, of which every second
// vector has sums of its own, are added; then the lanes, pairs first. head_size is a multiple of 8.
void cached_scores_avx512(const CachedRow<float>& row);
// Scores become weights, those from `count` on 0.
void cached_softmax_avx512(const CachedRow<float>& row);
// o[h] = sum_j weights[h][j] v[j], in the order of j.
void cached_values_avx512(const CachedRow<float>& row);

}  // namespace saturate::kernels
