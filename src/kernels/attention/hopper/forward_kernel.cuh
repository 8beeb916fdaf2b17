// SPDX-License-Identifier: Apache-2.0
// Forward pass on Hopper: TMA brings tiles, wgmma multiplies, softmax in registers.
//
// A block stays for the whole launch (persistent) and takes pieces of work in turn. One thread of
// its last warpgroup for each team, the producer, runs ahead through the same pieces: queries two
// tiles ahead, keys and values through one ring of slots in the order in which they are read
// (forward_work.cuh). Consumer warpgroups own 64 query rows each (forward_consume.cuh):
//
//   S_n-1 = Q K_n-1'
//   for j = n-1 .. 1:  S_j-1 = Q K_j-1' and O += P_j V_j are under way together; the softmax of
//                      S_j-1 (forward_softmax.cuh) runs under the second. The last keys come first,
//                      so that tiles that need a mask lie at the beginning.
//   O += P_0 V_0
//
// What hides the exponentials, which at head size 64 take as long as the products, differs
// (ForwardShape; LADDER.md has what each brought):
//   turns   wide heads: two consumers start their products in turns (named barriers); while one
//           multiplies the other computes exponentials.
//   three   narrow heads, long sequences: three consumers on 192 rows, as they come.
//   teams   narrow heads: two teams of two consumers with tiles of their own. Half the registers
//           leave no room for S_j-1 beside P_j, so a consumer multiplies and computes by turns of
//           its own, and the other three fill its gaps.
//
// A piece of work is one tile of queries of one head, or, if causal, the tiles t and T - 1 - t of
// its T, which together read the same number of keys whatever t is: so pieces are equal and a fixed
// order balances. Pieces of a head are neighbours, and its keys stay in L2.
//
// The row sums start anew only when a maximum grew by more than 2^8 (kLazy): until then values of
// exp2 may exceed 1, which costs no precision in floating point and saves scaling O.
#pragma once
#include "kernels/attention/hopper/forward_consume.cuh"
#include "kernels/device/shared_memory.cuh"

namespace saturate::kernels::attention {

// o = 0 and lse = 0 after the last sequence, shared out among the blocks.
template <class P>
__device__ __forceinline__ void clear_tail(const ForwardProblem& p) {
  for (int64_t r = p.cu_q[p.sequences] + static_cast<int64_t>(blockIdx.x); r < p.q_rows;
       r += gridDim.x) {
    for (int c = static_cast<int>(threadIdx.x); c < p.heads * P::kD; c += P::kThreads)
      static_cast<typename P::T*>(p.o)[r * p.o_stride + c] = from_float<typename P::T>(0.0f);
    for (int h = static_cast<int>(threadIdx.x); h < p.heads; h += P::kThreads)
      p.lse[h * p.q_rows + r] = 0.0f;
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    attention_forward_hopper_kernel(const __grid_constant__ ForwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t start = (wgmma::shared_address(shared) + 1023) & ~1023u;
  const auto slots_of = [&](int team) {
    const uint32_t at = start + team * P::kTeamBytes + P::kBarriersAt;
    return Ring{at, at + P::kSlots * 8};
  };
  const auto query_of = [&](int team) {
    const uint32_t at = slots_of(team).empty + P::kSlots * 8;
    return Ring{at, at + 16};
  };
  const auto open = [](Ring ring, uint32_t count) {
    for (uint32_t s = 0; s < count; ++s) {
      wgmma::barrier_init(ring.full + s * 8, 1);
      wgmma::barrier_init(ring.empty + s * 8, P::kConsumers);
    }
  };
  if (threadIdx.x == 0) {
    wgmma::prefetch_map(p.q);
    wgmma::prefetch_map(p.k);
    wgmma::prefetch_map(p.v);
    for (int team = 0; team < P::kTeams; ++team) {
      open(slots_of(team), P::kSlots);
      open(query_of(team), 2);
    }
    wgmma::barrier_init_fence();
  }
  __syncthreads();
  wgmma::await_previous_kernel();
  clear_tail<P>(p);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int group = warp / 4, producer = warp - P::kTeams * P::kConsumers * 4;
  if (producer >= 0) {
    wgmma::give_registers<P::kProducerRegisters>();
    if (producer < P::kTeams && threadIdx.x % 32 == 0)
      produce_forward<P>(p, producer, start + producer * P::kTeamBytes, query_of(producer),
                         slots_of(producer));
  } else {
    wgmma::take_registers<P::kConsumerRegisters>();
    const int team = group / P::kConsumers;
    const uint32_t tiles = start + team * P::kTeamBytes;
    consume_forward<P>(p, team, tiles, shared + (tiles - wgmma::shared_address(shared)),
                       query_of(team), slots_of(team), group % P::kConsumers);
  }
#endif
}

template <class P>
cudaError_t launch_forward_hopper(const ForwardProblem& p, int blocks, cudaStream_t stream) {
  constexpr auto kKernel = attention_forward_hopper_kernel<P>;
  if (const cudaError_t code = allow_shared_memory<kKernel>(P::kSharedBytes); code != cudaSuccess)
    return code;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(P::kThreads);
  config.dynamicSmemBytes = P::kSharedBytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kKernel, p);
}

template <class T, int kD, bool kDrops>
cudaError_t launch_forward_shapes(bool is_long, const ForwardProblem& p, int blocks,
                                  cudaStream_t stream) {
  if constexpr (kD == 64 && !kDrops) {
    if (is_long) return launch_forward_hopper<ForwardTile<T, kD, kDrops, true>>(p, blocks, stream);
  }
  return launch_forward_hopper<ForwardTile<T, kD, kDrops, false>>(p, blocks, stream);
}

template <int kD, bool kScoreMod>
cudaError_t launch_forward_windowed(DType type, const ForwardProblem& p, int blocks,
                                    cudaStream_t stream) {
  using Half = ForwardTile<__half, kD, false, false, true, kScoreMod>;
  using Bfloat16 = ForwardTile<__nv_bfloat16, kD, false, false, true, kScoreMod>;
  return type == DType::f16 ? launch_forward_hopper<Half>(p, blocks, stream)
                            : launch_forward_hopper<Bfloat16>(p, blocks, stream);
}

template <int kD, bool kDrops>
cudaError_t launch_forward_types(DType type, bool is_long, const ForwardProblem& p, int blocks,
                                 cudaStream_t stream) {
  return type == DType::f16
             ? launch_forward_shapes<__half, kD, kDrops>(is_long, p, blocks, stream)
             : launch_forward_shapes<__nv_bfloat16, kD, kDrops>(is_long, p, blocks, stream);
}

}  // namespace saturate::kernels::attention
