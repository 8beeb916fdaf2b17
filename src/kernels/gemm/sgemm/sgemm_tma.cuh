// SPDX-License-Identifier: Apache-2.0
// Rung 9, Hopper: the copy engine feeds the multiply-adds.
//
// Idea       An FFMA a clock fills a scheduler's only issue slot, so every other instruction costs
//            speed. Rung 8's inner loop is kept (16 x 8 outputs a thread, registers that roll) and
//            the rest goes away:
//            1. TMA: one thread asks for a whole tile with two instructions; addresses, bounds and
//               the zeros outside the matrix are the engine's. A tile of a matrix whose rows run
//               along k is stored with the 128-byte swizzle, the same permutation as rung 8's.
//            2. mbarriers instead of block barriers: warps drift apart by up to STAGES - 1 tiles,
//            so
//               that one's waits are another's multiply-adds.
//            3. Persistent blocks: the first tiles of the next output are under way while the last
//               one is written.
//            4. Both operands may be stored along k or across it: a fragment is four steps of k of
//               a row, or four rows of a step, and 16 bytes either way. No transposition anywhere.
//            5. Small products: the blocks of a cluster share k and add up through each other's
//               shared memory, in the order of their ranks, so that results repeat bit by bit.
//            No producer warp: it would take registers that the 16 x 8 patch needs (255 a thread),
//            and asking for a tile is 20 instructions for 32,768 multiply-adds of its warp.
// Intensity  128 x 256 tile: 43 flops a byte from L2, 24 loads for 512 multiply-adds of a thread.
// Occupancy  8 warps a multiprocessor (one block of 128 x 256 or two of 128 x 128).
// Predicted  66.9 TFLOP/s x 0.955 (loads) x 0.98 (the rest) x 0.97 (last wave at 4096) x 0.93
//            (register banks, waits) = 57 TFLOP/s.
#pragma once
#include <cuda.h>

#include "kernels/gemm/sgemm/sgemm_tma.h"
#include "kernels/gemm/sgemm/sgemm_tma_device.cuh"

namespace saturate::kernels {

constexpr int kTmaPatchRows = 16, kTmaPatchCols = 8;
#ifndef TMA_UNROLL
#define TMA_UNROLL 1
#endif
constexpr int kTmaUnroll = TMA_UNROLL;
constexpr int kTmaChunks = kTmaDepth / 4;  // a fragment is four steps of k

// kCols 256: 256 threads, one block a multiprocessor. kCols 128: 128 threads, two.
template <int kCols>
struct TmaTile {
  static constexpr int kThreads = kCols, kStages = kCols == 256 ? 4 : 3;
  static constexpr int kStageFloats = (kTmaRows + kCols) * kTmaDepth;
  static constexpr int kStageBytes = kStageFloats * 4;
  // 1024: the swizzle counts from there.
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
};

// Fragments of one operand for kCount rows (of A) or columns (of B) a thread.
//
// Along k: lane l of kLanes holds rows l, l + kLanes, ...; one load brings four steps of a row.
// Across k: lane l holds groups of four rows, 4 kLanes apart; one load brings a group at one step.
template <bool kAlongK, int kCount, int kLanes, int kWidth>
struct TmaFragments {
  float v[kCount][kAlongK ? 4 : 1];

  // Of a lane's first element in the operand's tile.
  static __device__ __forceinline__ uint32_t offset(int first, int lane) {
    return static_cast<uint32_t>(kAlongK ? (first + lane) * kTmaDepth * 4 : (first + 4 * lane) * 4);
  }
  // Of chunk `chunk` from there.
  static __device__ __forceinline__ uint32_t chunk_offset(int chunk, int lane) {
    return static_cast<uint32_t>(kAlongK ? (chunk ^ lane) * 16 : chunk * 4 * kWidth * 4);
  }
  static __device__ __forceinline__ int row(int i, int lane) {
    return kAlongK ? lane + i * kLanes : i / 4 * 4 * kLanes + 4 * lane + i % 4;
  }
  // Rows begin .. end - 1 of step k of the chunk at `base` (along k: of all its steps).
  __device__ __forceinline__ void load(int begin, int end, uint32_t base, uint32_t chunk, int k) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = begin; i < end; ++i) {
        const uint32_t twisted = chunk ^ static_cast<uint32_t>((i * kLanes & 7) * 16);
        tma::load4(v[i], base + twisted + static_cast<uint32_t>(i * kLanes * kTmaDepth * 4));
      }
    } else {
#pragma unroll
      for (int i = begin; i < end; i += 4) {
        float four[4];
        tma::load4(four, base + chunk + static_cast<uint32_t>((k * kWidth + i * kLanes) * 4));
#pragma unroll
        for (int e = 0; e < 4; ++e) v[i + e][0] = four[e];
      }
    }
  }
  __device__ __forceinline__ float at(int i, int k) const { return v[i][kAlongK ? k : 0]; }
};

// D's element, with everything that C and the bias add.
__device__ __forceinline__ float tma_result(const TmaProblem& p, float sum, int64_t row, int col) {
  float v = p.alpha * sum;
  if (p.bias != nullptr) v += p.bias[col];
  if (p.beta != 0.0f) v += p.beta * p.c[row * p.ldc + col];
  return v;
}

// Four neighbours of a row; what lies outside D is left out.
__device__ __forceinline__ void tma_store4(const TmaProblem& p, int row, int col,
                                           const float* sum) {
  if (row >= p.m) return;
  float* const to = p.d + row * p.ldd + col;
  if (p.plain && col + 4 <= p.n) {
    const float a = p.alpha;
    *reinterpret_cast<float4*>(to) = make_float4(a * sum[0], a * sum[1], a * sum[2], a * sum[3]);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (col + j < p.n) to[j] = tma_result(p, sum[j], row, col + j);
  }
}

// Tile `index` in bands of eight tile rows: what runs at the same time is nearly square and shares
// its operands in L2.
__device__ __forceinline__ void tma_place(const TmaProblem& p, int index, int* row, int* col) {
  constexpr int kBand = 8;
  const int first = index / (kBand * p.across) * kBand;
  const int height = min(kBand, p.down - first), inside = index - first * p.across;
  *row = (first + inside % height) * kTmaRows;
  *col = inside / height;
}

template <int kCols, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(TmaTile<kCols>::kThreads, kCols == 256 ? 1 : 2)
    sgemm_tma_kernel(const __grid_constant__ CUtensorMap map_a,
                     const __grid_constant__ CUtensorMap map_b, const TmaProblem p) {
#if __CUDA_ARCH__ >= 900
  using Tile = TmaTile<kCols>;
  constexpr int kStages = Tile::kStages;
  constexpr int kLaneRows = 4, kLaneCols = 8;  // a warp: 64 x 64 outputs
  using Left = TmaFragments<kAAlongK, kTmaPatchRows, kLaneRows, kTmaRows>;
  using Right = TmaFragments<kBAlongK, kTmaPatchCols, kLaneCols, kCols>;

  extern __shared__ unsigned char raw[];
  __shared__ __align__(8) uint64_t full[kStages], empty[kStages];
  const uint32_t stages = (tma::address(raw) + 1023u) & ~1023u;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int lane_row = lane / kLaneCols, lane_col = lane % kLaneCols;
  const int warp_row = warp % 2 * 64, warp_col = warp / 2 * 64;

  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      tma::init(&full[s], 1);
      tma::init(&empty[s], Tile::kThreads / 32);
    }
    tma::fence_init();
  }
  __syncthreads();  // the barriers are ready

  // This block's share of k; the blocks of a cluster take consecutive ones.
  const int splits = p.splits, rank = static_cast<int>(blockIdx.x) % splits;
  const int k_first = p.k_tiles * rank / splits;
  const int k_count = p.k_tiles * (rank + 1) / splits - k_first;
  const int tiles = p.down * p.across, stride = static_cast<int>(gridDim.x) / splits;
  const int first_tile = static_cast<int>(blockIdx.x) / splits;

  // Thread 0 asks for one tile of k after another, kStages ahead of where they are used.
  int ask_tile = first_tile, ask_k = 0;
  const auto ask = [&](int stage) {
    if (ask_tile >= tiles) return;
    int row, col;
    tma_place(p, ask_tile, &row, &col);
    col *= kCols;
    const int k = (k_first + ask_k) * kTmaDepth;
    const uint32_t to = stages + static_cast<uint32_t>(stage * Tile::kStageBytes);
    tma::expect(&full[stage], Tile::kStageBytes);
    tma::copy(to, &map_a, &full[stage], kAAlongK ? k : row, kAAlongK ? row : k);
    tma::copy(to + kTmaRows * kTmaDepth * 4, &map_b, &full[stage], kBAlongK ? k : col,
              kBAlongK ? col : k);
    if (++ask_k == k_count) {
      ask_k = 0;
      ask_tile += stride;
    }
  };
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) ask(s);
  }

  const uint32_t lane_a = stages + Left::offset(warp_row, lane_row);
  const uint32_t lane_b = stages + kTmaRows * kTmaDepth * 4 + Right::offset(warp_col, lane_col);
  const uint32_t start_a = Left::chunk_offset(0, lane_row);
  const uint32_t start_b = Right::chunk_offset(0, lane_col);
  int stage = 0, last_stage = -1;  // being read, and read before
  uint32_t phase = 0, last_phase = 0;

  for (int tile = first_tile; tile < tiles; tile += stride) {
    float sum[kTmaPatchRows][kTmaPatchCols] = {};
    Left left;
    Right right;
    tma::wait(&full[stage], phase);
    uint32_t now = static_cast<uint32_t>(stage * Tile::kStageBytes);
    left.load(0, kTmaPatchRows, lane_a + now, start_a, 0);
    right.load(0, kTmaPatchCols, lane_b + now, start_b, 0);

#pragma unroll 1
    for (int kt = 0; kt < k_count; ++kt) {
      const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
      const uint32_t next_phase = stage + 1 == kStages ? phase ^ 1u : phase;
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        // Half a tile later the other warps have left the last stage too: the wait is a formality.
        if (half == 1 && thread == 0 && last_stage >= 0) {
          tma::wait(&empty[last_stage], last_phase);
          ask(last_stage);
        }
#pragma unroll kTmaUnroll
        for (int quarter = 0; quarter < kTmaChunks / 2; ++quarter) {
          const int chunk = half * (kTmaChunks / 2) + quarter;
          const uint32_t chunk_b = Right::chunk_offset(chunk, lane_col);
          const uint32_t chunk_a = Left::chunk_offset(chunk, lane_row);
          uint32_t next = now, next_a = Left::chunk_offset(chunk + 1, lane_row),
                   next_b = Right::chunk_offset(chunk + 1, lane_col);
          if (chunk == kTmaChunks - 1) {
            next_a = start_a;
            next_b = start_b;
            // After the last tile of k nothing follows: this stage's first chunk is read in vain.
            if (kt + 1 < k_count) {
              tma::wait(&full[next_stage], next_phase);
              next = static_cast<uint32_t>(next_stage * Tile::kStageBytes);
            }
          }
          // Registers roll: what a step has used for the last time is loaded for the next one. A
          // step goes over its columns in halves, so that half a step lies between load and use.
#pragma unroll
          for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
              constexpr int kHalf = kTmaPatchCols / 2;
#pragma unroll
              for (int i = 0; i < kTmaPatchRows; ++i) {
#pragma unroll
                for (int j = side * kHalf; j < (side + 1) * kHalf; ++j)
                  sum[i][j] += left.at(i, k) * right.at(j, k);
                if (side == 0) continue;
                if (kAAlongK && k == 3) left.load(i, i + 1, lane_a + next, next_a, 0);
                if (!kAAlongK && i % 4 == 3) {
                  if (k < 3)
                    left.load(i - 3, i + 1, lane_a + now, chunk_a, k + 1);
                  else
                    left.load(i - 3, i + 1, lane_a + next, next_a, 0);
                }
              }
              const int begin = side * kHalf, end = begin + kHalf;
              if (k == 3)
                right.load(begin, end, lane_b + next, next_b, 0);
              else if (!kBAlongK)
                right.load(begin, end, lane_b + now, chunk_b, k + 1);
            }
          }
          if (chunk == kTmaChunks - 1) now = next;
        }
      }
      __syncwarp();  // all lanes have used what they read from this stage
      if (lane == 0) tma::arrive(&empty[stage]);
      last_stage = stage;
      last_phase = phase;
      stage = next_stage;
      phase = next_phase;
    }

    int row0, col0;
    tma_place(p, tile, &row0, &col0);
    col0 *= kCols;
    if (splits == 1) {
#pragma unroll
      for (int i = 0; i < kTmaPatchRows; ++i) {
        const int row = row0 + warp_row + Left::row(i, lane_row);
        if constexpr (kBAlongK) {
#pragma unroll
          for (int j = 0; j < kTmaPatchCols; ++j) {
            const int col = col0 + warp_col + Right::row(j, lane_col);
            if (row < p.m && col < p.n) p.d[row * p.ldd + col] = tma_result(p, sum[i][j], row, col);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kTmaPatchCols; j += 4)
            tma_store4(p, row, col0 + warp_col + Right::row(j, lane_col), sum[i] + j);
        }
      }
      continue;
    }
    // The stages are free now (a cluster has one tile only): they hold this block's sums.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTmaPatchRows; ++i) {
#pragma unroll
      for (int j = 0; j < kTmaPatchCols; ++j) {
        const int row = warp_row + Left::row(i, lane_row), col = warp_col + Right::row(j, lane_col);
        tma::store(stages + static_cast<uint32_t>((row * kCols + col) * 4), sum[i][j]);
      }
    }
    tma::cluster_sync();  // all sums of the cluster are written
    const int begin = kTmaRows * rank / splits, end = kTmaRows * (rank + 1) / splits;
    for (int e = begin * kCols + 4 * thread; e < end * kCols; e += 4 * Tile::kThreads) {
      float total[4] = {};
      for (int r = 0; r < splits; ++r) {
        float part[4];
        tma::cluster_load4(part, stages + static_cast<uint32_t>(e * 4), r);
#pragma unroll
        for (int j = 0; j < 4; ++j) total[j] += part[j];
      }
      tma_store4(p, row0 + e / kCols, col0 + e % kCols, total);
    }
    tma::cluster_sync();  // nobody leaves while others read its sums
  }
#endif
}

template <int kCols, bool kAAlongK, bool kBAlongK>
TmaKernel tma_kernel() {
  return {reinterpret_cast<const void*>(sgemm_tma_kernel<kCols, kAAlongK, kBAlongK>),
          TmaTile<kCols>::kThreads, TmaTile<kCols>::kSharedBytes};
}

}  // namespace saturate::kernels
