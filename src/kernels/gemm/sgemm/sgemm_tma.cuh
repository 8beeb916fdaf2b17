// SPDX-License-Identifier: Apache-2.0
// Rung 9, Hopper: TMA feeds the multiply-adds.
//
// Idea       An FFMA a clock fills a scheduler's only issue slot, so every other instruction and
//            every lost operand read costs speed. Rung 8's 16 x 8 outputs a thread stay; what goes
//            away:
//            1. TMA: one thread asks for a whole tile with two instructions; addresses, bounds and
//               the zeros outside the matrix are the engine's.
//            2. mbarriers instead of block barriers: warps may drift apart by half a tile and more,
//               so that one's waits are another's multiply-adds.
//            3. Persistent blocks: the first tiles of the next output are under way while the last
//               one is written.
//            4. The engine cannot transpose fp32. A tile whose rows run along k (A in NN, both in
//               NT) comes with the 128-byte swizzle and is turned by all threads through registers,
//               half a tile ahead of its use: 8 instructions for 4096 multiply-adds of a thread.
//               Reading it along k instead puts a row's four steps into one group of registers,
//               where element and sum collide in a bank half the time: 38 instead of 49 TFLOP/s.
//            5. Small products: the blocks of a cluster share k and add up through each other's
//               shared memory, in the order of their ranks, so that results repeat bit by bit.
//            No producer warp: it would take registers, and asking for a tile is 100 instructions
//            of one thread for 4096 multiply-adds of each.
// Intensity  128 x 256 tile: 43 flops a byte from L2, 48 loads for 1024 multiply-adds of a thread.
// Occupancy  8 warps a multiprocessor (one block of 128 x 256 or two of 128 x 128).
// Predicted  66.9 TFLOP/s x 0.97 (last wave at 4096) / 1.14 clocks a multiply-add (0.07 for other
//            instructions, 0.07 for operands in one bank, counted in the SASS) = 57 TFLOP/s.
#pragma once
#include <cuda.h>

#include "kernels/gemm/sgemm/sgemm_tma.h"
#include "kernels/gemm/sgemm/sgemm_tma_device.cuh"

namespace saturate::kernels {

constexpr int kTmaSteps = 8;  // of k in the body of the inner loop: 1024 multiply-adds

// kCols 256: 256 threads, one block a multiprocessor. kCols 128: 128 threads, two.
template <int kCols, bool kAAlongK, bool kBAlongK>
struct TmaTile {
  static constexpr int kThreads = kCols, kWarps = kThreads / 32, kDepth = tma_depth(kCols);
  static constexpr bool kTurns = kAAlongK || kBAlongK;     // an operand is turned
  static constexpr bool kDirect = !kAAlongK || !kBAlongK;  // an operand is read as it arrives
  static constexpr int kBytesA = kTmaRows * kDepth * 4, kBytesB = kCols * kDepth * 4;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kTurnedBytes = (kAAlongK ? kBytesA : 0) + (kBAlongK ? kBytesB : 0);
  // As many stages as fit in what a block may have: all of it, or half of it for two blocks.
  static constexpr int kBudget = (kCols == 256 ? 226 : 110) * 1024;
  static constexpr int kStages = (kBudget - 2 * kTurnedBytes) / kStageBytes;
  static_assert(kStages >= 2);
  // A thread's patch and a warp's lanes, 64 x 64 outputs. Which way round the compiler finds the
  // better registers was measured (LADDER.md): 49.4 for 47.6 TFLOP/s where only A is turned.
  static constexpr int kPatchRows = kAAlongK && !kBAlongK ? 8 : 16, kPatchCols = 128 / kPatchRows;
  static constexpr int kLaneRows = 64 / kPatchRows, kLaneCols = 64 / kPatchCols;
  // 1024: the swizzle counts from there.
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kTurnedBytes + 1024;
  static_assert(kSharedBytes - 1024 >= kTmaRows * kCols * 4, "the sums of a cluster fit");
};

// A tile of kWidth rows that run along k, as TMA swizzled it, becomes kDepth rows
// across k: 4 x 4 elements at a time, through registers. Neighbours in a row of the result are
// kWidth / 4 apart in the matrix, so that neighbouring lanes read neighbouring rows, whose chunks
// lie in different banks, and write neighbouring groups.
template <int kWidth, int kDepth, int kThreads>
__device__ __forceinline__ void tma_turn(uint32_t from, uint32_t to, int thread) {
  constexpr int kGroups = kWidth / 4, kChunks = kDepth / 4;
  static_assert(kGroups * kChunks % kThreads == 0);
#pragma unroll
  for (int block = 0; block < kGroups * kChunks; block += kThreads) {
    const int group = (block + thread) % kGroups, chunk = (block + thread) / kGroups;
    float v[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = group + e * kGroups;
      const int twist = kChunks == 8 ? row & 7 : (row >> 1) & 3;
      tma::load4(v[e], from + static_cast<uint32_t>((row * kChunks + (chunk ^ twist)) * 16));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float turned[4] = {v[0][e], v[1][e], v[2][e], v[3][e]};
      tma::store4(to + static_cast<uint32_t>(((4 * chunk + e) * kWidth + 4 * group) * 4), turned);
    }
  }
}

// What a thread holds of an operand at one step of k: groups of four neighbours, 4 kLanes apart.
template <int kCount, int kLanes, int kWidth>
struct TmaFragment {
  float v[kCount];
  __device__ __forceinline__ void load(uint32_t base, int step) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      tma::load4(v + i, base + static_cast<uint32_t>((step * kWidth + i * kLanes) * 4));
  }
};

// Place of element i in the tile; turned tiles hold the matrix in another order.
template <int kLanes, int kWidth, bool kTurned>
__device__ __forceinline__ int tma_row(int first, int lane, int i) {
  const int place = first + i / 4 * 4 * kLanes + 4 * lane + i % 4;
  return kTurned ? place / 4 + place % 4 * (kWidth / 4) : place;
}

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
__global__ void __launch_bounds__(kCols, kCols == 256 ? 1 : 2)
    sgemm_tma_kernel(const __grid_constant__ CUtensorMap map_a,
                     const __grid_constant__ CUtensorMap map_b, const TmaProblem p) {
#if __CUDA_ARCH__ >= 900
  using Tile = TmaTile<kCols, kAAlongK, kBAlongK>;
  constexpr int kStages = Tile::kStages, kDepth = Tile::kDepth;
  constexpr int kPatchRows = Tile::kPatchRows, kPatchCols = Tile::kPatchCols;
  using Left = TmaFragment<kPatchRows, Tile::kLaneRows, kTmaRows>;
  using Right = TmaFragment<kPatchCols, Tile::kLaneCols, kCols>;

  extern __shared__ unsigned char raw[];
  // full: a tile has come; turned: and its other order is written; done: and nobody needs it.
  __shared__ __align__(8) uint64_t full[kStages], turned[2], done[2];
  const uint32_t stages = (tma::address(raw) + 1023u) & ~1023u;
  const uint32_t turned_a = stages + kStages * Tile::kStageBytes;
  const uint32_t turned_b = turned_a + (kAAlongK ? 2 * Tile::kBytesA : 0);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int lane_row = lane / Tile::kLaneCols, lane_col = lane % Tile::kLaneCols;
  const int warp_row = warp % 2 * 64, warp_col = warp / 2 * 64;

  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) tma::init(&full[s], 1);
    for (int s = 0; s < 2; ++s) {
      tma::init(&turned[s], Tile::kWarps);
      tma::init(&done[s], Tile::kWarps);
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

  // Thread 0 asks for one tile of k after another.
  int ask_tile = first_tile, ask_k = 0, ask_stage = 0;
  const auto ask = [&] {
    if (ask_tile >= tiles) return;
    int row, col;
    tma_place(p, ask_tile, &row, &col);
    col *= kCols;
    const int k = (k_first + ask_k) * kDepth;
    const uint32_t to = stages + static_cast<uint32_t>(ask_stage * Tile::kStageBytes);
    tma::expect(&full[ask_stage], Tile::kStageBytes);
    tma::copy(to, &map_a, &full[ask_stage], kAAlongK ? k : row, kAAlongK ? row : k);
    tma::copy(to + Tile::kBytesA, &map_b, &full[ask_stage], kBAlongK ? k : col, kBAlongK ? col : k);
    ask_stage = ask_stage + 1 == kStages ? 0 : ask_stage + 1;
    if (++ask_k == k_count) {
      ask_k = 0;
      ask_tile += stride;
    }
  };
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) ask();
  }

  // Waits for a tile and turns what must be turned, all threads together.
  const auto receive = [&](int stage, uint32_t phase, int slot) {
    tma::wait(&full[stage], phase);
    const uint32_t from = stages + static_cast<uint32_t>(stage * Tile::kStageBytes);
    if constexpr (kAAlongK) {
      tma_turn<kTmaRows, kDepth, Tile::kThreads>(
          from, turned_a + static_cast<uint32_t>(slot * Tile::kBytesA), thread);
    }
    if constexpr (kBAlongK) {
      tma_turn<kCols, kDepth, Tile::kThreads>(
          from + Tile::kBytesA, turned_b + static_cast<uint32_t>(slot * Tile::kBytesB), thread);
    }
    __syncwarp();  // the warp's part is written
    if (lane == 0) tma::arrive(&turned[slot]);
  };
  const uint32_t lane_a =
      (kAAlongK ? turned_a : stages) + static_cast<uint32_t>((warp_row + 4 * lane_row) * 4);
  const uint32_t lane_b = (kBAlongK ? turned_b : stages + Tile::kBytesA) +
                          static_cast<uint32_t>((warp_col + 4 * lane_col) * 4);
  const auto place_a = [&](int stage, int slot) {
    return lane_a +
           static_cast<uint32_t>(kAAlongK ? slot * Tile::kBytesA : stage * Tile::kStageBytes);
  };
  const auto place_b = [&](int stage, int slot) {
    return lane_b +
           static_cast<uint32_t>(kBAlongK ? slot * Tile::kBytesB : stage * Tile::kStageBytes);
  };

  // The tile that is multiplied, the q-th of this block: in stage q % kStages and slot q % 2.
  int stage = 0, slot = 0;
  uint32_t phase = 0, slot_phase = 0;
  int left_over = first_tile < tiles ? (tiles - first_tile + stride - 1) / stride * k_count : 0;
  bool first = true;
  if (Tile::kTurns && left_over > 0) receive(0, 0, 0);

  for (int tile = first_tile; tile < tiles; tile += stride) {
    float sum[kPatchRows][kPatchCols] = {};
    Left left[2];
    Right right[2];
    if constexpr (Tile::kTurns)
      tma::wait(&turned[slot], slot_phase);
    else
      tma::wait(&full[stage], phase);
    uint32_t now_a = place_a(stage, slot), now_b = place_b(stage, slot);
    left[0].load(now_a, 0);
    right[0].load(now_b, 0);

#pragma unroll 1
    for (int kt = 0; kt < k_count; ++kt) {
      const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
      const uint32_t next_phase = stage + 1 == kStages ? phase ^ 1u : phase;
      --left_over;
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        if (half == 1) {
          // Half a tile later the other warps have left the last tile too: its stage can be filled
          // and its slot written. Where all is turned, this tile's stage is free already.
          if (!first && (Tile::kTurns || thread == 0))
            tma::wait(&done[slot ^ 1], slot == 0 ? slot_phase ^ 1u : slot_phase);
          if (thread == 0 && (!Tile::kDirect || !first)) ask();
          if (Tile::kTurns && left_over > 0) receive(next_stage, next_phase, slot ^ 1);
        }
#pragma unroll 1
        for (int part = 0; part < kDepth / 2; part += kTmaSteps) {
          const bool last = half == 1 && part == kDepth / 2 - kTmaSteps;
          uint32_t next_a = now_a + kTmaSteps * kTmaRows * 4,
                   next_b = now_b + kTmaSteps * kCols * 4;
          if (last && kt + 1 < k_count) {
            if constexpr (Tile::kTurns)
              tma::wait(&turned[slot ^ 1], slot == 0 ? slot_phase : slot_phase ^ 1u);
            else
              tma::wait(&full[next_stage], next_phase);
            next_a = place_a(next_stage, slot ^ 1);
            next_b = place_b(next_stage, slot ^ 1);
          } else if (last) {
            next_a = now_a;  // nothing follows: read in vain
            next_b = now_b;
          }
#pragma unroll
          for (int k = 0; k < kTmaSteps; ++k) {
            const int now = k % 2;
            left[now ^ 1].load(k + 1 < kTmaSteps ? now_a : next_a, (k + 1) % kTmaSteps);
            right[now ^ 1].load(k + 1 < kTmaSteps ? now_b : next_b, (k + 1) % kTmaSteps);
#pragma unroll
            for (int e = 0; e < kPatchRows * kPatchCols; ++e) {
              // There and back along the longer side: each multiply-add shares an operand with the
              // one before, which the reuse cache keeps, so that the two banks of registers (even
              // and odd, one operand a clock each) need to give only two.
              constexpr int kInner = kPatchRows > kPatchCols ? kPatchRows : kPatchCols;
              const int outer = e / kInner, back = kInner - 1 - e % kInner;
              const int inner = outer % 2 == 0 ? e % kInner : back;
              const int i = kInner == kPatchRows ? inner : outer;
              const int j = kInner == kPatchRows ? outer : inner;
              sum[i][j] += left[now].v[i] * right[now].v[j];
            }
          }
          now_a = next_a;
          now_b = next_b;
        }
      }
      __syncwarp();  // all lanes have used what they read
      if (lane == 0) tma::arrive(&done[slot]);
      stage = next_stage;
      phase = next_phase;
      slot_phase ^= static_cast<uint32_t>(slot);
      slot ^= 1;
      first = false;
    }

    int row0, col0;
    tma_place(p, tile, &row0, &col0);
    col0 *= kCols;
    const auto row_of = [&](int i) {
      return tma_row<Tile::kLaneRows, kTmaRows, kAAlongK>(warp_row, lane_row, i);
    };
    const auto col_of = [&](int j) {
      return tma_row<Tile::kLaneCols, kCols, kBAlongK>(warp_col, lane_col, j);
    };
    if (splits == 1) {
#pragma unroll
      for (int i = 0; i < kPatchRows; ++i) {
        const int row = row0 + row_of(i);
        if constexpr (kBAlongK) {
#pragma unroll
          for (int j = 0; j < kPatchCols; ++j) {
            const int col = col0 + col_of(j);
            if (row < p.m && col < p.n)
              p.d[row * p.ldd + col] =
                  p.plain ? p.alpha * sum[i][j] : tma_result(p, sum[i][j], row, col);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kPatchCols; j += 4) tma_store4(p, row, col0 + col_of(j), sum[i] + j);
        }
      }
      continue;
    }
    // The stages are free now (a cluster has one tile only): they hold this block's sums.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPatchRows; ++i) {
#pragma unroll
      for (int j = 0; j < kPatchCols; ++j)
        tma::store(stages + static_cast<uint32_t>((row_of(i) * kCols + col_of(j)) * 4), sum[i][j]);
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
  return {reinterpret_cast<const void*>(sgemm_tma_kernel<kCols, kAAlongK, kBAlongK>), kCols,
          TmaTile<kCols, kAAlongK, kBAlongK>::kSharedBytes};
}

template <int kCols>
TmaKernel sgemm_tma_kernel_of(bool a_along_k, bool b_along_k) {
  if (a_along_k)
    return b_along_k ? tma_kernel<kCols, true, true>() : tma_kernel<kCols, true, false>();
  return b_along_k ? tma_kernel<kCols, false, true>() : tma_kernel<kCols, false, false>();
}

}  // namespace saturate::kernels
