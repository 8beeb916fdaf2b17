// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation_curve.cuh"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {

template <class T, ActivationKind kKind>
struct ActivatedTile : Tile<T, T, 128, 256, 4, false, true, true> {
  static constexpr ActivationKind kActivation = kKind;
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
    for (int j = 0; j < P::kN / 2; ++j) sum[q][j] = curve<P::kActivation>(sum[q][j]).value;
  }
}

template <class T>
cudaError_t launch_activation(ActivationKind kind, const Problem& p, int blocks,
                              cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::relu:
      return launch<ActivatedTile<T, ActivationKind::relu>>(p, blocks, stream);
    case ActivationKind::gelu_tanh:
      return launch<ActivatedTile<T, ActivationKind::gelu_tanh>>(p, blocks, stream);
    case ActivationKind::gelu_erf:
      return launch<ActivatedTile<T, ActivationKind::gelu_erf>>(p, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace saturate::kernels::wgmma
