// SPDX-License-Identifier: Apache-2.0
// What the Hopper forward kernel does differently where windows, alignment and sinks may be set.
#pragma once
#include "kernels/attention/hopper/forward_softmax.cuh"
#include "kernels/attention/hopper/forward_work.cuh"

namespace saturate::kernels::attention {

// Tiles of queries of unlike cost, dealt so that every team gets its share without counting: a band
// of heads together (their keys fit L2), the last tiles of all heads first (causal: the costliest),
// and every second round in the other direction.
template <class P, class Visit>
requires(P::kWindowed) __device__ __forceinline__
    void for_each_unit(const ForwardProblem& p, int team, const Visit& visit) {
  const int lanes = static_cast<int>(gridDim.x) * P::kTeams;
  const int own = static_cast<int>(blockIdx.x) * P::kTeams + team;
  const int per_band = p.windowed.band * p.windowed.tiles, heads = p.sequences * p.heads;
  for (int round = 0; round * lanes < p.items; ++round) {
    const int item = round * lanes + (round % 2 == 0 ? own : lanes - 1 - own);
    if (item >= p.items) continue;
    const int band = item / per_band, in_band = item % per_band;
    const int width = min(p.windowed.band, heads - band * p.windowed.band);
    const int head = band * p.windowed.band + in_band % width;
    ForwardUnit u;
    u.head = head % p.heads;
    const int sequence = head / p.heads;
    u.q = agreed_rows(p.cu_q, sequence);
    u.k = agreed_rows(p.cu_k, sequence);
    u.first = (p.windowed.tiles - 1 - in_band / width) * P::kQueries;
    if (u.first >= u.q.count) continue;
    u.shift = p.windowed.shift(u.q.count, u.k.count);
    const int last = min(u.first + P::kQueries, u.q.count) - 1;
    u.base = max(0, u.first + u.shift - p.windowed.left) / P::kKeys * P::kKeys;
    const int end = min(u.k.count, last + u.shift + p.windowed.right + 1);
    u.tiles = max(0, end - u.base + P::kKeys - 1) / P::kKeys;
    visit(u);
  }
}

// Tiles [begin, end) of a unit that 64 queries from `first` on read.
struct TileRange {
  int begin, end;
};
template <class P>
__device__ __forceinline__ TileRange tiles_of(const WindowedArgs& p, const ForwardUnit& u,
                                              int first) {
  if (first >= u.q.count) return {0, 0};
  const int place = first + u.shift - u.base;
  const int end = min(u.tiles, max(0, place + 63 + p.right + P::kKeys) / P::kKeys);
  const int begin = max(0, place - p.left) / P::kKeys;
  return begin < end ? TileRange{begin, end} : TileRange{0, 0};
}

// A sink is a key without a value, counted by one lane of a row.
__device__ __forceinline__ void begin_with_sink(const ForwardProblem& p, const ForwardUnit& u,
                                                float (&top)[2], float (&weight)[2]) {
  if (p.windowed.sinks == nullptr) return;
  top[0] = top[1] = p.windowed.sinks[u.head] * kLog2e;
  weight[0] = weight[1] = lane() % 4 == 0 ? 1.0f : 0.0f;
}

// Products become scores, for powers of two. slope: of the head; `distance`: from the key of s[0]
// to the upper of the two queries.
template <class P>
__device__ __forceinline__ void score(const ForwardProblem& p, float (&s)[P::kKeys / 2], int head,
                                      int distance) {
  if (p.windowed.slopes == nullptr) {
#pragma unroll
    for (int i = 0; i < P::kKeys / 2; ++i) s[i] = p.windowed.capped(s[i]);
    return;
  }
  const float slope = p.windowed.slopes[head] * kLog2e;
  const auto far = static_cast<float>(distance);
#pragma unroll
  for (int i = 0; i < P::kKeys / 2; ++i) {
    const auto less = static_cast<float>(i / 4 * 8 + i % 2 - i % 4 / 2 * 8);
    s[i] = s[i] * p.scale_log2 - slope * fabsf(far - less);
  }
}

// Scores of keys before this thread's windows become -infinity. `column`: key of s[0] less the
// first key that the upper of the two queries sees.
template <class P>
__device__ __forceinline__ void mask_left(float (&s)[P::kKeys / 2], int column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (j * 8 + c < half * 8 - column) s[j * 4 + half * 2 + c] = -CUDART_INF_F;
    }
  }
}

// For a warpgroup whose first query is `first` and a thread whose upper one is `row`, both in the
// sequence; key: the tile's first.
template <class P>
__device__ __forceinline__ void mask_windowed(const ForwardProblem& p, const ForwardUnit& u,
                                            float (&s)[P::kKeys / 2], int key, int first, int row) {
  const int column = key + lane() % 4 * 2, right = u.shift + p.windowed.right,
            left = u.shift - p.windowed.left;
  if (key + P::kKeys > u.k.count || key + P::kKeys - 1 > first + right)
    mask<P>(s, column, u.k.count, true, row + right);
  if (key < first + 63 + left) mask_left<P>(s, column - row - left);
}

}  // namespace saturate::kernels::attention
