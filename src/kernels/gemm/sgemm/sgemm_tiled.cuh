// SPDX-License-Identifier: Apache-2.0
// Rung 8: the parametric kernel, whose best parameters a tuner finds.
//
// Idea       warp tiling with every size a template parameter, plus three changes:
//            1. cp.async copies global memory straight to shared memory, STAGES tiles deep: no
//               registers in between and no wait for a tile that was asked for in time.
//            2. A is not transposed. A thread reads four steps of k of a row with one 16-byte load
//               (as many loads as before) and keeps them in registers. Rows follow each other in
//               shared memory with their 16-byte chunks permuted (xor with the row), so that rows
//               in a column of chunks lie in different banks.
//            3. Registers roll: the place of a row's four elements, or of half a row of B, is
//            filled
//               for the next step right after its last use, half a step before its next use.
// Intensity  256 x 128 tile: 43 flops a byte of global memory. A 16 x 8 patch: 24 shared loads of
// 16
//            bytes for 512 multiply-adds, 95.5% of issued instructions are multiply-adds.
// Occupancy  8 warps a multiprocessor, two a scheduler, 255 registers a thread.
// Predicted  66.9 TFLOP/s x 0.955 (loads) x 0.97 (last wave at 4096) x 0.85 (barriers, register
//            banks, clock under load) = 52 TFLOP/s.
//
// This file compiles by itself (NVRTC: no include, no host code). Rules for the parameters:
//   threads = 32 BM BN / (WM WN), at most 1024     BM % WM == 0, BN % WN == 0
//   (WM / TM) (WN / TN) == 32, both powers of two  WM % TM == 0, WN % TN == 0, TN % 4 == 0
//   BK one of 8, 16, 32, 64                        WM % 8 == 0
//   threads % (2 BK) == 0 or threads % (BK / 4) == 0 with WM as a multiple of 8 (copies of A)
//   BM BK / 4 and BN BK / 4 are multiples of threads (whole copies)
//   threads % (BN / 4) == 0 (a thread keeps its column of B)
//   shared memory: 4 STAGES (BM + BN) BK bytes, at most what a block may have (227 KB on sm_90,
//     99 KB on sm_86, 64 KB on sm_75); STAGES >= 2
//   registers: about TM TN + 4 TM + TN + 40 a thread, at most 255 and 65536 / threads
//   ALIGN 4: a, b, c, d on 16 bytes and leading dimensions multiples of 4; ALIGN 1: anything
// Launch: grid (ceil(m / BM) ceil(n / BN), 1, 1), block (threads, 1, 1).
#pragma once

namespace saturate::kernels {

template <int BM, int BN, int BK, int TM, int TN, int WM, int WN, int STAGES>
struct SgemmTile {
  static constexpr int kThreads = 32 * (BM / WM) * (BN / WN);
  static constexpr int kSharedBytes = STAGES * (BM + BN) * BK * 4;
  static constexpr int kLaneRows = WM / TM, kLaneCols = WN / TN;
  static constexpr int kChunks = BK / 4;  // of 16 bytes in a row of A
  static constexpr int kCopiesA = BM * kChunks / kThreads, kCopiesB = BN * kChunks / kThreads;
  static constexpr bool kValid =
      BM % WM == 0 && BN % WN == 0 && WM % TM == 0 && WN % TN == 0 && TN % 4 == 0 &&
      kLaneRows * kLaneCols == 32 && WM % 8 == 0 && kThreads <= 1024 &&
      (BK == 8 || BK == 16 || BK == 32 || BK == 64) && kThreads % kChunks == 0 &&
      BM * kChunks % kThreads == 0 && BN * kChunks % kThreads == 0 && kThreads % (BN / 4) == 0 &&
      BK % (kThreads / (BN / 4)) == 0 && STAGES >= 2;

  // The permutation of chunks: any 8 neighbouring rows have their chunk c in 8 different 16-byte
  // columns of the banks.
  static __device__ __forceinline__ constexpr int twist(int row) {
    return kChunks >= 8 ? row & 7 : (row * kChunks >> 3) & (kChunks - 1);
  }
};

// Copies `bytes` of 4 ALIGN to shared memory and fills the rest with zeros.
template <int ALIGN>
__device__ __forceinline__ void sgemm_copy(float* to, const float* from, int floats) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (ALIGN == 4) {
    const int bytes = floats <= 0 ? 0 : (floats >= 4 ? 16 : 4 * floats);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address + 4 * i),
                   "l"(i < floats ? from + i : from), "r"(i < floats ? 4 : 0)
                   : "memory");
    }
  }
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = i < floats ? from[i] : 0.0f;
#endif
}
__device__ __forceinline__ void sgemm_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void sgemm_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Tile `index` in an order that walks down bands of eight tile rows: tiles that run at the same
// time form a near square, whose rows and columns stay in the L2 cache.
__device__ __forceinline__ void sgemm_band(long long index, long long down, long long across,
                                           long long* tile_row, long long* tile_col) {
  constexpr long long kBand = 8;
  const long long band = index / (kBand * across), first = band * kBand;
  const long long height = down - first < kBand ? down - first : kBand;
  const long long inside = index - first * across;
  *tile_row = first + inside % height;
  *tile_col = inside / height;
}

// d = alpha a b + beta c; a (m, k), b (k, n), c and d (m, n), row-major. c may be d.
template <int BM, int BN, int BK, int TM, int TN, int WM, int WN, int STAGES, int ALIGN = 4>
__global__ void __launch_bounds__(SgemmTile<BM, BN, BK, TM, TN, WM, WN, STAGES>::kThreads)
    sgemm_tiled(long long m, long long n, long long k, float alpha, const float* __restrict__ a,
                long long lda, const float* __restrict__ b, long long ldb, float beta,
                const float* c, long long ldc, float* d, long long ldd) {
  using Tile = SgemmTile<BM, BN, BK, TM, TN, WM, WN, STAGES>;
  static_assert(Tile::kValid, "see the rules above");
  constexpr int kThreads = Tile::kThreads, kChunks = Tile::kChunks;
  extern __shared__ __align__(128) float shared[];
  float* const shared_a = shared;                     // [STAGES][BM][BK], chunks permuted
  float* const shared_b = shared + STAGES * BM * BK;  // [STAGES][BK][BN]

  long long tile_row, tile_col;
  sgemm_band(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, &tile_row, &tile_col);
  const long long row0 = tile_row * BM, col0 = tile_col * BN;

  // What this thread copies: chunks of rows a_row + i a_step of A and rows b_row + i b_step of B.
  const int t = static_cast<int>(threadIdx.x);
  constexpr int kStepA = kThreads / kChunks, kAcross = BN / 4, kStepB = kThreads / kAcross;
  const int a_row = t / kChunks, a_chunk = t % kChunks;
  const int b_row = t / kAcross, b_col = t % kAcross * 4;
  const int rows_left = static_cast<int>(m - row0 < BM ? m - row0 : BM);
  const int cols_left = static_cast<int>(n - col0 - b_col < 4 ? n - col0 - b_col : 4);
  const float* from_a = a + (row0 + a_row) * lda + 4 * a_chunk;
  const float* from_b = b + b_row * ldb + col0 + b_col;
  long long k_left = k;  // from the tile to be copied next
  const auto copy = [&](int stage) {
    float* const to_a = shared_a + stage * (BM * BK);
    float* const to_b = shared_b + stage * (BK * BN) + b_row * BN + b_col;
    const int left = static_cast<int>(k_left < BK ? k_left : BK);  // may be negative: all zeros
#pragma unroll
    for (int i = 0; i < Tile::kCopiesA; ++i) {
      const int row = a_row + i * kStepA;
      const int floats = row < rows_left ? left - 4 * a_chunk : 0;
      sgemm_copy<ALIGN>(to_a + row * BK + 4 * (a_chunk ^ Tile::twist(row)),
                        floats > 0 ? from_a + i * kStepA * lda : a, floats);
    }
#pragma unroll
    for (int i = 0; i < Tile::kCopiesB; ++i) {
      const int floats = b_row + i * kStepB < left ? cols_left : 0;
      sgemm_copy<ALIGN>(to_b + i * kStepB * BN, floats > 0 ? from_b + i * kStepB * ldb : b, floats);
    }
    from_a += BK;
    from_b += BK * ldb;
    k_left -= BK;
    sgemm_commit();
  };
  const int tiles = static_cast<int>((k + BK - 1) / BK);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage);

  // Where this thread's patch lies in the tile: rows kLaneRows apart, columns in groups of four.
  const int warp = t / 32, lane = t % 32;
  const int lane_row = lane / Tile::kLaneCols, lane_col = lane % Tile::kLaneCols;
  const int y = warp / (BN / WN) * WM + lane_row, x = warp % (BN / WN) * WN + lane_col * 4;
  constexpr int kGroups = TN / 4;
  constexpr int kNear = kGroups > 1 ? kGroups / 2 : 1;  // groups in the first half of a step

  float sum[TM][TN] = {};
  float left[TM][4], right[TN];
  const auto load_a = [&](int i, const float* base, int chunk) {
    const int at = (chunk ^ Tile::twist(lane_row)) ^ Tile::twist(i * Tile::kLaneRows);
    *reinterpret_cast<float4*>(left[i]) =
        *reinterpret_cast<const float4*>(base + (y + i * Tile::kLaneRows) * BK + 4 * at);
  };
  const auto load_b = [&](int g, const float* base, int kk) {
    *reinterpret_cast<float4*>(right + 4 * g) =
        *reinterpret_cast<const float4*>(base + kk * BN + x + g * Tile::kLaneCols * 4);
  };

  int stage = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    sgemm_wait<STAGES - 2>();
    // This tile has arrived for all, and nobody reads the stage that the next copy overwrites.
    __syncthreads();
    copy(stage == 0 ? STAGES - 1 : stage - 1);
    const float* const base_a = shared_a + stage * (BM * BK);
    const float* const base_b = shared_b + stage * (BK * BN);
#pragma unroll
    for (int i = 0; i < TM; ++i) load_a(i, base_a, 0);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) load_b(g, base_b, 0);
#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int begin = half == 0 ? 0 : 4 * kNear, end = half == 0 ? 4 * kNear : TN;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int j = begin; j < end; ++j) sum[i][j] += left[i][kk % 4] * right[j];
          // A row has been used by both halves of the last step of its chunk.
          if (half == 1 && kk % 4 == 3 && kk + 1 < BK) load_a(i, base_a, kk / 4 + 1);
        }
        if (kk + 1 < BK) {
#pragma unroll
          for (int g = begin / 4; g < end / 4; ++g) load_b(g, base_b, kk + 1);
        }
      }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  sgemm_wait<0>();

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const long long row = row0 + y + i * Tile::kLaneRows;
    if (row >= m) continue;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const long long col = col0 + x + g * Tile::kLaneCols * 4;
      const float* const from = c + row * ldc + col;
      float* const to = d + row * ldd + col;
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = alpha * sum[i][4 * g + j];
      if (ALIGN == 4 && col + 4 <= n) {
        if (beta != 0.0f) {
          const float4 old = *reinterpret_cast<const float4*>(from);
          v[0] += beta * old.x, v[1] += beta * old.y, v[2] += beta * old.z, v[3] += beta * old.w;
        }
        *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (col + j < n) to[j] = beta != 0.0f ? v[j] + beta * from[j] : v[j];
        }
      }
    }
  }
}

}  // namespace saturate::kernels
