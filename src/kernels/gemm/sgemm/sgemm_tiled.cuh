// SPDX-License-Identifier: Apache-2.0
// Rung 8: the parametric kernel, whose best parameters a tuner finds.
//
// Idea       warp tiling with every size a template parameter, plus three changes:
//            1. cp.async copies global memory straight to shared memory, STAGES tiles deep: no
//               registers in between and no wait for a tile that was asked for in time. A is
//               transposed on the way, 4 bytes a copy.
//            2. The fragments of the next step are loaded before this step's multiply-adds.
//            3. A multiply-add reads three registers, and the two banks (even and odd) give one
//               each a clock. Going there and back over the patch, each shares an operand with the
//               one before, which the reuse cache keeps. Measured: 43.3 without, 47 TFLOP/s with.
// Intensity  256 x 128 tile: 43 flops a byte of global memory. A 16 x 8 patch: 6 shared loads of 16
//            bytes for 128 multiply-adds, 95.5% of what is issued.
// Occupancy  8 warps a multiprocessor, two a scheduler, about 210 registers a thread.
// Predicted  66.9 TFLOP/s x 0.955 (loads) x 0.97 (last wave at 4096) x 0.85 (the rest) = 52
//            TFLOP/s. The SASS says 1.34 clocks a multiply-add (0.14 other instructions, 0.20
//            operands in one bank), which is 48.
//
// This file compiles by itself (NVRTC: no include, no host code). SgemmTile::kValid has the rules:
//   threads = 32 BM BN / (WM WN), at most 1024     BM % WM == 0, BN % WN == 0
//   (WM / TM) (WN / TN) == 32                      WM % TM == 0, WN % TN == 0, TM and TN % 4 == 0
//   threads % BK == 0, BM % (threads / BK) == 0, BK % 4 == 0 (a thread keeps its column of A)
//   threads % (BN / 4) == 0, BK % (threads / (BN / 4)) == 0 (and its columns of B)
//   shared memory: 4 STAGES (BM + 4 + BN) BK bytes, at most what a block may have (227 KB on sm_90,
//     99 KB on sm_86, 64 KB on sm_75); STAGES >= 2
//   registers: about TM TN + 2 (TM + TN) + 40 a thread, at most 255 and 65536 / threads
//   ALIGN 4: b, c, d on 16 bytes and their leading dimensions multiples of 4; ALIGN 1: anything
// Launch: grid (ceil(m / BM) ceil(n / BN), 1, 1), block (threads, 1, 1).
#pragma once

namespace saturate::kernels {

template <int BM, int BN, int BK, int TM, int TN, int WM, int WN, int STAGES>
struct SgemmTile {
  static constexpr int kThreads = 32 * (BM / WM) * (BN / WN);
  static constexpr int kPitch = BM + 4;  // of a row of A's tile: spreads the copies over the banks
  static constexpr int kStageFloats = (kPitch + BN) * BK;
  static constexpr int kSharedBytes = 4 * STAGES * kStageFloats;
  static constexpr int kLaneRows = WM / TM, kLaneCols = WN / TN;
  static constexpr bool kValid =
      BM % WM == 0 && BN % WN == 0 && WM % TM == 0 && WN % TN == 0 && TM % 4 == 0 && TN % 4 == 0 &&
      kLaneRows * kLaneCols == 32 && kThreads <= 1024 && BK % 4 == 0 && BN % 4 == 0 &&
      BM % 4 == 0 && kThreads % BK == 0 && BM % (kThreads / BK) == 0 && kThreads % (BN / 4) == 0 &&
      BK % (kThreads / (BN / 4)) == 0 && STAGES >= 2;
};

// Copies the first of kCount floats that are in the matrix and fills the rest with zeros.
template <int kCount, bool kWide>
__device__ __forceinline__ void sgemm_copy(float* to, const float* from, int floats) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (kWide) {
    static_assert(kCount == 4);
    const int bytes = floats <= 0 ? 0 : (floats >= 4 ? 16 : 4 * floats);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address + 4 * i),
                   "l"(i < floats ? from + i : from), "r"(i < floats ? 4 : 0)
                   : "memory");
    }
  }
#else
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = i < floats ? from[i] : 0.0f;
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
  constexpr int kThreads = Tile::kThreads, kPitch = Tile::kPitch;
  extern __shared__ __align__(128) float shared[];  // a stage: A's tile [BK][BM], B's [BK][BN]

  long long tile_row, tile_col;
  sgemm_band(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, &tile_row, &tile_col);
  const long long row0 = tile_row * BM, col0 = tile_col * BN;

  // What this thread copies: element a_k of rows a_row + i kStepA of A, four columns of rows
  // b_row + i kStepB of B.
  const int t = static_cast<int>(threadIdx.x);
  constexpr int kStepA = kThreads / BK, kAcross = BN / 4, kStepB = kThreads / kAcross;
  const int a_row = t / BK, a_k = t % BK;
  const int b_row = t / kAcross, b_col = t % kAcross * 4;
  const int rows_left = static_cast<int>(m - row0 < BM ? m - row0 : BM);
  const int cols_left = static_cast<int>(n - col0 - b_col < 4 ? n - col0 - b_col : 4);
  const float* from_a = a + (row0 + a_row) * lda + a_k;
  const float* from_b = b + b_row * ldb + col0 + b_col;
  long long k_left = k;  // from the tile to be copied next
  const auto copy = [&](int stage) {
    float* const to_a = shared + stage * Tile::kStageFloats + a_k * kPitch + a_row;
    float* const to_b = shared + stage * Tile::kStageFloats + BK * kPitch + b_row * BN + b_col;
    const int left = static_cast<int>(k_left < BK ? k_left : BK);  // may be negative: all zeros
    const int rows = a_k < left ? rows_left - a_row : 0;
#pragma unroll
    for (int i = 0; i < BM / kStepA; ++i) {
      const bool inside = i * kStepA < rows;
      sgemm_copy<1, false>(to_a + i * kStepA, inside ? from_a + i * kStepA * lda : a, inside);
    }
#pragma unroll
    for (int i = 0; i < BK / kStepB; ++i) {
      const int floats = b_row + i * kStepB < left ? cols_left : 0;
      sgemm_copy<4, ALIGN == 4>(to_b + i * kStepB * BN, floats > 0 ? from_b + i * kStepB * ldb : b,
                                floats);
    }
    from_a += BK;
    from_b += BK * ldb;
    k_left -= BK;
    sgemm_commit();
  };
  const int tiles = static_cast<int>((k + BK - 1) / BK);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage);

  // Where this thread's patch lies in the tile: groups of four rows and of four columns.
  const int warp = t / 32, lane = t % 32;
  const int y = warp / (BN / WN) * WM + lane / Tile::kLaneCols * 4;
  const int x = warp % (BN / WN) * WN + lane % Tile::kLaneCols * 4;

  float sum[TM][TN] = {};
  float left[2][TM], right[2][TN];
  const auto load = [&](int to, const float* base, int kk) {
#pragma unroll
    for (int i = 0; i < TM; i += 4) {
      *reinterpret_cast<float4*>(left[to] + i) =
          *reinterpret_cast<const float4*>(base + kk * kPitch + y + i * Tile::kLaneRows);
    }
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      *reinterpret_cast<float4*>(right[to] + j) =
          *reinterpret_cast<const float4*>(base + BK * kPitch + kk * BN + x + j * Tile::kLaneCols);
    }
  };

  int stage = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    sgemm_wait<STAGES - 2>();
    // This tile has arrived for all, and nobody reads the stage that the next copy overwrites.
    __syncthreads();
    copy(stage == 0 ? STAGES - 1 : stage - 1);
    const float* const base = shared + stage * Tile::kStageFloats;
    load(0, base, 0);
#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
      const int now = kk % 2;
      if (kk + 1 < BK) load(now ^ 1, base, kk + 1);
      // There and back along the longer side of the patch: each multiply-add shares one operand
      // with the one before, which the reuse cache keeps.
      constexpr int kInner = TM > TN ? TM : TN;
#pragma unroll
      for (int e = 0; e < TM * TN; ++e) {
        const int outer = e / kInner, inner = outer % 2 ? kInner - 1 - e % kInner : e % kInner;
        const int i = TM > TN ? inner : outer, j = TM > TN ? outer : inner;
        sum[i][j] += left[now][i] * right[now][j];
      }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  sgemm_wait<0>();

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const long long row = row0 + y + i / 4 * 4 * Tile::kLaneRows + i % 4;
    if (row >= m) continue;
#pragma unroll
    for (int g = 0; g < TN / 4; ++g) {
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
