// SPDX-License-Identifier: Apache-2.0
// The draw of token_draw.h from one row of logits, by one block of a multiple of 32 threads.
//
// A token is found in two steps. All tokens fall into bins by how far their logit lies below the
// largest, so that bins are in order of rank; running sums over the bins tell which one holds the
// token. The tokens of that bin are then sorted, or, where they are too many, told apart digit by
// digit of their rank. All sums are of integers: no order of adding changes them.
#pragma once
#include "kernels/decode/each_value.cuh"
#include "kernels/decode/ranking.cuh"
#include "kernels/decode/token_draw.h"

namespace saturate::kernels {

constexpr int kList = 2048;    // a power of two
constexpr int kDrawAhead = 1;  // accesses under way in a thread: registers are short
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kIndexBits = 24, kRankBits = 32 + kIndexBits;

// Counts and weights of tokens. A weight is held in two words, as shared memory adds 32 bits in one
// instruction (ATOMS.ADD) and 64 in a loop (ATOMS.CAST.SPIN.64).
template <int kCount>
struct Sums {
  uint32_t low[kCount], high[kCount], count[kCount];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kCount; i += static_cast<int>(blockDim.x))
      low[i] = high[i] = count[i] = 0;
  }
  __device__ void add(int i, uint64_t weight, bool counted) {
    if (counted) atomicAdd(&count[i], 1u);
    if (weight == 0) return;
    const auto part = static_cast<uint32_t>(weight);
    const uint32_t carry = atomicAdd(&low[i], part) > 0xFFFFFFFFu - part ? 1 : 0;
    const uint32_t over = static_cast<uint32_t>(weight >> 32) + carry;
    if (over != 0) atomicAdd(&high[i], over);
  }
  __device__ uint64_t weight(int i) const { return static_cast<uint64_t>(high[i]) << 32 | low[i]; }
};

// Tokens in order of rank, counted and weighed.
struct Running {
  uint64_t count, weight;

  __device__ Running operator+(const Running& o) const {
    return {count + o.count, weight + o.weight};
  }
};

struct DrawScratch {
  Sums<kDrawBins> bins;
  union {
    uint64_t list[kList];  // ranks of one bin's tokens
    Sums<kDigits> digits;  // of tokens whose rank begins alike, by their next digit
  };
  uint32_t listed;
  Running warps[kWarp];  // of the threads of a warp
  int found;             // bin, digit or place in the list,
  Running before;        // and what comes before it
};

// How many tokens or how much weight a running sum must reach; 0: not looked for.
struct DrawTarget {
  uint64_t count, weight;

  __device__ bool reached(const Running& r) const {
    return (count > 0 && r.count >= count) || (weight > 0 && r.weight >= weight);
  }
};

struct Selected {
  int index;
  uint64_t weight;  // running sum up to and with the token
};

__device__ __forceinline__ uint64_t weight_of(float v, float top, float inverse) {
  const float weight = __expf((v - top) * inverse) * kWeightOne;
  return weight >= kWeightOne ? uint64_t{1} << 32 : __float2uint_rz(weight);
}
// Never falls where v falls; v is a number.
__device__ __forceinline__ int bin_of(float v, float top, float inverse) {
  constexpr float kRound = 8388608.0f;  // 2^23: what is added to it is rounded to a whole number
  const float below =
      fminf((top - v) * inverse * kDrawBinsPerNat, static_cast<float>(kDrawBins - 1));
  return __float_as_int(below + kRound) - __float_as_int(kRound);
}
// Ranks of ranking.cuh with an index of 24 bits.
__device__ __forceinline__ uint64_t short_rank(float v, int index) {
  const uint64_t rank = rank_of(v, index);
  return rank >> 32 << kIndexBits | (rank & ((1u << kIndexBits) - 1u));
}

// What the threads before this one have, and in `all` what the block has. All threads call.
__device__ inline Running before_thread(const Running& mine, DrawScratch& s, Running& all) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  Running sum = mine;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Running left = {__shfl_up_sync(0xFFFFFFFFu, sum.count, offset),
                          __shfl_up_sync(0xFFFFFFFFu, sum.weight, offset)};
    if (lane >= offset) sum = sum + left;
  }
  __syncthreads();  // the warps' sums have been read
  if (lane == kWarp - 1) s.warps[warp] = sum;
  __syncthreads();  // all warps' sums are there
  Running before = {sum.count - mine.count, sum.weight - mine.weight};
  all = {};
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before = before + all;
    all = all + s.warps[w];
  }
  return before;
}

// The first of `n` items in order, item(i) for i = 0, 1, ..., where the running sums reach the
// target, which all of them together do: s.found and s.before. All threads call.
template <class Item>
__device__ void find(int n, const DrawTarget& target, DrawScratch& s, const Item& item) {
  const int threads = static_cast<int>(blockDim.x), each = (n + threads - 1) / threads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, n), end = min(begin + each, n);
  Running mine = {}, all;
  for (int i = begin; i < end; ++i) mine = mine + item(i);
  Running sum = before_thread(mine, s, all);
  if (!target.reached(sum) && target.reached(sum + mine)) {
    int i = begin;
    for (; !target.reached(sum + item(i)); ++i) sum = sum + item(i);
    s.found = i;
    s.before = sum;
  }
  __syncthreads();  // what was found is there
}

// Falling order; n is a power of two. All threads call, and each sees the list sorted.
__device__ inline void sort_list(uint64_t* list, int n) {
  for (int size = 2; size <= n; size *= 2) {
    for (int apart = size / 2; apart > 0; apart /= 2) {
      __syncthreads();  // the exchanges before are done
      for (int i = threadIdx.x; i < n / 2; i += static_cast<int>(blockDim.x)) {
        const int a = 2 * i - (i & (apart - 1)), b = a + apart;
        const uint64_t x = list[a], y = list[b];
        if ((x < y) == ((a & size) == 0)) {
          list[a] = y;
          list[b] = x;
        }
      }
    }
  }
  __syncthreads();  // the list is sorted
}

// A row of logits and what its weights are relative to.
template <class T>
struct DrawRow {
  const T* z;
  int vocab;
  float top, inverse;
};

// select() among the tokens of one bin that do not fit into the list: digit by digit of their ranks.
template <class T>
__device__ Selected select_by_digits(const DrawRow<T>& r, int bin, DrawTarget target,
                                     uint64_t weight_before, DrawScratch& s) {
  uint64_t prefix = 0;
  for (int shift = kRankBits - kDigitBits;; shift -= kDigitBits) {
    __syncthreads();  // what was found has been read
    s.digits.clear();
    __syncthreads();  // the digits are empty
    each_value<kDrawAhead>(r.z, r.vocab, [&](float v, int c) {
      if (v != v || bin_of(v, r.top, r.inverse) != bin) return;
      const uint64_t rank = short_rank(v, c);
      if (rank >> shift >> kDigitBits != prefix) return;
      const auto digit = static_cast<int>(rank >> shift & (kDigits - 1));
      s.digits.add(kDigits - 1 - digit, weight_of(v, r.top, r.inverse), true);
    });
    __syncthreads();  // the digits are counted
    find(kDigits, target, s, [&](int i) { return Running{s.digits.count[i], s.digits.weight(i)}; });
    const int found = s.found;
    prefix = prefix << kDigitBits | static_cast<uint64_t>(kDigits - 1 - found);
    weight_before += s.before.weight;
    if (shift == 0) {  // the index is part of the rank: one token
      const auto index = static_cast<int>(~prefix & ((1u << kIndexBits) - 1u));
      return {index, weight_before + s.digits.weight(found)};
    }
    if (target.count > 0) target.count -= s.before.count;
    if (target.weight > 0) target.weight -= s.before.weight;
  }
}

// The first token in order of rank whose running count or weight reaches its target, which is at
// most what the bins hold. All threads call.
template <class T>
__device__ Selected select(const DrawRow<T>& r, DrawTarget target, DrawScratch& s) {
  find(kDrawBins, target, s, [&](int i) { return Running{s.bins.count[i], s.bins.weight(i)}; });
  const int bin = s.found;
  const uint64_t weight_before = s.before.weight;
  if (target.count > 0) target.count -= s.before.count;
  if (target.weight > 0) target.weight -= weight_before;
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();  // the list is empty, and what was found has been read
  each_value<kDrawAhead>(r.z, r.vocab, [&](float v, int c) {
    if (v != v || bin_of(v, r.top, r.inverse) != bin) return;
    const uint32_t at = atomicAdd(&s.listed, 1u);
    if (at < kList) s.list[at] = rank_of(v, c);
  });
  __syncthreads();  // the list is complete
  const auto listed = static_cast<int>(s.listed);
  if (listed > kList) return select_by_digits(r, bin, target, weight_before, s);
  int room = 1;
  while (room < listed) room *= 2;
  for (int i = listed + static_cast<int>(threadIdx.x); i < room; i += static_cast<int>(blockDim.x))
    s.list[i] = 0;
  sort_list(s.list, room);
  const auto weight = [&](int i) { return weight_of(ranked_value(s.list[i]), r.top, r.inverse); };
  find(listed, target, s, [&](int i) { return Running{1, weight(i)}; });
  const Selected selected = {ranked_index(s.list[s.found]),
                             weight_before + s.before.weight + weight(s.found)};
  __syncthreads();  // the list has been read
  return selected;
}

// `top`: the largest logit that is a number, finite. All threads call and each gets the result.
template <class T>
__device__ int draw_token(const T* z, int vocab, float top, const TokenDraw& d, int position,
                          DrawScratch& s) {
  // A largest number instead of infinity keeps the weight of the likeliest, whose distance is 0.
  constexpr float kMost = std::numeric_limits<float>::max();
  const DrawRow<T> r = {z, vocab, top, fminf(1.0f / d.temperature, kMost)};
  const bool counted = d.top_k > 0 && d.top_k < vocab;
  __syncthreads();  // an earlier use has been read
  s.bins.clear();
  __syncthreads();  // the bins are empty
  Running mine = {}, all;
  each_value<kDrawAhead>(z, vocab, [&](float v, int) {
    if (v != v) return;
    const uint64_t weight = weight_of(v, r.top, r.inverse);
    s.bins.add(bin_of(v, r.top, r.inverse), weight, counted);
    mine = mine + Running{1, weight};
  });
  before_thread(mine, s, all);  // the bins are filled, too
  uint64_t total = all.weight;
  if (counted) total = select(r, {min(static_cast<uint64_t>(d.top_k), all.count), 0}, s).weight;
  if (d.top_p < 1.0f) total = select(r, {0, share_target(d.top_p, total)}, s).weight;
  if (d.min_p > 0.0f) {
    const uint64_t least = least_weight(d.min_p);
    Running likely = {};
    each_value<kDrawAhead>(z, vocab, [&](float v, int) {
      const uint64_t weight = v == v ? weight_of(v, r.top, r.inverse) : 0;
      if (weight >= least) likely.weight += weight;
    });
    before_thread(likely, s, all);
    total = min(total, all.weight);  // both are sums over the likeliest
  }
  return select(r, {0, draw_target(d, position, total)}, s).index;
}

}  // namespace saturate::kernels
