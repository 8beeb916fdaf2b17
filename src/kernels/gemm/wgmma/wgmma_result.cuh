// SPDX-License-Identifier: Apache-2.0
// From the sums of a tile in registers to its results in memory: alpha, bias and beta C, rounding,
// stores. P is a Tile (wgmma_kernel.cuh); Result has what of a Problem the results need; Unit says
// where the tile is.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/hopper/registers.cuh"

namespace saturate::kernels::wgmma {

// The bias of a tile's columns, spread over a warp: register i of lane l holds columns 64 i + 2 l
// and the next. Loaded before the product, so that nobody waits for it after.
template <class P>
struct TileBias {
  using T = typename P::Bias;
  using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, float2>;
  Pair pair[P::kN / 64];
};

template <class P, class Result, class Unit>
__device__ inline TileBias<P> load_bias(const Result& p, const Unit& x) {
  using T = typename P::Bias;
  TileBias<P> b = {};
  if (p.bias == nullptr || x.split > 0) return b;
#pragma unroll
  for (int i = 0; i < P::kN / 64; ++i) {
    const int col = x.n + i * 64 + static_cast<int>(threadIdx.x % 32) * 2;
    auto* two = reinterpret_cast<T*>(&b.pair[i]);
    if (col < p.n) two[0] = static_cast<const T*>(p.bias)[col];
    if (col + 1 < p.n) two[1] = static_cast<const T*>(p.bias)[col + 1];
  }
  return b;
}

// The two of this thread's columns in group j of eight columns.
template <class P>
__device__ inline float2 bias_at(const TileBias<P>& b, int j) {
  const int from = j % 8 * 4 + static_cast<int>(threadIdx.x % 4);
  const auto& pair = b.pair[j / 8];
  if constexpr (sizeof(typename P::Bias) == 2) {
    const uint32_t got = __shfl_sync(~0u, pair, from);
    const auto* two = reinterpret_cast<const typename P::Bias*>(&got);
    return {to_float(two[0]), to_float(two[1])};
  } else {
    return {__shfl_sync(~0u, pair.x, from), __shfl_sync(~0u, pair.y, from)};
  }
}

// sum += beta C for 16-bit C, read as write_halves() writes: 16 bytes a lane, four at a time.
template <class P, class Result, class Unit>
__device__ inline void add_halves(const Result& p, float (&sum)[P::kMmas][P::kN / 2], const Unit& x,
                                  int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  constexpr int kGroups = P::kN / 32, kAtOnce = kGroups % 4 == 0 ? 4 : 3;
  static_assert(kGroups % kAtOnce == 0);
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = x.m + row + q * 64 + thread / 32 * 16 + lane / 4 + half * 8;
      const auto* line = static_cast<const typename P::Out*>(p.c) + r * p.ldc + x.n + lane % 4 * 8;
#pragma unroll
      for (int g0 = 0; g0 < kGroups; g0 += kAtOnce) {
        uint4 old[kAtOnce];
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) {
          old[g] = make_uint4(0, 0, 0, 0);
          if (r < p.m && x.n + (g0 + g) * 32 + lane % 4 * 8 < p.n)
            old[g] = *reinterpret_cast<const uint4*>(line + (g0 + g) * 32);
        }
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) {
          uint32_t v[4] = {old[g].x, old[g].y, old[g].z, old[g].w};
          transpose_quad(v);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const auto* two = reinterpret_cast<const typename P::Out*>(&v[i]);
            float* to = &sum[q][((g0 + g) * 4 + i) * 4 + half * 2];
            to[0] += p.beta * to_float(two[0]);
            to[1] += p.beta * to_float(two[1]);
          }
        }
        asm volatile("" ::: "memory");  // more loads ahead of these would not fit in the registers
      }
    }
  }
}

// sum += beta C for fp32 C.
template <class P, class Result, class Unit>
__device__ inline void add_floats(const Result& p, float (&sum)[P::kMmas][P::kN / 2], const Unit& x,
                                  int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  const int col = x.n + lane % 4 * 2, left = p.n - col;
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = x.m + row + q * 64 + thread / 32 * 16 + lane / 4 + half * 8;
      const auto* c = static_cast<const float*>(p.c) + r * p.ldc + col;
#pragma unroll
      for (int j = 0; j < P::kN / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (r < p.m && j * 8 + i < left) sum[q][j * 4 + half * 2 + i] += p.beta * c[j * 8 + i];
        }
        if (j % 4 == 3) asm volatile("" : "+l"(c)::"memory");  // as above
      }
    }
  }
}

// sum = alpha sum, and in split 0 + bias + beta C.
template <class P, class Result, class Unit>
__device__ inline void finish(const Result& p, float (&sum)[P::kMmas][P::kN / 2],
                              const TileBias<P>& bias, const Unit& x, int row) {
  if (p.bias == nullptr || x.split > 0) {
#pragma unroll
    for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
      for (int j = 0; j < P::kN / 2; ++j) sum[q][j] *= p.alpha;
    }
  } else {
#pragma unroll
    for (int j = 0; j < P::kN / 8; ++j) {
      const float2 b = bias_at<P>(bias, j);
#pragma unroll
      for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &sum[q][j * 4 + half * 2];
          v[0] = v[0] * p.alpha + b.x;
          v[1] = v[1] * p.alpha + b.y;
        }
      }
    }
  }
  if (p.beta == 0.0f || x.split > 0) return;
  if constexpr (sizeof(typename P::Out) == 2) {
    add_halves<P>(p, sum, x, row);
  } else {
    add_floats<P>(p, sum, x, row);
  }
}

// 16-bit results: quads exchange what they hold until each lane has 16 bytes of a row, so that
// stores fill whole sectors. No shared memory and nothing to wait for: the stores drain while the
// next tile is multiplied.
template <class P, class Result, class Unit>
__device__ inline void write_halves(const Result& p, float (&sum)[P::kMmas][P::kN / 2],
                                    const Unit& x, int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  auto* out = static_cast<typename P::Out*>(p.out);
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = x.m + row + q * 64 + thread / 32 * 16 + lane / 4 + half * 8;
      auto* line = out + r * p.ldd + x.n + lane % 4 * 8;
#pragma unroll
      for (int g = 0; g < P::kN / 32; ++g) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = g * 4 + i, at = j * 4 + half * 2;
          v[i] = pack<typename P::Out>(sum[q][at], sum[q][at + 1]);
        }
        transpose_quad(v);
        if (r < p.m && x.n + g * 32 + lane % 4 * 8 < p.n)
          *reinterpret_cast<uint4*>(line + g * 32) = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

// fp32 results: 8 bytes a thread, whole 32-byte sectors a quad.
template <class P, class Result, class Unit>
__device__ inline void write_floats(const Result& p, float (&sum)[P::kMmas][P::kN / 2],
                                    const Unit& x, int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  float* out =
      x.split == 0 ? static_cast<float*>(p.out) : p.partial + int64_t{x.split - 1} * p.m * p.n;
  const int64_t ld = x.split == 0 ? p.ldd : p.n;
  const int col = x.n + lane % 4 * 2, left = p.n - col;
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = x.m + row + q * 64 + thread / 32 * 16 + lane / 4 + half * 8;
      if (r >= p.m) continue;
      float* line = out + r * ld + col;
#pragma unroll
      for (int j = 0; j < P::kN / 8; ++j) {
        const float* v = &sum[q][j * 4 + half * 2];
        if (j * 8 + 1 < left) {
          *reinterpret_cast<float2*>(line + j * 8) = make_float2(v[0], v[1]);
        } else if (j * 8 < left) {
          line[j * 8] = v[0];
        }
      }
    }
  }
}

}  // namespace saturate::kernels::wgmma
