// SPDX-License-Identifier: Apache-2.0
// The input gradient times the slope of an activation, and the sums of its columns: what the product
// behind an activation sends back to the one before it, and that one's bias gradient.
#pragma once
#include "kernels/activation/activation_curve.cuh"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {

template <class T, ActivationKind kKind>
struct DerivativeTile : Tile<T, T, 128, 256, 4, false, true, false> {
  using Base = Tile<T, T, 128, 256, 4, false, true, false>;
  static constexpr ActivationKind kDerivative = kKind;
  // A warp's 256 column sums, every 32 of them 8 apart from the next so that its lanes, which write
  // 8 bytes each, meet in no bank; two sets a consumer, taken in turns.
  static constexpr int kWarpSums = 8 * 40;
  static constexpr uint32_t kSumsAt = Base::kBarriersAt + Base::kStages * 16;
  static constexpr uint32_t kSharedBytes = Base::kSharedBytes + 2 * 2 * 4 * kWarpSums * 4;
  static_assert(kSumsAt % 16 == 0 && kSharedBytes <= 232448);
};

// Brings this consumer's rows of what the activation was given to L2 while the product runs.
template <class P>
__device__ inline void await_slopes(const Problem& p, const Unit& x, int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), r = x.m + row + thread / 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int col = x.n + (thread % 2 * 2 + i) * 64;
    const auto* at = static_cast<const typename P::Out*>(p.c) + r * p.ldc + col;
    if (r < p.m && col < p.n) asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// sum = alpha sum f'(c), c read as write_halves() writes: 16 bytes a lane, kAtOnce under way. More of
// them, or more pairs at a time, would not fit in the registers; gelu_erf does not as it is.
template <class P>
__device__ inline void differentiate(const Problem& p, float (&sum)[P::kMmas][P::kN / 2],
                                     const Unit& x, int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  constexpr int kGroups = P::kN / 32, kAtOnce = P::kDerivative == ActivationKind::relu ? 4 : 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = x.m + row + thread / 32 * 16 + lane / 4 + half * 8;
    const auto* line = static_cast<const typename P::Out*>(p.c) + r * p.ldc + x.n + lane % 4 * 8;
#pragma unroll
    for (int g0 = 0; g0 < kGroups; g0 += kAtOnce) {
      uint4 given[kAtOnce];
#pragma unroll
      for (int g = 0; g < kAtOnce; ++g) {
        given[g] = make_uint4(0, 0, 0, 0);
        if (r < p.m && x.n + (g0 + g) * 32 + lane % 4 * 8 < p.n)
          given[g] = *reinterpret_cast<const uint4*>(line + (g0 + g) * 32);
      }
#pragma unroll
      for (int g = 0; g < kAtOnce; ++g) {
        uint32_t v[4] = {given[g].x, given[g].y, given[g].z, given[g].w};
        transpose_quad(v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto* two = reinterpret_cast<const typename P::Out*>(&v[i]);
          float* to = &sum[0][((g0 + g) * 4 + i) * 4 + half * 2];
          to[0] *= p.alpha * curve<P::kDerivative>(to_float(two[0])).slope;
          to[1] *= p.alpha * curve<P::kDerivative>(to_float(two[1])).slope;
          asm volatile("" : "+f"(to[0]), "+f"(to[1])::"memory");  // one pair after the other
        }
      }
    }
  }
}

// Sums of the tile's columns over this consumer's 64 rows go to row (x.m + row) / 64 of `partial`.
// Rows beyond the problem hold zeros (TMA), which change nothing. First the eight lanes of a warp that
// hold rows of the same columns halve among them which columns they sum; then 128 threads add the
// four warps' sums. Every sum has one order.
template <class P>
__device__ inline void sum_columns(const Problem& p, const float (&sum)[P::kMmas][P::kN / 2],
                                   const Unit& x, int row, int consumer, int index, float* shared) {
  static_assert(P::kMmas == 1 && P::kN == 256 && !P::kPingPong);
  if (p.partial == nullptr) return;
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  // value[2 j + e]: this thread's column e of the j-th group of eight columns that it still sums.
  float value[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int j = i / 2, e = i % 2;
    const float low = sum[0][j * 4 + e] + sum[0][j * 4 + 2 + e];
    const float high = sum[0][(j + 16) * 4 + e] + sum[0][(j + 16) * 4 + 2 + e];
    const bool upper = lane & 16;
    value[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 16);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const bool upper = lane & 8;
    const float got = __shfl_xor_sync(~0u, upper ? value[i] : value[i + 16], 8);
    value[i] = (upper ? value[i + 16] : value[i]) + got;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool upper = lane & 4;
    const float got = __shfl_xor_sync(~0u, upper ? value[i] : value[i + 8], 4);
    value[i] = (upper ? value[i + 8] : value[i]) + got;
  }
  // Now of the four groups that begin at 16 upper16 + 8 upper8 + 4 upper4 = lane / 4 * 4: bits 4, 3
  // and 2 of the lane in this order.
  float* const set = shared + (consumer * 2 + index % 2) * 4 * P::kWarpSums;
  float* const mine = set + thread / 32 * P::kWarpSums + lane / 4 * 40 + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    *reinterpret_cast<float2*>(mine + j * 8) = make_float2(value[j * 2], value[j * 2 + 1]);
  // The four warps' sums are written. Those of the tile after the next wait behind the next one's
  // barrier, which nobody reaches before it has read these.
  constexpr int kSums = 3;
  named_sync(kSums + consumer, 128);
  const int col = thread * 2;
  const float* from = set + col / 32 * 40 + col % 32;
  float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float2 part = *reinterpret_cast<const float2*>(from + w * P::kWarpSums);
    total.x += part.x;
    total.y += part.y;
  }
  const int group = (x.m + row) / 64;
  if (x.m + row < p.m && x.n + col < p.n)
    *reinterpret_cast<float2*>(p.partial + static_cast<int64_t>(group) * p.n + x.n + col) = total;
}

template <class T>
cudaError_t launch_derivative(ActivationKind kind, const Problem& p, int blocks,
                              cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::relu:
      return launch<DerivativeTile<T, ActivationKind::relu>>(p, blocks, stream);
    case ActivationKind::gelu_tanh:
      return launch<DerivativeTile<T, ActivationKind::gelu_tanh>>(p, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace saturate::kernels::wgmma
