// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/device/early_launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/few_rows/few_rows.h"

namespace saturate::kernels::few_rows {

constexpr int kThreads = 32 * kWarps;
constexpr int kHalf = 32;  // of k: sixteen bytes of each of four threads a row

struct Args {
  const void* a;
  const void* b;
  int m, n, k, warps_k;
  int64_t lda, ldb;
  EpilogueRow out;
};

// Sixteen bytes as four registers of two values each.
struct Chunk {
  uint32_t v[4] = {};
};

// `valid`: whether there is anything to read.
__device__ __forceinline__ Chunk read(const void* from, bool valid) {
  Chunk c;
  if (valid) {
    const uint4 u = *static_cast<const uint4*>(from);
    c.v[0] = u.x, c.v[1] = u.y, c.v[2] = u.z, c.v[3] = u.w;
  }
  return c;
}
// Of what one warp of the grid reads once: not kept in the first-level cache.
__device__ __forceinline__ Chunk read_once(const void* from, bool valid) {
  Chunk c;
  if (valid)
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3])
                 : "l"(from));
  return c;
}

// kStep of k a turn, kAhead turns asked for before they are multiplied: as many as registers hold.
template <int kRows8, int kColumns8>
struct Shape {
  static constexpr int kTiles = (kRows8 + 1) / 2;  // of sixteen rows
  static constexpr int kHalves = kRows8 + kColumns8 >= 8 ? 1 : 2;
  static constexpr int kStep = kHalf * kHalves;
  static constexpr int kRegisters = kHalves * 4 * (kRows8 + kColumns8);  // of a turn
  static constexpr int kAhead = kRegisters <= 16 ? 4 : kRegisters <= 24 ? 3 : 2;
  static constexpr int kColumns = 8 * kColumns8;  // of a warp
  // Of the sums in shared memory, of which there are at most 48 KiB: spreads rows over the banks.
  static constexpr bool kSpread = kColumns8 > 1 && kRows8* kColumns8 < 16;
  static constexpr int kSumLd = kSpread ? kColumns + 8 : kColumns;
};

template <class T, class S, int kRows8, int kColumns8>
struct Turn {
  Chunk a[S::kHalves][kRows8], b[S::kHalves][kColumns8];

  // From k0 on, where `a` and `b` point at the thread's row and chunk at k = 0.
  __device__ __forceinline__ void read_at(const T* a0, const T* const (&b0)[kColumns8], int k0,
                                          const Args& p, int row, const bool (&column)[kColumns8],
                                          int chunk) {
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
      const int at = k0 + h * kHalf;
      const bool here = at + chunk < p.k;
#pragma unroll
      for (int j = 0; j < kColumns8; ++j) b[h][j] = read_once(b0[j] + at, here && column[j]);
#pragma unroll
      for (int r = 0; r < kRows8; ++r)
        a[h][r] = read(a0 + 8 * r * p.lda + at, here && row + 8 * r < p.m);
    }
  }
  __device__ __forceinline__ void multiply(float (&sums)[S::kTiles][kColumns8][4]) const {
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
#pragma unroll
      for (int q = 0; q < 2; ++q) {  // of the chunk: registers 0, 1, then 2, 3
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
          const Chunk& low = a[h][2 * t];
          uint32_t left[4] = {low.v[2 * q], 0, low.v[2 * q + 1], 0};
          if constexpr (kRows8 > 1) {
            const Chunk& high = a[h][2 * t + 1];
            left[1] = high.v[2 * q], left[3] = high.v[2 * q + 1];
          }
#pragma unroll
          for (int j = 0; j < kColumns8; ++j)
            multiply_add<T>(sums[t][j], left, b[h][j].v[2 * q], b[h][j].v[2 * q + 1]);
        }
      }
    }
  }
};

template <class T, int kRows8, int kColumns8>
__global__ void __launch_bounds__(kThreads)
    matmul_few_rows_mma_kernel(const __grid_constant__ Args p) {
  using S = Shape<kRows8, kColumns8>;
  __shared__ float parts[kWarps][8 * kRows8][S::kSumLd];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = warp % p.warps_k, warps_n = kWarps / p.warps_k;
  const int row = lane() / 4, chunk = lane() % 4 * 8;
  const int first = static_cast<int>(blockIdx.x) * S::kColumns * warps_n;  // column of the block
  const T* b[kColumns8];
  bool column[kColumns8];
#pragma unroll
  for (int j = 0; j < kColumns8; ++j) {
    const int at = first + warp / p.warps_k * S::kColumns + 8 * j + row;
    column[j] = at < p.n;
    b[j] = static_cast<const T*>(p.b) + at * p.ldb + chunk;
  }
  const int stride = S::kStep * p.warps_k;
  // What the warp reads first, while the kernel before this one still runs.
#pragma unroll
  for (int i = 0; i < S::kAhead; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
      const int at = part * S::kStep + i * stride;
      if (column[j] && at + chunk < p.k) prefetch_to_l2(b[j] + at);
    }
  }
  change_over();

  const T* const a = static_cast<const T*>(p.a) + row * p.lda + chunk;
  float sums[S::kTiles][kColumns8][4] = {};
  Turn<T, S, kRows8, kColumns8> turns[S::kAhead];
  int k0 = part * S::kStep;
#pragma unroll
  for (int i = 0; i < S::kAhead; ++i)
    turns[i].read_at(a, b, k0 + i * stride, p, row, column, chunk);
  for (; k0 < p.k; k0 += S::kAhead * stride) {
#pragma unroll
    for (int i = 0; i < S::kAhead; ++i) {
      turns[i].multiply(sums);
      turns[i].read_at(a, b, k0 + (i + S::kAhead) * stride, p, row, column, chunk);
    }
  }

#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
      const int c = 8 * j + lane() % 4 * 2;
      float* const to = &parts[warp][16 * t + row][c];
      to[0] = sums[t][j][0], to[1] = sums[t][j][1];
      if constexpr (kRows8 > 1) {
        to[8 * S::kSumLd] = sums[t][j][2], to[8 * S::kSumLd + 1] = sums[t][j][3];
      }
    }
  }
  __syncthreads();
  const int packs = kColumns8 * warps_n;  // of eight columns, of the block
  for (int i = static_cast<int>(threadIdx.x); i < packs * p.m; i += kThreads) {
    const int r = i / packs, pack = i % packs;
    const int col = first + 8 * pack;
    if (col >= p.n) continue;
    float v[8] = {}, none[8];
    for (int w = 0; w < p.warps_k; ++w) {
      const float* const from = &parts[pack / kColumns8 * p.warps_k + w][r][pack % kColumns8 * 8];
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] += from[e];
    }
    p.out.template apply<T, false>(r, col, v, none);
  }
}

template <class T, int kRows8, int kColumns8>
cudaError_t launch_shape(const Args& args, int blocks, bool early, cudaStream_t stream) {
  return launch_kernel(early, matmul_few_rows_mma_kernel<T, kRows8, kColumns8>,
                       dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, args);
}

template <class T, int kRows8>
cudaError_t launch_rows(const Args& args, int columns8, int blocks, bool early,
                        cudaStream_t stream) {
  switch (columns8) {
    case 1:
      return launch_shape<T, kRows8, 1>(args, blocks, early, stream);
    case 2:
      return launch_shape<T, kRows8, 2>(args, blocks, early, stream);
    case 4:
      if constexpr (kRows8 < 8) return launch_shape<T, kRows8, 4>(args, blocks, early, stream);
      [[fallthrough]];
    default:
      return cudaErrorInvalidValue;
  }
}

template <class T>
cudaError_t launch(const MatmulArgs& x, const Plan& plan, bool early, cudaStream_t stream) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const Epilogue& e = x.epilogue;
  const bool wide = aligned(x.c) && aligned(x.d) && aligned(x.bias) && aligned(e.aux) &&
                    x.ldc % 8 == 0 && x.ldd % 8 == 0 && e.ld_aux % 8 == 0;
  const Args args{.a = x.a,
                  .b = x.b,
                  .m = static_cast<int>(x.m),
                  .n = static_cast<int>(x.n),
                  .k = static_cast<int>(x.k),
                  .warps_k = plan.warps_k,
                  .lda = x.lda,
                  .ldb = x.ldb,
                  .out = {.c = x.c,
                          .d = x.d,
                          .bias = x.bias,
                          .ldc = x.ldc,
                          .ldd = x.ldd,
                          .n = static_cast<int>(x.n),
                          .alpha = x.alpha,
                          .beta = x.beta,
                          .d_is_f32 = x.d_type == DType::f32,
                          .wide = wide,
                          .e = e}};
  const int columns = columns_of_block(plan);
  const int blocks = (args.n + columns - 1) / columns;
  switch (plan.rows8) {
    case 1:
      return launch_rows<T, 1>(args, plan.columns8, blocks, early, stream);
    case 2:
      return launch_rows<T, 2>(args, plan.columns8, blocks, early, stream);
    case 4:
      return launch_rows<T, 4>(args, plan.columns8, blocks, early, stream);
    case 8:
      return launch_rows<T, 8>(args, plan.columns8, blocks, early, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace saturate::kernels::few_rows
