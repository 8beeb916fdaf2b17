// SPDX-License-Identifier: Apache-2.0
// Products of tf32 and fp8: both operands with k innermost.
//
// wgmma keeps few bits when it adds products of fp8, and cuts off the rest, so long sums drift;
// here each warpgroup starts a fresh sum for every stage of the pipeline (128 values) and adds it
// to a second set of registers with rounding.
//
// Both sets for a 64 x 256 half of a tile would need 256 registers a thread. So a stage is
// multiplied in two steps, the left 128 columns and then the right: 128 registers for the tile, 64
// for the fresh sum. While one warpgroup promotes, the other's products keep the tensor cores busy.
//
// tf32, whose operands are less exact than its sums, needs none of this: a stage is one step over
// all 256 columns.
#pragma once
#include "kernels/gemm/wgmma/promoted_problem.h"
#include "kernels/gemm/wgmma/wgmma_k_major.cuh"
#include "kernels/gemm/wgmma/wgmma_kernel.cuh"

namespace saturate::kernels::wgmma {

// kPromotes: fresh sums every stage.
template <class A_, class B_, class Bias_, class Out_, bool kPromotes_>
struct Promoted {
  using A = A_;
  using B = B_;
  using Bias = Bias_;
  using Out = Out_;
  static constexpr bool kPromotes = kPromotes_;
  static constexpr int kM = kPromotedM, kN = kPromotedN, kMmas = 1, kStages = 4;
  static constexpr int kRowValues = kStageRowBytes / (std::is_same_v<A, Tf32> ? 4 : 1);
  static constexpr uint32_t kBytesA = kM * kStageRowBytes;
  static constexpr uint32_t kStageBytes = kBytesA + kN * kStageRowBytes;
  static constexpr uint32_t kBarriersAt = kStages * kStageBytes;
  static constexpr uint32_t kSharedBytes = kBarriersAt + kStages * 16 + 1024;
  static_assert(kSharedBytes <= 232448);
};

template <class P>
__device__ inline void produce_rows(const PromotedProblem& p, uint32_t tiles, uint32_t full,
                                    uint32_t empty, uint32_t rank) {
  const int half = static_cast<int>(rank) * (P::kN / 2);
  uint32_t step = 0;
  for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster) {
    const Unit x = unit_of<P>(p, u, rank);
    for (int kb = x.first_k; kb < x.last_k; ++kb, ++step) {
      const uint32_t stage = step % P::kStages, round = step / P::kStages;
      const uint32_t a = tiles + stage * P::kStageBytes, b = a + P::kBytesA, bar = full + stage * 8;
      barrier_wait(empty + stage * 8, (round & 1) ^ 1);
      barrier_expect(bar, P::kStageBytes);
      load_box<false>(a, p.a, bar, kb * P::kRowValues, x.m);
      load_box<true>(b + half * kStageRowBytes, p.b, bar, kb * P::kRowValues, x.n + half);
    }
  }
}

// One stage, a fresh sum for each half of the columns; `released` is called once it is read.
template <class P, class Released>
__device__ inline void multiply_stage(float (&sum)[P::kN / 2], uint32_t a0, uint32_t b0,
                                      const Released& released) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float fresh[P::kN / 4];
    mma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      const uint32_t b = b0 + (half * P::kN / 2 * kStageRowBytes + kk * 32) / 16;
      mma_k_major<typename P::A, typename P::B, P::kN / 2>(fresh, descriptor(a0 + kk * 2, 1024),
                                                           descriptor(b, 1024), kk);
    }
    mma_commit();
    mma_wait<0>();
    settle(fresh);
    if (half == 1) released();
#pragma unroll
    for (int j = 0; j < P::kN / 4; ++j) sum[half * P::kN / 4 + j] += fresh[j];
  }
}

template <class P>
__device__ inline void multiply_rows(float (&sum)[1][P::kN / 2], int blocks, uint32_t step, int row,
                                     uint32_t tiles, uint32_t full, uint32_t empty) {
  if constexpr (P::kPromotes) {
#pragma unroll
    for (int j = 0; j < P::kN / 2; ++j) sum[0][j] = 0.0f;
  }
  const uint32_t a0 = descriptor_low(tiles + row * kStageRowBytes, 16);
  const uint32_t b0 = descriptor_low(tiles + P::kBytesA, 16);
  for (int i = 0; i < blocks; ++i, ++step) {
    const uint32_t stage = step % P::kStages, at = stage * (P::kStageBytes / 16);
    barrier_wait(full + stage * 8, step / P::kStages & 1);
    if constexpr (P::kPromotes) {
      multiply_stage<P>(sum[0], a0 + at, b0 + at, [&] { release<P>(empty, step); });
    } else {
      mma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        mma_k_major<typename P::A, typename P::B, P::kN>(
            sum[0], descriptor(a0 + at + kk * 2, 1024), descriptor(b0 + at + kk * 2, 1024), i | kk);
      }
      mma_commit();
      if (i > 0) {
        mma_wait<1>();
        release<P>(empty, step - 1);
      }
    }
  }
  if constexpr (!P::kPromotes) {
    mma_wait<0>();
    release<P>(empty, step - 1);
    settle(sum[0]);
  }
}

// *amax = max(*amax, |d|): the bits of floats that are not negative order as integers do, so the
// result does not depend on who comes first.
template <int kCount>
__device__ inline void raise_amax(float* amax, const float (&d)[kCount]) {
  float top = 0.0f;
#pragma unroll
  for (int j = 0; j < kCount; ++j) top = fmaxf(top, fabsf(d[j]));
  const int bits = __reduce_max_sync(~0u, __float_as_int(top));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(amax), bits);
}

template <class P>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_promoted_kernel(const __grid_constant__ PromotedProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  const uint32_t rank = cluster_rank();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) open_pipeline<P>(p, full, empty, 2);
  cluster_sync();
  await_previous_kernel();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) produce_rows<P>(p, tiles, full, empty, rank);
  } else {
    take_registers<232>();
    const int row = (group - 1) * 64;
    const float scale =
        (p.scale_a != nullptr ? *p.scale_a : 1.0f) * (p.scale_b != nullptr ? *p.scale_b : 1.0f);
    uint32_t step = 0;
    for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster) {
      const Unit x = unit_of<P>(p, u, rank);
      float sum[1][P::kN / 2];
      const TileBias<P> bias = load_bias<P>(p, x);
      multiply_rows<P>(sum, x.last_k - x.first_k, step, row, tiles, full, empty);
#pragma unroll
      for (int j = 0; j < P::kN / 2; ++j) sum[0][j] *= scale;
      finish<P>(p, sum, bias, x, row);
      if (p.amax != nullptr) raise_amax(p.amax, sum[0]);
      if constexpr (sizeof(typename P::Out) == 2) {
        write_halves<P>(p, sum, x, row);
      } else {
        write_floats<P>(p, sum, x, row);
      }
      step += x.last_k - x.first_k;
    }
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

}  // namespace saturate::kernels::wgmma
