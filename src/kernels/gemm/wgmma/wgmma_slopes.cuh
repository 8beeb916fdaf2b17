// SPDX-License-Identifier: Apache-2.0
// The input gradient times the slopes of an activation, and the sums of its columns: what the product behind an
// activation sends back to the one before it, and that one's bias gradient. The producer brings a tile's slopes, or what
// they are formed from, to shared memory while the tile is multiplied; results take their place and leave by TMA. Work
// on the results thus costs no addresses in global memory, no exchange between lanes and no wait for loads.
#pragma once
#include "kernels/activation/activation_curve.cuh"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/gemm/wgmma/wgmma_slopes.h"
#include "kernels/gemm/wgmma/wgmma_sums.cuh"
#include "kernels/hopper/stores.cuh"

namespace saturate::kernels::wgmma {

// Tiles by turns or shared by both consumers, as EpilogueTile's. kKind: the activation whose slopes are formed from what
// it was given; identity: slopes were kept and come as they are.
template <class T, ActivationKind kKind_, bool kPingPong>
struct SlopesTile
    : Tile<T, T, kEpilogueTileM, kPingPong ? kTurnTileN : kSharedTileN, 3, kPingPong, true, false> {
  using Base =
      Tile<T, T, kEpilogueTileM, kPingPong ? kTurnTileN : kSharedTileN, 3, kPingPong, true, false>;
  static constexpr ActivationKind kKind = kKind_;
  static constexpr int kBoxes = Base::kN / 64;  // of 64 columns, swizzled over 128 bytes
  static constexpr uint32_t kBoxBytes = Base::kRows * 128, kPlaceBytes = kBoxes * kBoxBytes;
  // Behind the stages: a place for each consumer's rows of a tile; behind the barriers the column sums of a consumer's
  // four warps. Consumers that share tiles have two sets of these, taken in turns.
  static constexpr int kSets = kPingPong ? 1 : 2, kSums = 4 * Base::kN;
  static constexpr uint32_t kPlacesAt = Base::kBarriersAt;
  static constexpr uint32_t kBarriersAt = kPlacesAt + 2 * kPlaceBytes;
  static constexpr uint32_t kPlaceBarriersAt = kBarriersAt + Base::kStages * 16;
  static constexpr uint32_t kSumsAt = kPlaceBarriersAt + 2 * 16;
  static constexpr uint32_t kSharedBytes = kSumsAt + 2 * kSets * kSums * 4 + 1024;
  static_assert(kPlacesAt % 1024 == 0 && kSumsAt % 16 == 0 && kSharedBytes <= 232448);
};

// A place is full when its slopes have come, and empty when TMA has read its results.
struct Places {
  uint32_t memory, full, empty;
};

// By one thread: asks for the slopes of a consumer's rows, from `m` on, of its tile number `turn`.
template <class P>
__device__ inline void produce_place(const SlopesProblem& p, const Places& places, int consumer,
                                     uint32_t turn, int m, int n) {
  const uint32_t bar = places.full + consumer * 8,
                 place = places.memory + consumer * P::kPlaceBytes;
  barrier_wait(places.empty + consumer * 8, (turn & 1) ^ 1);
  barrier_expect(bar, P::kPlaceBytes);
#pragma unroll
  for (int i = 0; i < P::kBoxes; ++i)
    load_box<false>(place + i * P::kBoxBytes, p.slopes, bar, n + i * 64, m);
}

// Loads of all units. A place is asked for in the middle of a unit's blocks of k: from seven of them on its consumer
// has begun this tile by then, so the place is free; with fewer the producer may wait for it.
template <class P>
__device__ inline void produce_with_slopes(const SlopesProblem& p, uint32_t tiles, uint32_t full,
                                           uint32_t empty, uint32_t rank, const Places& places) {
  uint32_t step = 0, turn = 0;
  for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster, ++turn) {
    const Unit x = unit_of<P>(p, u, rank);
    for (int kb = 0; kb < p.k_blocks; ++kb, ++step) {
      produce_block<P>(p, x, kb, step, tiles, full, empty, rank);
      if (kb != (p.k_blocks - 1) / 2) continue;
      if constexpr (P::kPingPong) {
        produce_place<P>(p, places, turn % 2, turn / 2, x.m, x.n);
      } else {
        for (int consumer = 0; consumer < 2; ++consumer)
          produce_place<P>(p, places, consumer, turn, x.m + consumer * P::kRows, x.n);
      }
    }
  }
}

// This thread's two columns of every group of eight in a place: rows are 128 bytes, whose eight pieces of 16 bytes are
// swapped by the row's number modulo 8.
template <class P>
class PlaceOfThread {
 public:
  __device__ explicit PlaceOfThread(char* place) : place_(place) {
    const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
    offset_ = (thread / 32 * 16 + lane / 4) * 128 + lane / 4 * 16 + lane % 4 * 4;
  }
  // Of group j of eight columns and row `i` of 2 kMmas: 0, 8, 64 and 72 further down.
  __device__ uint32_t& at(int j, int i) const {
    const int box = j / 8 * static_cast<int>(P::kBoxBytes), row = i / 2 * 8192 + i % 2 * 1024;
    return *reinterpret_cast<uint32_t*>(place_ + (offset_ ^ j % 8 * 16) + box + row);
  }

 private:
  char* place_;
  int offset_;
};

// `value` times the slope for which `given` stands.
template <class P>
__device__ inline float times_slope(float value, float given) {
  if constexpr (P::kKind == ActivationKind::identity) {
    return value * given;
  } else {
    return value * curve<P::kKind>(given).slope;
  }
}

// Results take the slopes' place; sums of this warp's columns before they round go to `sums` (null: none).
template <class P>
__device__ inline void multiply_by_slopes(const Problem& p, const float (&sum)[P::kMmas][P::kN / 2],
                                          const PlaceOfThread<P>& place, float* sums) {
  using T = typename P::Out;
  constexpr int kRowsOfThread = P::kMmas * 2;
#pragma unroll
  for (int g = 0; g < P::kN / 32; ++g) {
    uint32_t slopes[4][kRowsOfThread];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) slopes[j][i] = place.at(g * 4 + j, i);
    }
    float column[8] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const auto* two = reinterpret_cast<const T*>(&slopes[j][i]);
        const float* const s = &sum[i / 2][(g * 4 + j) * 4 + i % 2 * 2];
        float value[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          value[e] = times_slope<P>(s[e] * p.alpha, to_float(two[e]));
          column[j * 2 + e] += value[e];
        }
        place.at(g * 4 + j, i) = pack<T>(value[0], value[1]);
      }
    }
    if (sums != nullptr)
      sums[threadIdx.x % 128 / 32 * P::kN + g * 32 + lane_column()] = fold_rows(column);
  }
}

// By one thread, behind a barrier of its consumer: the place to memory. Returns when it may be written again.
template <class P>
__device__ inline void store_place(const SlopesProblem& p, const Unit& x, int row, uint32_t place) {
  if (x.m + row < p.m) {
#pragma unroll
    for (int i = 0; i < P::kBoxes; ++i)
      if (x.n + i * 64 < p.n)
        store_box(p.result, place + i * P::kBoxBytes, x.n + i * 64, x.m + row);
  }
  commit_stores();
  await_stores_read();
}

template <class P>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_wgmma_slopes_kernel(const __grid_constant__ SlopesProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  char* const aligned = shared + (tiles - shared_address(shared));
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  const Places places{tiles + P::kPlacesAt, tiles + P::kPlaceBarriersAt,
                      tiles + P::kPlaceBarriersAt + 16};
  const uint32_t rank = cluster_rank();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) barrier_init(places.full + i * 8, 1);
    prefetch_map(p.slopes);
    prefetch_map(p.result);
    open_pipeline<P>(p, full, empty, P::kPingPong ? 1 : 2);
  }
  cluster_sync();
  await_previous_kernel();
  if (group == 0) {
    give_registers<P::kProducerRegisters>();
    if (threadIdx.x == 0) produce_with_slopes<P>(p, tiles, full, empty, rank, places);
  } else {
    take_registers<P::kConsumerRegisters>();
    const int consumer = group - 1, row = P::kPingPong ? 0 : consumer * P::kRows;
    constexpr int kTurn = 1, kDone = 3;  // named barriers, one a consumer each
    const uint32_t place = places.memory + consumer * P::kPlaceBytes;
    const PlaceOfThread<P> mine(aligned + P::kPlacesAt + consumer * P::kPlaceBytes);
    float* const room =
        reinterpret_cast<float*>(aligned + P::kSumsAt) + consumer * P::kSets * P::kSums;
    if (P::kPingPong && consumer == 1) named_arrive(kTurn, 256);  // consumer 0 begins
    // No sum is split, so every unit has the same blocks of k. `index` counts this consumer's tiles.
    for (uint32_t index = 0;; ++index) {
      const int turn =
          P::kPingPong ? static_cast<int>(index) * 2 + consumer : static_cast<int>(index);
      const int u = static_cast<int>(blockIdx.x / kCluster + turn * (gridDim.x / kCluster));
      if (u >= p.units) break;
      const Unit x = unit_of<P>(p, u, rank);
      float* const sums = p.partial != nullptr ? room + index % P::kSets * P::kSums : nullptr;
      float sum[P::kMmas][P::kN / 2];
      if (P::kPingPong) named_sync(kTurn + consumer, 256);
      multiply<P>(sum, p.k_blocks, turn * p.k_blocks, row, tiles, full, empty);
      if (P::kPingPong) named_arrive(kTurn + (consumer ^ 1), 256);
      barrier_wait(places.full + consumer * 8, index & 1);
      multiply_by_slopes<P>(p, sum, mine, sums);
      publish_stores();
      named_sync(kDone + consumer, 128);
      if (threadIdx.x % 128 == 0) {
        store_place<P>(p, x, row, place);
        barrier_arrive_at(places.empty + consumer * 8, rank);
      }
      // By turns, the next tile's sums wait for this consumer's turn, where all its threads meet. Of shared tiles, those of
      // the tile after the next wait behind the next one's barrier, which nobody reaches before it has read these.
      if (sums != nullptr) write_sums<P>(p, x, row, sums);
    }
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

template <class T, ActivationKind kKind, bool kPingPong>
cudaError_t launch_slopes_of(const SlopesProblem& p, int blocks, cudaStream_t stream) {
  using P = SlopesTile<T, kKind, kPingPong>;
  return launch_pairs<matmul_wgmma_slopes_kernel<P>, P::kSharedBytes>(p, blocks, stream);
}

template <class T, bool kPingPong>
cudaError_t launch_slopes(ActivationKind kind, const SlopesProblem& p, int blocks,
                          cudaStream_t stream) {
  if constexpr (kPingPong) {
    if (kind == ActivationKind::identity)
      return launch_slopes_of<T, ActivationKind::identity, true>(p, blocks, stream);
  } else {
    if (kind == ActivationKind::gelu_tanh)
      return launch_slopes_of<T, ActivationKind::gelu_tanh, false>(p, blocks, stream);
    if (kind == ActivationKind::gelu_erf)
      return launch_slopes_of<T, ActivationKind::gelu_erf, false>(p, blocks, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace saturate::kernels::wgmma
