// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/device/fold_columns.h"
#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/mma/mma_block.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::mma {

// The right operand, whose columns a gated product takes in pairs of eight (epilogue.cuh).
template <class T, Storage kStorage>
struct RightSource {
  DenseSource<T> dense;
  int gated_n;  // columns of the gate; 0: columns as they are stored
};

template <int kStep, class T, Storage kStorage>
struct Walk<kStep, RightSource<T, kStorage>> {
  const RightSource<T, kStorage>& source;
  int row, col;
  Walk<kStep, DenseSource<T>> plain;
  __device__ __forceinline__ Walk(const RightSource<T, kStorage>& s, int row_, int col_)
      : source(s), row(row_), col(col_), plain(s.dense, row_, col_) {}
  __device__ __forceinline__ const T* chunk(int i, int& valid) const {
    const int n = source.gated_n;
    if (n == 0) return plain.chunk(i, valid);
    const int here = row + i * kStep, at = kStorage == Storage::by_depth ? here : col;
    const int left = n - at / 16 * 8;  // columns from here on, in this half
    if constexpr (kStorage == Storage::by_depth) {
      const Walk<1, DenseSource<T>> one(source.dense, gated_column(here, n), col);
      valid = at % 8 < left ? one.count : 0;
      return one.first;
    } else {
      const Walk<1, DenseSource<T>> one(source.dense, here, gated_column(col, n));
      valid = one.rows_left > 0 ? max(0, min(one.count, left)) : 0;
      return one.first;
    }
  }
};

struct Work {
  EpilogueRow out;
  const void* a;
  const void* b;
  int64_t lda, ldb;
  int64_t stride_a, stride_b, stride_c, stride_d;  // from one product of the batch to the next
  int m, k, product_n;                             // product_n: columns of op(B)
  int tiles_m, tiles_n, splits, split_depth;
  float* partial;  // (splits, m, partial_ld); with splits > 1
  int64_t partial_ld;
  float* column_sums;  // (tiles_m, columns of D) or null
};

// Adds a thread's sums of its columns to those of the other rows of the block, in a fixed order.
template <class Tile, bool kPaired>
__device__ __forceinline__ void store_column_sums(const Work& w, float* block, int tile_m, int n0,
                                                  float (&sums)[8], float (&up)[8]) {
  constexpr int kPerRow = Tile::kWarpN / (kPaired ? 16 : 8), kOut = Tile::kN / (kPaired ? 2 : 1);
  const int l = lane(), warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp / Tile::kWarpsN, warp_n = warp % Tile::kWarpsN;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int other = kPerRow; other < 32; other *= 2) {
      sums[i] += __shfl_xor_sync(0xFFFFFFFFu, sums[i], other);
      up[i] += __shfl_xor_sync(0xFFFFFFFFu, up[i], other);
    }
    if (l < kPerRow) {
      const int col = warp_n * (kOut / Tile::kWarpsN) + l * 8 + i;
      block[(warp_m * 2 + 0) * kOut + col] = sums[i];
      block[(warp_m * 2 + 1) * kOut + col] = up[i];
    }
  }
  __syncthreads();  // all warps' sums are written
  const bool two = w.out.e.kind == EpilogueKind::gated_derivative;
  float* to = w.column_sums + static_cast<int64_t>(tile_m) * w.out.n * (two ? 2 : 1);
  for (int j = static_cast<int>(threadIdx.x); j < kOut && n0 + j < w.out.n; j += Tile::kThreads) {
    for (int half = 0; half < (two ? 2 : 1); ++half) {
      float total = 0.0f;
      for (int i = 0; i < Tile::kWarpsM; ++i) total += block[(i * 2 + half) * kOut + j];
      to[half * w.out.n + n0 + j] = total;
    }
  }
}

template <class T, class Tile, bool kPaired, class Block>
__device__ __forceinline__ void store_tile(const Work& w, const typename Block::Sums& sums,
                                           unsigned char* shared, int tile_m, int tile_n) {
  const int m0 = tile_m * Tile::kM, n0 = tile_n * Tile::kN / (kPaired ? 2 : 1);
  float column[8] = {}, column_up[8] = {};
  Block::template drain<kPaired>(sums, shared, [&](int r, int c, float(&v)[8], float(&up)[8]) {
    const int row = m0 + r, col = n0 + (kPaired ? c / 2 : c);
    if (row >= w.m || col >= w.out.n) return;
    w.out.template apply<T, kPaired>(row, col, v, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      column[i] += v[i];
      column_up[i] += up[i];
    }
  });
  if (w.column_sums != nullptr) {
    store_column_sums<Tile, kPaired>(w, reinterpret_cast<float*>(shared + Tile::kOutBytes), tile_m,
                                     n0, column, column_up);
  }
}

template <class T, class Tile, Storage kStorageA, Storage kStorageB, Loads kLoads>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    matmul_mma_kernel(const __grid_constant__ Work work) {
#if __CUDA_ARCH__ >= 800
  constexpr bool kHere = kLoads != Loads::wide;
#else
  constexpr bool kHere = kLoads != Loads::async && std::is_same_v<T, __half>;
#endif
  if constexpr (kHere) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Work w = work;
    // Bands of eight tiles down and all across: blocks that run together share both operands in L2.
    constexpr int kBand = 8;
    const int id = static_cast<int>(blockIdx.x), per_band = kBand * w.tiles_n;
    const int band = id / per_band * kBand, height = min(kBand, w.tiles_m - band);
    const int tile_m = band + id % per_band % height, tile_n = id % per_band / height;

    const int batch = static_cast<int>(blockIdx.z);
    const T* a = static_cast<const T*>(w.a) + batch * w.stride_a;
    const T* b = static_cast<const T*>(w.b) + batch * w.stride_b;
    const int d_bytes = w.out.d_is_f32 ? 4 : 2;
    w.out.c = static_cast<const char*>(w.out.c) + batch * w.stride_c * d_bytes;
    w.out.d = static_cast<char*>(w.out.d) + batch * w.stride_d * d_bytes;

    constexpr bool kDepthA = kStorageA == Storage::by_depth;
    constexpr bool kDepthB = kStorageB == Storage::by_depth;
    const DenseSource<T> left{a, w.lda, kDepthA ? w.m : w.k, kDepthA ? w.k : w.m};
    const bool gated = w.out.e.kind == EpilogueKind::gated;
    const RightSource<T, kStorageB> right{
        {b, w.ldb, kDepthB ? w.product_n : w.k, kDepthB ? w.k : w.product_n}, gated ? w.out.n : 0};

    using Block =
        MmaBlock<T, Tile, kStorageA, kStorageB, kLoads, DenseSource<T>, RightSource<T, kStorageB>>;
    typename Block::Sums sums = {};
    const int begin = static_cast<int>(blockIdx.y) * w.split_depth;
    const int end = min(w.k, begin + w.split_depth);
    Block::accumulate(sums, left, right, tile_m * Tile::kM, tile_n * Tile::kN, begin, end, shared);

    if (w.splits > 1) {
      float* to = w.partial + static_cast<int64_t>(blockIdx.y) * w.m * w.partial_ld;
      Block::template drain<false>(sums, shared, [&](int r, int c, float(&v)[8], float(&)[8]) {
        const int64_t row = tile_m * Tile::kM + r, col = tile_n * Tile::kN + c;
        if (row < w.m && col < w.partial_ld) store(to + row * w.partial_ld + col, v);
      });
    } else if (gated) {
      store_tile<T, Tile, true, Block>(w, sums, shared, tile_m, tile_n);
    } else {
      store_tile<T, Tile, false, Block>(w, sums, shared, tile_m, tile_n);
    }
  }
}

inline Work work_of(const Context& ctx, const MatmulArgs& x, const Plan& p) {
  // c and d: eight elements are one or two 16-byte accesses; aux has their type.
  const auto even = [](const void* data, int64_t ld) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld % 8 == 0;
  };
  Work w{};
  w.out = {.c = x.c,
           .d = x.d,
           .bias = x.bias,
           .ldc = x.ldc,
           .ldd = x.ldd,
           .n = static_cast<int>(x.n),
           .alpha = x.alpha,
           .beta = x.beta,
           .d_is_f32 = x.d_type == DType::f32,
           .wide = false,
           .e = x.epilogue};
  w.out.wide = even(x.d, x.ldd) && even(x.c, x.ldc) && even(x.bias, 0) &&
               even(x.epilogue.aux, x.epilogue.ld_aux) &&
               (x.batch == 1 || (x.stride_c % 8 == 0 && x.stride_d % 8 == 0));
  w.a = x.a, w.b = x.b;
  w.lda = x.lda, w.ldb = x.ldb;
  w.stride_a = x.stride_a, w.stride_b = x.stride_b;
  w.stride_c = x.stride_c, w.stride_d = x.stride_d;
  w.m = static_cast<int>(x.m), w.k = static_cast<int>(x.k);
  w.product_n = static_cast<int>(x.epilogue.product_columns(x.n));
  w.tiles_m = p.tiles_m, w.tiles_n = p.tiles_n;
  w.splits = p.splits, w.split_depth = p.split_depth;
  w.partial = static_cast<float*>(ctx.workspace), w.partial_ld = p.partial_ld;
  w.column_sums = x.epilogue.column_sum != nullptr ? static_cast<float*>(ctx.workspace) : nullptr;
  return w;
}

template <class T, class Tile, Storage kStorageA, Storage kStorageB, Loads kLoads>
void launch_tile(const Context& ctx, const MatmulArgs& x, const Plan& p) {
  const auto kernel = matmul_mma_kernel<T, Tile, kStorageA, kStorageB, kLoads>;
  constexpr int kBytes = Tile::bytes(kLoads);
  if (kBytes > 48 * 1024) {
    SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  }
  const dim3 grid(static_cast<unsigned>(p.tiles_m * p.tiles_n), static_cast<unsigned>(p.splits),
                  static_cast<unsigned>(x.batch));
  kernel<<<grid, Tile::kThreads, kBytes, cuda::stream_of(ctx)>>>(work_of(ctx, x, p));
  SAT_CUDA_LAUNCHED("matmul_mma_kernel");
  if (x.epilogue.column_sum != nullptr) {
    fold_columns_cuda(ctx, {.partial = static_cast<const float*>(ctx.workspace),
                            .groups = p.tiles_m,
                            .cols = x.epilogue.output_columns(x.n),
                            .out = {x.epilogue.column_sum},
                            .accumulate = {x.epilogue.add_to_column_sum}});
  }
}

template <class T, Transpose kTa, Transpose kTb>
void launch(const Context& ctx, const MatmulArgs& x, const Plan& p) {
  constexpr Storage kA = kTa == Transpose::no ? Storage::by_depth : Storage::by_extent;
  constexpr Storage kB = kTb == Transpose::yes ? Storage::by_depth : Storage::by_extent;
  using Large = MmaTile<128, 128, 32, 2, 2, 3, 2>;
  using Small = MmaTile<64, 64, 32, 2, 2, 4, 3>;
  if (p.loads == Loads::narrow) return launch_tile<T, Small, kA, kB, Loads::narrow>(ctx, x, p);
  if (p.loads == Loads::wide) {
    if constexpr (std::is_same_v<T, __half>) {
      return p.size == Size::large ? launch_tile<T, Large, kA, kB, Loads::wide>(ctx, x, p)
                                   : launch_tile<T, Small, kA, kB, Loads::wide>(ctx, x, p);
    }
  }
  return p.size == Size::large ? launch_tile<T, Large, kA, kB, Loads::async>(ctx, x, p)
                               : launch_tile<T, Small, kA, kB, Loads::async>(ctx, x, p);
}

}  // namespace saturate::kernels::mma
