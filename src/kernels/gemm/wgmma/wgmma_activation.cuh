// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation_curve.cuh"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_bits.cuh"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {

template <class T, ActivationKind kKind, bool kPingPong>
struct ActivatedTile : EpilogueTile<T, kPingPong> {
  static constexpr ActivationKind kActivation = kKind;
};

template <class T, bool kPingPong>
struct ReluTile : EpilogueTile<T, kPingPong> {
  static constexpr bool kKeepsBits = true;
};

template <class T, ActivationKind kKind>
struct SlopesKeptTile : ActivatedTile<T, kKind, true> {
  static constexpr bool kKeepsSlopes = true;
};

// What write_halves() needs of a Problem, for the values before the activation.
struct Before {
  void* out;
  int64_t ldd;
  int m, n;
};

template <class P>
__device__ inline void activate(const Problem& p, float (&sum)[P::kMmas][P::kN / 2], const Unit& x,
                                int row) {
  if (p.c != nullptr) write_halves<P>(Before{const_cast<void*>(p.c), p.ldc, p.m, p.n}, sum, x, row);
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int j = 0; j < P::kN / 2; ++j) {
      sum[q][j] = curve<P::kActivation>(sum[q][j]).value;
      if (j % 2 == 1)
        asm volatile(""
                     : "+f"(sum[q][j - 1]),
                       "+f"(sum[q][j])::"memory");  // more at a time would not fit
    }
  }
}

// Stores the activation's values, and its slopes where `p.c` says, as write_halves() does.
template <class P>
__device__ inline void store_values_and_slopes(const Problem& p,
                                               const float (&sum)[P::kMmas][P::kN / 2],
                                               const Unit& x, int row) {
  using T = typename P::Out;
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
#pragma unroll
  for (int q = 0; q < P::kMmas; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = x.m + row + q * 64 + thread / 32 * 16 + lane / 4 + half * 8;
      const int n0 = x.n + lane % 4 * 8;
      T* const values = static_cast<T*>(p.out) + r * p.ldd + n0;
      T* const slopes = static_cast<T*>(const_cast<void*>(p.c)) + r * p.ldc + n0;
#pragma unroll
      for (int g = 0; g < P::kN / 32; ++g) {
        uint32_t v[4], w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const two = &sum[q][(g * 4 + i) * 4 + half * 2];
          const Curve low = curve<P::kActivation>(two[0]), high = curve<P::kActivation>(two[1]);
          v[i] = pack<T>(low.value, high.value);
          w[i] = pack<T>(low.slope, high.slope);
        }
        transpose_quad(v);
        transpose_quad(w);
        if (r < p.m && n0 + g * 32 < p.n) {
          *reinterpret_cast<uint4*>(values + g * 32) = make_uint4(v[0], v[1], v[2], v[3]);
          *reinterpret_cast<uint4*>(slopes + g * 32) = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
  }
}

template <class T, ActivationKind kKind>
cudaError_t launch_activation_and_slopes(const Problem& p, int blocks, cudaStream_t stream) {
  return launch<SlopesKeptTile<T, kKind>>(p, blocks, stream);
}

template <class T, bool kPingPong>
cudaError_t launch_activation(ActivationKind kind, const Problem& p, int blocks,
                              cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::relu:
      return launch<ReluTile<T, kPingPong>>(p, blocks, stream);
    case ActivationKind::gelu_tanh:
      return launch<ActivatedTile<T, ActivationKind::gelu_tanh, kPingPong>>(p, blocks, stream);
    case ActivationKind::gelu_erf:
      return launch<ActivatedTile<T, ActivationKind::gelu_erf, kPingPong>>(p, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace saturate::kernels::wgmma
