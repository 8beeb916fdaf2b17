// SPDX-License-Identifier: Apache-2.0
// A block's share of a product on tensor cores: tiles of both operands go through shared memory,
// sums stay in registers, then move to eight consecutive columns a thread.
//
// Where an operand comes from is a DenseSource or any Source: Source::chunk(row, col, valid) points
// at eight consecutive elements, of which the first `valid` (0..8) exist; the pointer is readable
// only if valid > 0. An operand is stored either by depth (rows: the product's rows or columns,
// contiguous: the summed index) or by extent (the other way round).
#pragma once
#include "kernels/device/mma.cuh"
#include "kernels/gemm/mma/mma_gemm.h"

namespace saturate::kernels::mma {

template <class T>
struct DenseSource {
  const T* data;
  int64_t ld;
  int rows, cols;
};

// A thread's chunks of one tile: chunk i is i * kStep rows below the first.
template <int kStep, class Source>
struct Walk {
  const Source& source;
  int row, col;
  __device__ __forceinline__ auto chunk(int i, int& valid) const {
    return source.chunk(row + i * kStep, col, valid);
  }
};
// Of a dense matrix: one address, of which the others lie a whole number of rows apart.
template <int kStep, class T>
struct Walk<kStep, DenseSource<T>> {
  const T* first;
  int64_t step;
  int rows_left, count;
  __device__ __forceinline__ Walk(const DenseSource<T>& s, int row, int col)
      : first(s.data + row * s.ld + col),
        step(kStep * s.ld),
        rows_left(s.rows - row),
        count(max(0, min(8, s.cols - col))) {}
  __device__ __forceinline__ const T* chunk(int i, int& valid) const {
    valid = i * kStep < rows_left ? count : 0;
    return first + i * step;
  }
};

enum class Storage : uint8_t { by_depth, by_extent };

// kM x kN of the product a block, kK of the depth a step; kWarpsM x kWarpsN warps.
// kBlocks: as many blocks of it as registers must allow on a multiprocessor.
template <int kM_, int kN_, int kK_, int kWarpsM_, int kWarpsN_, int kStages_, int kBlocks_>
struct MmaTile {
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kM = kM_, kN = kN_, kK = kK_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kStages = kStages_;
  static constexpr int kThreads = kWarpsM * kWarpsN * 32;
  static constexpr int kWarpM = kM / kWarpsM, kWarpN = kN / kWarpsN;
  static constexpr int kMs = kWarpM / 16, kNs = kWarpN / 8;
  static constexpr int kStageBytes = (kM + kN) * kK * 2;
  // Sixteen rows of a warp's sums on their way out; 8 words more a row keep its banks apart.
  static constexpr int kOutLd = kWarpN + 8;
  static constexpr int kOutBytes = kWarpsM * kWarpsN * 16 * kOutLd * 4;
  static constexpr int kSumBytes = kWarpsM * kN * 2 * 4;  // column sums, two halves
  static constexpr int bytes(Loads loads) {
    const int tiles = kStageBytes * (loads == Loads::async ? kStages : 2);
    const int out = kOutBytes + kSumBytes;
    return tiles > out ? tiles : out;
  }
};

// One operand's tile: kExtent of the product, kK of the depth.
template <class T, int kExtent, int kK, int kThreads, Storage kStorage, Loads kLoads, class Source>
struct Operand {
  static constexpr bool kByDepth = kStorage == Storage::by_depth;
  static constexpr int kRows = kByDepth ? kExtent : kK, kCols = kByDepth ? kK : kExtent;
  static constexpr int kChunks = kRows * kCols / 8 / kThreads;
  static constexpr int kRowStep = kThreads / (kCols / 8);
  static_assert(kRows * kCols / 8 % kThreads == 0 && kRowStep % 8 == 0);

  template <class Body>
  static __device__ __forceinline__ void each(const Source& s, int extent0, int depth0,
                                              const Body& body) {
    const int row = static_cast<int>(threadIdx.x) / (kCols / 8);
    const int chunk = static_cast<int>(threadIdx.x) % (kCols / 8);
    const Walk<kRowStep, Source> walk{s, (kByDepth ? extent0 : depth0) + row,
                                      (kByDepth ? depth0 : extent0) + chunk * 8};
    // The mixing of chunks repeats after eight rows.
    const uint32_t to = chunk_at<kCols>(row, chunk);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      int valid = 0;
      const T* from = walk.chunk(i, valid);
      body(i, to + static_cast<uint32_t>(i * kRowStep * kCols * 2), from, valid);
    }
  }
  static __device__ __forceinline__ void copy(uint32_t tile, const Source& s, int extent0,
                                              int depth0) {
    each(s, extent0, depth0, [tile](int, uint32_t at, const T* from, int valid) {
      copy_chunk(tile + at, from, valid * 2);
    });
  }
  static __device__ __forceinline__ void fetch(uint4 (&r)[kChunks], const Source& s, int extent0,
                                               int depth0) {
    each(s, extent0, depth0, [&r](int i, uint32_t, const T* from, int valid) {
      if (kLoads == Loads::wide && valid == 8) {
        r[i] = *reinterpret_cast<const uint4*>(from);
        return;
      }
      const auto* bits = reinterpret_cast<const unsigned short*>(from);
      uint32_t w[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const uint32_t low = 2 * p < valid ? bits[2 * p] : 0u;
        const uint32_t high = 2 * p + 1 < valid ? bits[2 * p + 1] : 0u;
        w[p] = low | high << 16;
      }
      r[i] = make_uint4(w[0], w[1], w[2], w[3]);
    });
  }
  static __device__ __forceinline__ void put(unsigned char* tile, const uint4 (&r)[kChunks]) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      *reinterpret_cast<uint4*>(tile + chunk_at<kCols>(at / (kCols / 8), at % (kCols / 8))) = r[i];
    }
  }
  // Where a lane reads the fragment of the extent from `first` on and of the depth from 0 on, in a
  // tile at 0. Fragments further on differ in bits of their own (the mixing is an exclusive or), so
  // that one exclusive or and a constant lead there.
  static __device__ __forceinline__ uint32_t left_at(int first) {
    const int l = lane();
    return kByDepth ? chunk_at<kCols>(first + l % 16, l / 16)
                    : chunk_at<kCols>(l % 8 + l / 16 * 8, first / 8 + l / 8 % 2);
  }
  static __device__ __forceinline__ uint32_t right_at(int first) {
    const int l = lane();
    return kByDepth ? chunk_at<kCols>(first + l % 8 + l / 16 * 8, l / 8 % 2)
                    : chunk_at<kCols>(l % 16, first / 8 + l / 16);
  }
  // Sixteen of the extent, i-th of the warp, and sixteen of the depth from 16 * k.
  static __device__ __forceinline__ void read(uint32_t (&f)[4], uint32_t at, int i, int k) {
    if constexpr (kByDepth) {
      load_matrices(f, (at ^ static_cast<uint32_t>(k * 32)) + i * 16 * kCols * 2);
    } else {
      load_matrices_transposed(f, (at ^ static_cast<uint32_t>(i * 32)) + k * 16 * kCols * 2);
    }
  }
};

template <class T, class Tile, Storage kStorageA, Storage kStorageB, Loads kLoads, class SourceA,
          class SourceB>
struct MmaBlock {
  using A = Operand<T, Tile::kM, Tile::kK, Tile::kThreads, kStorageA, kLoads, SourceA>;
  using B = Operand<T, Tile::kN, Tile::kK, Tile::kThreads, kStorageB, kLoads, SourceB>;
  static constexpr int kBytesA = Tile::kM * Tile::kK * 2;
  using Sums = float[Tile::kMs][Tile::kNs][4];

  // sums += A[m0.., begin..end) B[begin..end, n0..); begin is a multiple of kK, and so is end
  // unless it is the whole depth. `shared` is aligned to 256 bytes.
  static __device__ __forceinline__ void accumulate(Sums& sums, const SourceA& a, const SourceB& b,
                                                    int m0, int n0, int begin, int end,
                                                    unsigned char* shared) {
    const auto tiles = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const uint32_t left = tiles + A::left_at(warp / Tile::kWarpsN * Tile::kWarpM);
    const uint32_t right = tiles + kBytesA + B::right_at(warp % Tile::kWarpsN * Tile::kWarpN);
    const int steps = (end - begin + Tile::kK - 1) / Tile::kK;
    if constexpr (kLoads == Loads::async) {
#pragma unroll
      for (int s = 0; s < Tile::kStages - 1; ++s) {
        if (s < steps) copy(tiles + s * Tile::kStageBytes, a, b, m0, n0, begin + s * Tile::kK);
        copy_commit();
      }
      int stage = 0, free_stage = Tile::kStages - 1;
      for (int i = 0; i < steps; ++i) {
        copy_wait<Tile::kStages - 2>();
        __syncthreads();  // step i has arrived for all, and step i - 1 has been read by all
        const int next = i + Tile::kStages - 1;
        if (next < steps)
          copy(tiles + free_stage * Tile::kStageBytes, a, b, m0, n0, begin + next * Tile::kK);
        copy_commit();  // an empty group at the end keeps the count of open groups
        multiply(sums, left + stage * Tile::kStageBytes, right + stage * Tile::kStageBytes);
        stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
        free_stage = free_stage + 1 == Tile::kStages ? 0 : free_stage + 1;
      }
      copy_wait<0>();
    } else {
      uint4 next_a[A::kChunks], next_b[B::kChunks];
      if (steps > 0) {
        A::fetch(next_a, a, m0, begin);
        B::fetch(next_b, b, n0, begin);
      }
      for (int i = 0; i < steps; ++i) {
        const int at = i % 2 * Tile::kStageBytes;
        A::put(shared + at, next_a);
        B::put(shared + at + kBytesA, next_b);
        __syncthreads();  // step i is there for all, so that step i - 1 has been read by all
        if (i + 1 < steps) {
          A::fetch(next_a, a, m0, begin + (i + 1) * Tile::kK);
          B::fetch(next_b, b, n0, begin + (i + 1) * Tile::kK);
        }
        multiply(sums, left + at, right + at);
      }
    }
    __syncthreads();  // the tiles have been read: their memory may serve the way out
  }

  // Calls body(row, col, v) with row and col in the block's tile for every eight columns of it:
  // col is a multiple of 8, and col % kWarpN of one thread is the same for all its calls. With
  // kPaired body(row, col, v, w): w belongs to col + 8 and col is a multiple of 16.
  template <bool kPaired, class Body>
  static __device__ __forceinline__ void drain(const Sums& sums, unsigned char* shared,
                                               const Body& body) {
    constexpr int kStep = kPaired ? 16 : 8, kPerRow = Tile::kWarpN / kStep, kRows = 32 / kPerRow;
    const int l = lane(), warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_m = warp / Tile::kWarpsN, warp_n = warp % Tile::kWarpsN;
    float* rows = reinterpret_cast<float*>(shared) + warp * 16 * Tile::kOutLd;
    const int col = l % kPerRow * kStep;
#pragma unroll 1
    for (int m = 0; m < Tile::kMs; ++m) {
      __syncwarp();  // the last sixteen rows have been read
#pragma unroll
      for (int i = 0; i < Tile::kMs; ++i) {  // registers cannot be indexed, so that each asks
        if (i != m) continue;
#pragma unroll
        for (int n = 0; n < Tile::kNs; ++n) {
          float* to = rows + l / 4 * Tile::kOutLd + n * 8 + l % 4 * 2;
          *reinterpret_cast<float2*>(to) = make_float2(sums[i][n][0], sums[i][n][1]);
          *reinterpret_cast<float2*>(to + 8 * Tile::kOutLd) =
              make_float2(sums[i][n][2], sums[i][n][3]);
        }
      }
      __syncwarp();  // sixteen rows are complete
#pragma unroll 1
      for (int r = l / kPerRow; r < 16; r += kRows) {
        float v[8], w[8] = {};
        load(v, rows + r * Tile::kOutLd + col);
        if constexpr (kPaired) load(w, rows + r * Tile::kOutLd + col + 8);
        body(warp_m * Tile::kWarpM + m * 16 + r, warp_n * Tile::kWarpN + col, v, w);
      }
    }
  }

 private:
  static __device__ __forceinline__ void copy(uint32_t stage, const SourceA& a, const SourceB& b,
                                              int m0, int n0, int depth) {
    A::copy(stage, a, m0, depth);
    B::copy(stage + kBytesA, b, n0, depth);
  }

  struct Fragments {
    uint32_t a[Tile::kMs][4], b[Tile::kNs / 2][4];
  };
  static __device__ __forceinline__ void read(Fragments& f, uint32_t left, uint32_t right, int k) {
#pragma unroll
    for (int m = 0; m < Tile::kMs; ++m) A::read(f.a[m], left, m, k);
#pragma unroll
    for (int n = 0; n < Tile::kNs / 2; ++n) B::read(f.b[n], right, n, k);
  }
  static __device__ __forceinline__ void multiply(Sums& sums, uint32_t left, uint32_t right) {
    Fragments f[2];
    read(f[0], left, right, 0);
#pragma unroll
    for (int k = 0; k < Tile::kK / 16; ++k) {
      if (k + 1 < Tile::kK / 16) read(f[(k + 1) % 2], left, right, k + 1);
      const Fragments& now = f[k % 2];
#pragma unroll
      for (int m = 0; m < Tile::kMs; ++m)
#pragma unroll
        for (int n = 0; n < Tile::kNs; ++n)
          multiply_add<T>(sums[m][n], now.a[m], now.b[n / 2][n % 2 * 2],
                          now.b[n / 2][n % 2 * 2 + 1]);
    }
  }
};

}  // namespace saturate::kernels::mma
