// SPDX-License-Identifier: Apache-2.0
// The draw of token_draw.h from one row of logits, by one block of a multiple of 32 threads.
#pragma once
#include "kernels/decode/ranking.cuh"
#include "kernels/decode/token_draw.h"

namespace saturate::kernels {

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kIndexBits = 24, kRankBits = 32 + kIndexBits;

// Tokens whose rank begins with the same digits, by their next digit.
struct Bins {
  uint32_t count[kDigits];
  unsigned long long weight[kDigits];
  uint32_t index[kDigits];  // largest of the tokens: used where there is one only
  // What the walk over the bins found.
  int digit;
  unsigned long long count_before, weight_before;
};

struct Selected {
  int index;
  uint64_t weight;  // running sum up to and with the token
};

// Ranks of ranking.cuh with an index of 24 bits.
__device__ __forceinline__ uint64_t short_rank(float v, int index) {
  const uint64_t rank = rank_of(v, index);
  return rank >> 32 << kIndexBits | (rank & ((1u << kIndexBits) - 1u));
}

// Warp 0 walks the bins from the largest digit: the first where the running count or weight reaches
// its target. Zero targets are not looked for.
__device__ inline void walk(Bins& bins, uint64_t count_target, uint64_t weight_target) {
  constexpr int kEach = kDigits / kWarp;
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const int lane = threadIdx.x, high = kDigits - 1 - lane * kEach;  // lane 0 has the largest digits
  unsigned long long count = 0, weight = 0;
  for (int i = 0; i < kEach; ++i) {
    count += bins.count[high - i];
    weight += bins.weight[high - i];
  }
  unsigned long long count_sum = count, weight_sum = weight;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const unsigned long long c = __shfl_up_sync(kAll, count_sum, offset);
    const unsigned long long w = __shfl_up_sync(kAll, weight_sum, offset);
    if (lane >= offset) {
      count_sum += c;
      weight_sum += w;
    }
  }
  const auto reached = [&](unsigned long long c, unsigned long long w) {
    return (count_target > 0 && c >= count_target) || (weight_target > 0 && w >= weight_target);
  };
  const uint32_t lanes = __ballot_sync(kAll, reached(count_sum, weight_sum));
  if (lane != (lanes != 0 ? __ffs(static_cast<int>(lanes)) - 1 : kWarp - 1)) return;
  unsigned long long c = count_sum - count, w = weight_sum - weight;
  int digit = high;
  for (int i = 0; i < kEach; ++i, --digit) {
    if (i + 1 == kEach || reached(c + bins.count[digit], w + bins.weight[digit])) break;
    c += bins.count[digit];
    w += bins.weight[digit];
  }
  bins.digit = digit;
  bins.count_before = c;
  bins.weight_before = w;
}

__device__ __forceinline__ unsigned long long weight_of(float v, float top, float inverse) {
  return static_cast<unsigned long long>(__expf((v - top) * inverse) * kWeightOne);
}

// Of those that weigh at least `least`. All threads call and each gets the result.
template <class T>
__device__ uint64_t sum_of_weights(const T* z, int vocab, float top, float inverse, uint64_t least,
                                   Bins& bins) {
  __syncthreads();  // the bins have been read
  if (threadIdx.x == 0) bins.weight[0] = 0;
  __syncthreads();  // the sum is zero
  unsigned long long mine = 0;
  for (int c = threadIdx.x; c < vocab; c += static_cast<int>(blockDim.x)) {
    const float v = to_float(z[c]);
    const unsigned long long weight = v == v ? weight_of(v, top, inverse) : 0;
    if (weight >= least) mine += weight;
  }
  atomicAdd(&bins.weight[0], mine);
  __syncthreads();  // the sum is complete
  return bins.weight[0];
}

// The first token in order of rank whose running count or weight reaches its target. All threads
// call.
template <class T>
__device__ Selected select(const T* z, int vocab, float top, float inverse, uint64_t count_target,
                           uint64_t weight_target, Bins& bins) {
  uint64_t prefix = 0, weight_before = 0;
  for (int shift = kRankBits - kDigitBits;; shift -= kDigitBits) {
    __syncthreads();  // the bins have been read
    for (int i = threadIdx.x; i < kDigits; i += static_cast<int>(blockDim.x)) {
      bins.count[i] = bins.index[i] = 0;
      bins.weight[i] = 0;
    }
    __syncthreads();  // the bins are empty
    for (int c = threadIdx.x; c < vocab; c += static_cast<int>(blockDim.x)) {
      const float v = to_float(z[c]);
      if (v != v) continue;
      const uint64_t rank = short_rank(v, c);
      if (rank >> shift >> kDigitBits != prefix) continue;
      const auto digit = static_cast<int>(rank >> shift & (kDigits - 1));
      atomicAdd(&bins.count[digit], 1u);
      atomicAdd(&bins.weight[digit], weight_of(v, top, inverse));
      atomicMax(&bins.index[digit], static_cast<uint32_t>(c));
    }
    __syncthreads();  // the bins are full
    if (threadIdx.x < kWarp) walk(bins, count_target, weight_target);
    __syncthreads();  // what the walk found is there
    const int digit = bins.digit;
    prefix = prefix << kDigitBits | static_cast<uint64_t>(digit);
    weight_before += bins.weight_before;
    if (bins.count[digit] <= 1 || shift == 0) {
      return {static_cast<int>(bins.index[digit]), weight_before + bins.weight[digit]};
    }
    if (count_target > 0) count_target -= bins.count_before;
    if (weight_target > 0) weight_target -= bins.weight_before;
  }
}

// `top`: the largest logit that is a number, finite. All threads call and each gets the result.
template <class T>
__device__ int draw_token(const T* z, int vocab, float top, const TokenDraw& d, int position,
                          Bins& bins) {
  const float inverse = 1.0f / d.temperature;
  uint64_t total =
      d.top_k > 0 && d.top_k < vocab
          ? select(z, vocab, top, inverse, static_cast<uint64_t>(d.top_k), 0, bins).weight
          : sum_of_weights(z, vocab, top, inverse, 0, bins);
  if (d.top_p < 1.0f)
    total = select(z, vocab, top, inverse, 0, share_target(d.top_p, total), bins).weight;
  if (d.min_p > 0.0f) {
    const uint64_t likely = sum_of_weights(z, vocab, top, inverse, least_weight(d.min_p), bins);
    total = total < likely ? total : likely;  // both are sums over the likeliest
  }
  return select(z, vocab, top, inverse, 0, draw_target(d, position, total), bins).index;
}

}  // namespace saturate::kernels
