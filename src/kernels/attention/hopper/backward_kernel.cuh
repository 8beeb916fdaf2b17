// SPDX-License-Identifier: Apache-2.0
// Backward pass on Hopper's tensor cores. A block takes 128 keys of one head at a time and walks
// over the queries that see them: five products a step, none done twice. Keys lie in rows, so
// probabilities are the left operand of the sums of d_v as they stand in registers; the gradients
// of the scores go through shared memory, for d_k and d_q.
//
// The first warpgroup is the producer: warp 0 asks TMA for tiles, warp 1 loads what belongs to
// rows of queries, warps 2 and 3 add the consumers' parts of d_q to those of other keys in global
// memory. The other two warpgroups compute, 64 keys each (64 queries or half of the head for d_q).
#pragma once
#include <algorithm>

#include "kernels/attention/hopper/backward_consume.cuh"
#include "kernels/attention/hopper/backward_dropout_steps.cuh"
#include "kernels/attention/hopper/backward_producer.cuh"
#include "kernels/hopper/tensor_map.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention::hopper {

template <class P>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    attention_backward_hopper_kernel(const __grid_constant__ BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  if (shared % 1024 != 0) __trap();  // TMA's swizzle
  constexpr uint32_t kWarps = kConsumers / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < P::kStagesQ; ++s) {
      barrier_init(shared + P::kFullQ + s * 8, 1 + 32);  // TMA, the row values
      barrier_init(shared + P::kEmptyQ + s * 8, kWarps);
    }
    for (int s = 0; s < P::kStagesDO; ++s) {
      barrier_init(shared + P::kFullDO + s * 8, 1 + 32);
      barrier_init(shared + P::kEmptyDO + s * 8, kWarps);
    }
    barrier_init(shared + P::kFullK, 1);
    barrier_init(shared + P::kEmptyK, kWarps);
    barrier_init(shared + P::kFullV, 1);
    barrier_init(shared + P::kEmptyV, kConsumers / 128);
    for (int c = 0; c < 2; ++c) {
      barrier_init(shared + P::kFullWork + c * 8, 1);
      barrier_init(shared + P::kEmptyWork + c * 8, 1 + 2 + kWarps);
      barrier_init(shared + P::kFullDS + c * 8, kWarps);
      if constexpr (P::kDrops) barrier_init(shared + P::kEmptyDS + c * 8, kWarps);
    }
    for (int i = 0; i < 4; ++i) {
      barrier_init(shared + P::kSumReady + i * 8, 1);
      barrier_init(shared + P::kSumDone + i * 8, kWarps / 2);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<P::kProducerRegisters>();
    const uint32_t warp = threadIdx.x / 32;
    if (warp == 1) {
      load_row_values<P>(p, shared);
    } else if (threadIdx.x % 32 == 0) {
      if (warp == 0) {
        load_tiles<P>(p, shared);
      } else {
        Collector<P>{p, shared, warp - 2, 0, 0, 0, 0}.run();
      }
    }
  } else {
    take_registers<P::kConsumerRegisters>();
    consume<P>(p, shared);
  }
#endif
}

template <class T, int kD, bool kWindowed, bool kScoreMod, bool kDrops>
void launch_backward(const Context& ctx, const BackwardProblem& p) {
  using P = Backward<T, kD, kWindowed, kScoreMod, kDrops>;
  auto* const kernel = attention_backward_hopper_kernel<P>;
  SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(P::kSharedBytes)));
  SAT_CUDA(cudaMemsetAsync(p.added, 0, p.added_bytes, cuda::stream_of(ctx)));
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(p.units, wgmma::blocks_of(ctx)));
  kernel<<<blocks, kBackwardThreads, P::kSharedBytes, cuda::stream_of(ctx)>>>(p);
  SAT_CUDA_LAUNCHED("attention_backward_hopper_kernel");
}

}  // namespace saturate::kernels::attention::hopper
