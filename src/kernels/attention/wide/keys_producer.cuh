// SPDX-License-Identifier: Apache-2.0
// How the work of the kernel for gradients of keys and values is cut (keys.cuh), where its
// tiles lie, and the warps that bring them.
#pragma once
#include <math_constants.h>

#include "kernels/attention/hopper/backward_consume.cuh"
#include "kernels/attention/hopper/backward_windowed.cuh"
#include "kernels/attention/hopper/forward_work.cuh"
#include "kernels/attention/wide/mma.cuh"
#include "kernels/attention/wide/problem.h"

namespace saturate::kernels::attention::wide {

// Bytes from the start of the shared memory, which is aligned to 1024; tiles as panels of 64
// columns.
template <class T_, int kD_, int kV_, bool kWindowed_ = false, bool kScoreMod_ = false>
struct KeyTile {
  using T = T_;
  static constexpr bool kWindowed = kWindowed_, kScoreMod = kScoreMod_;
  static constexpr int kCluster = key_cluster(kD_);
  static constexpr int kD = kD_, kV = kV_, kN = kKeyRows, kM = 64, kThreads = 384;
  static constexpr int kStages = kD == 256 ? 2 : 3;
  static constexpr uint32_t kQueryTile = kM * kD * 2, kOutputTile = kM * kV * 2;
  static constexpr uint32_t kScoreTile = kM * kN * 2;
  static constexpr uint32_t kK = 0, kValues = kN * kD * 2, kQ = kValues + kN * kV * 2;
  static constexpr uint32_t kDO = kQ + kStages * kQueryTile, kP = kDO + kStages * kOutputTile;
  static constexpr uint32_t kLse = kP + 2 * kScoreTile, kDelta = kLse + kStages * kM * 4;
  // Barriers, 8 bytes each.
  static constexpr uint32_t kFullQ = kDelta + kStages * kM * 4, kEmptyQ = kFullQ + 8 * kStages;
  static constexpr uint32_t kFullDO = kEmptyQ + 8 * kStages, kEmptyDO = kFullDO + 8 * kStages;
  static constexpr uint32_t kFullP = kEmptyDO + 8 * kStages, kEmptyP = kFullP + 16;
  static constexpr uint32_t kFullK = kEmptyP + 16, kEmptyK = kFullK + 8;
  static constexpr uint32_t kFullV = kEmptyK + 8, kEmptyV = kFullV + 8;
  static constexpr uint32_t kSharedBytes = kEmptyV + 8;
  static_assert(kSharedBytes <= 232448);
};

template <class P>
__device__ __forceinline__ void open_key_barriers(uint32_t tiles) {
  for (uint32_t s = 0; s < P::kStages; ++s) {
    wgmma::barrier_init(tiles + P::kFullQ + s * 8, 1 + 32);  // TMA, the row values
    wgmma::barrier_init(tiles + P::kFullDO + s * 8, 1 + 32);
    wgmma::barrier_init(tiles + P::kEmptyQ + s * 8, P::kCluster * 8);  // warps
    wgmma::barrier_init(tiles + P::kEmptyDO + s * 8, P::kCluster * 8);
  }
  for (uint32_t s = 0; s < 2; ++s) {
    wgmma::barrier_init(tiles + P::kFullP + s * 8, 4);
    wgmma::barrier_init(tiles + P::kEmptyP + s * 8, 4);
  }
  for (const uint32_t bar : {P::kFullK, P::kFullV}) wgmma::barrier_init(tiles + bar, 1);
  for (const uint32_t bar : {P::kEmptyK, P::kEmptyV}) wgmma::barrier_init(tiles + bar, 4);
  wgmma::barrier_init_fence();
}

// 64 keys of one key head, with the blocks of queries begin..end-1 of each of its query heads.
struct KeyUnit {
  Rows q, k;
  int head, first;  // key head; first key, in the sequence
  int begin, end;
  int shift;  // windowed: what takes a query to its place among the keys
  __device__ __forceinline__ int steps(int group) const { return (end - begin) * group; }
};

// Calls visit(unit) for every unit of this block, in order. A piece of work is one block of keys,
// or if causal the blocks n and T - 1 - n, which have T + 1 steps together.
template <class P, class Visit>
__device__ __forceinline__ void for_each_key_unit(const BackwardProblem& p, const Visit& visit) {
  const int rank = static_cast<int>(blockIdx.x) % P::kCluster;
  for (int item = static_cast<int>(blockIdx.x) / P::kCluster; item < p.items;
       item += static_cast<int>(gridDim.x) / P::kCluster) {
    const int part = item % p.parts, pair = item / p.parts;
    KeyUnit u;
    u.head = pair % p.kv_heads;
    const int sequence = pair / p.kv_heads;
    u.q = agreed_rows(p.cu_q, sequence);
    u.k = agreed_rows(p.cu_k, sequence);
    constexpr int kKeys = P::kCluster * P::kN;
    const int blocks = (u.k.count + kKeys - 1) / kKeys, twin = blocks - 1 - part;
    if (p.causal ? part > twin : part >= blocks) continue;
    const int all = (u.q.count + P::kM - 1) / P::kM;
    u.shift = P::kWindowed ? p.windowed.shift(u.q.count, u.k.count) : 0;
#pragma unroll 1
    for (int n = 0; n < (p.causal && part < twin ? 2 : 1); ++n) {
      const int first = (n == 0 ? part : twin) * kKeys;
      u.first = first + rank * P::kN;  // beyond the sequence for the last member, perhaps
      u.begin = p.causal ? min(first / P::kM, all) : 0;
      u.end = all;
      if constexpr (P::kWindowed) {
        const int low = first - u.shift - p.windowed.right;  // first and last query that see them
        const int high = first + kKeys - 1 - u.shift + p.windowed.left;
        u.begin = min(max(hopper::floor_of<P::kM>(low), 0), all);
        u.end = min(max(hopper::floor_of<P::kM>(high) + 1, u.begin), all);
      }
      visit(u);
    }
  }
}

// One thread asks TMA for tiles.
template <class P>
__device__ inline void produce_keys(const BackwardProblem& p, uint32_t tiles) {
  constexpr bool kShared = P::kCluster > 1;
  constexpr int kRows = P::kM / P::kCluster;
  const int rank = static_cast<int>(blockIdx.x) % P::kCluster;
  uint32_t step = 0, round = 0;
  for_each_key_unit<P>(p, [&](const KeyUnit& u) {
    if (u.steps(p.group) == 0) return;
    const int key = u.k.first + u.first;
    wgmma::barrier_wait(tiles + P::kEmptyK, (round & 1) ^ 1);
    wgmma::barrier_expect(tiles + P::kFullK, P::kValues - P::kK);
#pragma unroll(P::kWindowed ? 1 : P::kD / 64)
    for (int c = 0; c < P::kD / 64; ++c)
      wgmma::load_box<false>(tiles + P::kK + c * (P::kN * 128), p.k, tiles + P::kFullK,
                             u.head * P::kD + c * 64, key);
    wgmma::barrier_wait(tiles + P::kEmptyV, (round & 1) ^ 1);
    wgmma::barrier_expect(tiles + P::kFullV, P::kQ - P::kValues);
#pragma unroll(P::kWindowed ? 1 : P::kV / 64)
    for (int c = 0; c < P::kV / 64; ++c)
      wgmma::load_box<false>(tiles + P::kValues + c * (P::kN * 128), p.v, tiles + P::kFullV,
                             u.head * P::kV + c * 64, key);
    ++round;
    for (int g = 0; g < p.group; ++g)
      for (int m = u.begin; m < u.end; ++m, ++step) {
        const uint32_t stage = step % P::kStages, parity = (step / P::kStages & 1) ^ 1;
        const int row = u.q.first + m * P::kM + rank * kRows, head = u.head * p.group + g;
        const uint32_t half = static_cast<uint32_t>(rank * kRows * 128);
        const uint32_t query_at = tiles + P::kQ + stage * P::kQueryTile + half;
        const uint32_t output_at = tiles + P::kDO + stage * P::kOutputTile + half;
        const uint32_t full_q = tiles + P::kFullQ + stage * 8;
        const uint32_t full_d_o = tiles + P::kFullDO + stage * 8;
        wgmma::barrier_wait(tiles + P::kEmptyQ + stage * 8, parity);
        wgmma::barrier_expect(full_q, P::kQueryTile);
#pragma unroll(P::kWindowed ? 1 : P::kD / 64)
        for (int c = 0; c < P::kD / 64; ++c)
          wgmma::load_box<kShared>(query_at + c * (P::kM * 128), p.q, full_q, head * P::kD + c * 64,
                                   row);
        wgmma::barrier_wait(tiles + P::kEmptyDO + stage * 8, parity);
        wgmma::barrier_expect(full_d_o, P::kOutputTile);
#pragma unroll(P::kWindowed ? 1 : P::kV / 64)
        for (int c = 0; c < P::kV / 64; ++c)
          wgmma::load_box<kShared>(output_at + c * (P::kM * 128), p.d_o, full_d_o,
                                   head * P::kV + c * 64, row);
      }
  });
}

// One warp loads what belongs to rows of queries. +infinity makes every probability of a row beyond
// the sequence zero.
template <class P>
__device__ inline void load_row_values(const BackwardProblem& p, uint32_t tiles) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t step = 0;
  for_each_key_unit<P>(p, [&](const KeyUnit& u) {
    for (int g = 0; g < p.group; ++g)
      for (int m = u.begin; m < u.end; ++m, ++step) {
        const int64_t at = (u.head * p.group + g) * p.q_rows + u.q.first + m * P::kM;
        const int valid = u.q.count - m * P::kM;
        const uint32_t stage = step % P::kStages, parity = (step / P::kStages & 1) ^ 1;
        float lse[P::kM / 32], delta[P::kM / 32];
#pragma unroll
        for (int i = 0; i < P::kM / 32; ++i) {
          const int r = i * 32 + lane;
          lse[i] = r < valid ? p.lse[at + r] * kLog2e : CUDART_INF_F;
          delta[i] = r < valid ? p.delta[at + r] : 0.0f;
        }
        const auto put = [&](const float(&x)[P::kM / 32], uint32_t values, uint32_t full,
                             uint32_t empty) {
          wgmma::barrier_wait(tiles + empty + stage * 8, parity);
#pragma unroll
          for (int i = 0; i < P::kM / 32; ++i)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(tiles + values +
                                                         (stage * P::kM + i * 32 + lane) * 4),
                         "f"(x[i])
                         : "memory");
          hopper::barrier_arrive(tiles + full + stage * 8);
        };
        put(lse, P::kLse, P::kFullQ, P::kEmptyQ);
        put(delta, P::kDelta, P::kFullDO, P::kEmptyDO);
      }
  });
}

}  // namespace saturate::kernels::attention::wide
