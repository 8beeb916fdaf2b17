// SPDX-License-Identifier: Apache-2.0
// The input gradient times slopes, in tiles that the two consumers multiply by turns. The producer brings a tile's
// slopes to shared memory while the tile is multiplied; results take their place and leave by TMA. Work on the
// results thus costs no addresses in global memory, no exchange between lanes and no wait for loads.
#pragma once
#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/gemm/wgmma/wgmma_slopes.h"
#include "kernels/gemm/wgmma/wgmma_sums.cuh"
#include "kernels/hopper/stores.cuh"

namespace saturate::kernels::wgmma {

template <class T, bool kRelu_>
struct SlopesTile : Tile<T, T, kEpilogueTileM, kTurnTileN, 3, true, true, false> {
  using Base = Tile<T, T, kEpilogueTileM, kTurnTileN, 3, true, true, false>;
  static constexpr bool kRelu = kRelu_;
  static constexpr int kBoxes = kTurnTileN / 64;  // of 64 columns, swizzled over 128 bytes
  static constexpr uint32_t kBoxBytes = kEpilogueTileM * 128, kPlaceBytes = kBoxes * kBoxBytes;
  // Behind the stages: two places of a tile, one for each consumer; behind the barriers the column sums of four warps of
  // each.
  static constexpr uint32_t kPlacesAt = Base::kBarriersAt;
  static constexpr uint32_t kBarriersAt = kPlacesAt + 2 * kPlaceBytes;
  static constexpr uint32_t kPlaceBarriersAt = kBarriersAt + Base::kStages * 16;
  static constexpr uint32_t kSumsAt = kPlaceBarriersAt + 2 * 16;
  static constexpr uint32_t kSharedBytes = kSumsAt + 2 * 4 * kTurnTileN * 4 + 1024;
  static_assert(kPlacesAt % 1024 == 0 && kSumsAt % 16 == 0 && kSharedBytes <= 232448);
};

// A place is full when its slopes have come, and empty when TMA has read its results.
struct Places {
  uint32_t memory, full, empty;
};

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
      const uint32_t consumer = turn % 2, bar = places.full + consumer * 8;
      barrier_wait(places.empty + consumer * 8, (turn / 2 & 1) ^ 1);
      barrier_expect(bar, P::kPlaceBytes);
      const uint32_t place = places.memory + consumer * P::kPlaceBytes;
#pragma unroll
      for (int i = 0; i < P::kBoxes; ++i)
        load_box<false>(place + i * P::kBoxBytes, p.slopes, bar, x.n + i * 64, x.m);
    }
  }
}

// This thread's two columns of every group of eight in a place: rows are 128 bytes, whose eight pieces of 16 bytes are
// swapped by the row's number modulo 8.
class PlaceOfThread {
 public:
  __device__ explicit PlaceOfThread(char* place) : place_(place) {
    const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
    offset_ = (thread / 32 * 16 + lane / 4) * 128 + lane / 4 * 16 + lane % 4 * 4;
  }
  // Of group j of eight columns and row `i` of four: 0, 8, 64 and 72 further down.
  __device__ uint32_t& at(int j, int i) const {
    const int box = j / 8 * (kEpilogueTileM * 128), row = i / 2 * 8192 + i % 2 * 1024;
    return *reinterpret_cast<uint32_t*>(place_ + (offset_ ^ j % 8 * 16) + box + row);
  }

 private:
  char* place_;
  int offset_;
};

// Results take the slopes' place; sums of this warp's columns before they round go to `sums` (null: none).
template <class P>
__device__ inline void multiply_by_slopes(const Problem& p, const float (&sum)[P::kMmas][P::kN / 2],
                                          const PlaceOfThread& place, float* sums) {
  using T = typename P::Out;
#pragma unroll
  for (int g = 0; g < P::kN / 32; ++g) {
    uint32_t slopes[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) slopes[j][i] = place.at(g * 4 + j, i);
    }
    float column[8] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto* two = reinterpret_cast<const T*>(&slopes[j][i]);
        const float* const s = &sum[i / 2][(g * 4 + j) * 4 + i % 2 * 2];
        float value[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float v = s[e] * p.alpha, slope = to_float(two[e]);
          value[e] = P::kRelu ? (slope > 0.0f ? v : 0.0f) : v * slope;
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
__device__ inline void store_place(const SlopesProblem& p, const Unit& x, uint32_t place) {
  if (x.m < p.m) {
#pragma unroll
    for (int i = 0; i < P::kBoxes; ++i)
      if (x.n + i * 64 < p.n) store_box(p.result, place + i * P::kBoxBytes, x.n + i * 64, x.m);
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
    open_pipeline<P>(p, full, empty, 1);
  }
  cluster_sync();
  await_previous_kernel();
  if (group == 0) {
    give_registers<P::kProducerRegisters>();
    if (threadIdx.x == 0) produce_with_slopes<P>(p, tiles, full, empty, rank, places);
  } else {
    take_registers<P::kConsumerRegisters>();
    const int consumer = group - 1;
    constexpr int kTurn = 1, kDone = 3;  // named barriers, one a consumer each
    const uint32_t place = places.memory + consumer * P::kPlaceBytes;
    const PlaceOfThread mine(aligned + P::kPlacesAt + consumer * P::kPlaceBytes);
    float* const room = reinterpret_cast<float*>(aligned + P::kSumsAt) + consumer * 4 * P::kN;
    float* const sums = p.partial != nullptr ? room : nullptr;
    if (consumer == 1) named_arrive(kTurn, 256);  // consumer 0 begins
    // No sum is split, so every unit has the same blocks of k.
    for (int turn = consumer;; turn += 2) {
      const int u = static_cast<int>(blockIdx.x / kCluster + turn * (gridDim.x / kCluster));
      if (u >= p.units) break;
      const Unit x = unit_of<P>(p, u, rank);
      float sum[P::kMmas][P::kN / 2];
      named_sync(kTurn + consumer, 256);
      multiply<P>(sum, p.k_blocks, turn * p.k_blocks, 0, tiles, full, empty);
      named_arrive(kTurn + (consumer ^ 1), 256);
      barrier_wait(places.full + consumer * 8, turn / 2 & 1);
      multiply_by_slopes<P>(p, sum, mine, sums);
      publish_stores();
      named_sync(kDone + consumer, 128);
      if (threadIdx.x % 128 == 0) {
        store_place<P>(p, x, place);
        barrier_arrive_at(places.empty + consumer * 8, rank);
      }
      // The next tile's sums wait for this consumer's turn, where all its threads meet.
      if (sums != nullptr) write_sums<P>(p, x, 0, sums);
    }
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

template <class T, bool kRelu>
cudaError_t launch_slopes(const SlopesProblem& p, int blocks, cudaStream_t stream) {
  using P = SlopesTile<T, kRelu>;
  return launch_pairs<matmul_wgmma_slopes_kernel<P>, P::kSharedBytes>(p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
