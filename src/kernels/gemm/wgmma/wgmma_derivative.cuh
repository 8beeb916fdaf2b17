// SPDX-License-Identifier: Apache-2.0
// The input gradient times the slope of an activation, and the sums of its columns: what the product
// behind an activation sends back to the one before it, and that one's bias gradient.
#pragma once
#include "kernels/activation/activation_curve.cuh"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/gemm/wgmma/wgmma_sums.cuh"

namespace saturate::kernels::wgmma {

template <class T, ActivationKind kKind>
struct DerivativeTile : Tile<T, T, kEpilogueTileM, kSharedTileN, 4, false, true, false> {
  using Base = Tile<T, T, kEpilogueTileM, kSharedTileN, 4, false, true, false>;
  static constexpr ActivationKind kDerivative = kKind;
  // The column sums of a consumer's four warps; two sets a consumer, taken in turns.
  static constexpr int kSums = 4 * Base::kN;
  static constexpr uint32_t kSumsAt = Base::kBarriersAt + Base::kStages * 16;
  static constexpr uint32_t kSharedBytes = Base::kSharedBytes + 2 * 2 * kSums * 4;
  static_assert(kSumsAt % 16 == 0 && kSharedBytes <= 232448);
};

// Brings this consumer's rows of what the activation was given to L2 while a product runs.
template <class P>
__device__ inline void await_slopes(const Problem& p, const Unit& x, int row) {
  constexpr int kThreadsOfRow = 128 / P::kRows, kLines = P::kN / 64 / kThreadsOfRow;
  const int thread = static_cast<int>(threadIdx.x % 128), r = x.m + row + thread / kThreadsOfRow;
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    const int col = x.n + (thread % kThreadsOfRow * kLines + i) * 64;
    const auto* at = static_cast<const typename P::Out*>(p.c) + r * p.ldc + col;
    if (r < p.m && col < p.n) asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// Stores alpha sum f'(c), and in `sums` the sums of this warp's columns before they round (null: none). c is read as
// results are written, 16 bytes a lane in four pieces: 8 columns of rows 8 or 64 apart, and where a thread has two
// rows those of 32 columns further on too.
template <class P>
__device__ inline void differentiate(const Problem& p, float (&sum)[P::kMmas][P::kN / 2],
                                     const Unit& x, int row, float* sums) {
  using T = typename P::Out;
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  constexpr int kRows = P::kMmas * 2, kPieces = 4, kGroups = kPieces / kRows;
  int r0 = x.m + row + thread / 32 * 16 + lane / 4;
  const int n0 = x.n + lane % 4 * 8;
  const auto* const from = static_cast<const T*>(p.c) + r0 * p.ldc + n0;
  auto* const to = static_cast<T*>(p.out) + r0 * p.ldd + n0;
#pragma unroll
  for (int first = 0; first < P::kN / 32; first += kGroups) {
    const auto down = [](int i) { return i % kRows / 2 * 64 + i % 2 * 8; };
    const auto group = [&](int i) { return first + i / kRows; };
    const auto inside = [&](int i) { return r0 + down(i) < p.m && n0 + group(i) * 32 < p.n; };
    const auto pair = [&](int i, int j) {
      return &sum[i % kRows / 2][(group(i) * 4 + j) * 4 + i % 2 * 2];
    };
    uint4 given[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      given[i] = make_uint4(0, 0, 0, 0);
      if (inside(i))
        given[i] = *reinterpret_cast<const uint4*>(from + down(i) * p.ldc + group(i) * 32);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint32_t v[4] = {given[i].x, given[i].y, given[i].z, given[i].w};
      transpose_quad(v);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto* two = reinterpret_cast<const T*>(&v[j]);
        float* const s = pair(i, j);
        s[0] *= p.alpha * curve<P::kDerivative>(to_float(two[0])).slope;
        s[1] *= p.alpha * curve<P::kDerivative>(to_float(two[1])).slope;
        asm volatile("" : "+f"(s[0]), "+f"(s[1])::"memory");  // more at a time would not fit
      }
    }
    asm volatile(
        ""
        : "+r"(r0)::"memory");  // which rows exist is asked again: kept, it would not fit either
    if (sums != nullptr) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float column[8] = {};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
#pragma unroll
          for (int i = g * kRows; i < (g + 1) * kRows; ++i) column[e] += pair(i, e / 2)[e % 2];
        }
        sums[thread / 32 * P::kN + (first + g) * 32 + lane_column()] = fold_rows(column);
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pack<T>(pair(i, j)[0], pair(i, j)[1]);
      transpose_quad(v);
      if (inside(i))
        *reinterpret_cast<uint4*>(to + down(i) * p.ldd + group(i) * 32) =
            make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

template <class T>
cudaError_t launch_derivative(ActivationKind kind, const Problem& p, int blocks,
                              cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::relu:
      return launch<DerivativeTile<T, ActivationKind::relu>>(p, blocks, stream);
    case ActivationKind::gelu_tanh:
      return launch<DerivativeTile<T, ActivationKind::gelu_tanh>>(p, blocks, stream);
    case ActivationKind::gelu_erf:
      return launch<DerivativeTile<T, ActivationKind::gelu_erf>>(p, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace saturate::kernels::wgmma
