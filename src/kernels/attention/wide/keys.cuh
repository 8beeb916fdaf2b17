// SPDX-License-Identifier: Apache-2.0
// Backward pass on Hopper for wide heads, gradients of keys and values. A block takes 64 keys of a
// head and walks over the queries that see them, 64 a step. Sums of d_k and d_v of that size fill
// the registers of two warpgroups, so each has one of them, and the scores that lead there:
//
//   consumer 0:  S' = K Q', P = exp(S' - lse), d_v += P dO
//   consumer 1:  dP' = V dO', dS = P (dP' - delta), d_k += dS Q
//
// P goes from one to the other through shared memory, thread by thread; keys lie in rows, so P and
// dS are left operands as they stand in registers. Each
// step's sums are multiplied before the next step's scores, so that tiles leave early and others
// come in time; what a consumer computes of its own runs under the other's products. The first
// warpgroup is the producer (keys_producer.cuh).
#pragma once
#include "kernels/attention/wide/keys_producer.cuh"
#include "kernels/attention/wide/launch.h"
#include "kernels/device/shared_memory.cuh"

namespace saturate::kernels::attention::wide {

template <class P>
struct KeyConsumer {
  using T = typename P::T;
  static constexpr int kM = P::kM, kN = P::kN;
  const BackwardProblem& p;
  uint32_t tiles;
  uint32_t step;  // of all units

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x % 128); }
  __device__ __forceinline__ void release(uint32_t bar) const {
    if (threadIdx.x % 32 == 0) hopper::barrier_arrive(tiles + bar);
  }
  __device__ __forceinline__ void await_queries(uint32_t n) const {
    wgmma::barrier_wait(tiles + P::kFullQ + n % P::kStages * 8, n / P::kStages & 1);
  }
  __device__ __forceinline__ void await_outputs(uint32_t n) const {
    wgmma::barrier_wait(tiles + P::kFullDO + n % P::kStages * 8, n / P::kStages & 1);
  }
  // Of a tile of queries, to all blocks that write into it.
  __device__ __forceinline__ void release_shared(uint32_t bar) const {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (P::kCluster == 1)
      release(bar);
    else if (lane < P::kCluster)
      wgmma::barrier_arrive_at(tiles + bar, lane);
  }
  // Both tiles of step n, whose rows from `valid` on become zero: they belong to others, and 0
  // times what they hold may be NaN. By both consumers.
  __device__ __forceinline__ void clear(uint32_t n, int valid) const {
    if (valid >= kM) return;
    const uint32_t stage = n % P::kStages;
    await_queries(n);
    await_outputs(n);
    const int at = static_cast<int>(threadIdx.x) - 128;
    hopper::clear_rows<kM, P::kD / 64>(tiles + P::kQ + stage * P::kQueryTile, valid, kM, at);
    hopper::clear_rows<kM, P::kV / 64>(tiles + P::kDO + stage * P::kOutputTile, valid, kM, at);
  }
  // sum (keys, queries) = the tile of keys or values times that of step n.
  template <int kSize>
  __device__ __forceinline__ void score(float (&sum)[kM / 2], uint32_t left, uint32_t right) const {
    const uint32_t a = hopper::here(wgmma::descriptor_low(left, 16));
    const uint32_t b = hopper::here(wgmma::descriptor_low(right, 16));
#pragma unroll
    for (int c = 0; c < kSize / 16; ++c)
      wide::mma<T, kM>(sum, wgmma::descriptor(a + c / 4 * (kN * 128 / 16) + c % 4 * 2, 1024),
                       wgmma::descriptor(b + c / 4 * (kM * 128 / 16) + c % 4 * 2, 1024), c);
    wgmma::mma_commit();
  }
  // sum += left times the tile of queries at `right`.
  template <int kSize>
  __device__ __forceinline__ void add(float (&sum)[kSize / 2], const uint32_t (&left)[kM / 16][4],
                                      uint32_t right) const {
    const uint32_t b = hopper::here(wgmma::descriptor_low(right, kM * 128));
#pragma unroll
    for (int c = 0; c < kM / 16; ++c)
      wide::mma_from_registers<T, kSize>(sum, left[c], wgmma::descriptor(b + c * 128, 1024), 1);
    wgmma::mma_commit();
  }
  static __device__ __forceinline__ void pack(uint32_t (&left)[kM / 16][4],
                                              const float (&x)[kM / 2]) {
#pragma unroll
    for (int c = 0; c < kM / 16; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        left[c][i] = wgmma::pack<T>(x[c * 8 + i * 2], x[c * 8 + i * 2 + 1]);
  }
  // This thread's part of P of step n.
  __device__ __forceinline__ uint32_t weights_at(uint32_t n) const {
    return tiles + P::kP + n % 2 * P::kScoreTile +
           hopper::here(static_cast<uint32_t>(thread())) * 16;
  }
  static __device__ __forceinline__ void read(uint32_t (&w)[4], uint32_t from) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
  }

  // --- consumer 0

  // left = P, also for the other consumer.
  __device__ __forceinline__ void weigh(uint32_t (&left)[kM / 16][4], float (&s)[kM / 2],
                                        uint32_t n, int ahead) const {
    const int l = thread() % 32, key = thread() / 32 * 16 + l / 4;
    const uint32_t lse = tiles + P::kLse + n % P::kStages * kM * 4 + l % 4 * 8;
    // With a cap, the other consumer gets P times the cap's slope, which is all that it needs.
    float slope[P::kScoreMod ? kM / 2 : 1];
    const float cap_factor = P::kScoreMod ? __fdividef(1.0f, p.windowed.cap_out) : 0.0f;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      const float2 x = hopper::load_pair(lse + j * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& at = s[4 * j + e];
        if constexpr (P::kScoreMod) {
          at = p.windowed.capped(at);
          const float bent = at * cap_factor;  // tanh of what was capped
          slope[4 * j + e] = 1.0f - bent * bent;
        } else {
          at *= p.scale_log2;
        }
        at = exp2_fast(at - (e % 2 == 0 ? x.x : x.y));
      }
    }
    // Queries from `ahead` keys after the first on.
    const int left_bound = P::kWindowed ? p.windowed.left : 0;
    const int right = P::kWindowed ? p.windowed.right : 0;
    if (P::kWindowed ? ahead - (kN - 1) < -right || ahead + kM - 1 > left_bound
                     : p.causal && ahead < kN - 1) {
#pragma unroll
      for (int j = 0; j < kM / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int behind = ahead + j * 8 + l % 4 * 2 + e % 2 - (key + e / 2 * 8);
          if (behind < -right || (P::kWindowed && behind > left_bound)) s[4 * j + e] = 0.0f;
        }
    }
    wgmma::barrier_wait(tiles + P::kEmptyP + n % 2 * 8, (n / 2 & 1) ^ 1);
    const uint32_t to = weights_at(n);
    pack(left, s);
    uint32_t shown[kM / 16][4];
    if constexpr (P::kScoreMod) {
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) s[i] *= slope[i];
    }
    pack(shown, s);
#pragma unroll
    for (int c = 0; c < kM / 16; ++c)
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + c * 2048),
                   "r"(shown[c][0]), "r"(shown[c][1]), "r"(shown[c][2]), "r"(shown[c][3])
                   : "memory");
    __syncwarp();
    release(P::kFullP + n % 2 * 8);
    release_shared(P::kEmptyQ + n % P::kStages * 8);
  }
  __device__ __forceinline__ void sum_values(float (&d_v)[P::kV / 2], const KeyUnit& u) {
    if (u.steps(p.group) == 0) return;
    float s[kM / 2];
    uint32_t left[kM / 16][4];
    const auto multiply = [&](uint32_t n, int m) {
      clear(n, u.q.count - m * kM);
      await_queries(n);
      wgmma::mma_fence();
      score<P::kD>(s, tiles + P::kK, tiles + P::kQ + n % P::kStages * P::kQueryTile);
    };
    const auto add_values = [&](uint32_t n) {
      await_outputs(n);
      wgmma::mma_fence();
      add<P::kV>(d_v, left, tiles + P::kDO + n % P::kStages * P::kOutputTile);
    };
    multiply(step, u.begin);
    wgmma::mma_wait<0>();
    wgmma::settle(s);
    weigh(left, s, step, u.begin * kM + u.shift - u.first);
    int m = u.begin;
    for (int i = u.steps(p.group) - 1; i > 0; --i) {
      m = m + 1 == u.end ? u.begin : m + 1;
      add_values(step);
      multiply(step + 1, m);
      wgmma::mma_wait<1>();
      wgmma::settle(d_v);
      release_shared(P::kEmptyDO + step % P::kStages * 8);
      wgmma::mma_wait<0>();
      wgmma::settle(s);
      ++step;
      weigh(left, s, step, m * kM + u.shift - u.first);
    }
    release(P::kEmptyK);
    add_values(step);
    wgmma::mma_wait<0>();
    wgmma::settle(d_v);
    release_shared(P::kEmptyDO + step % P::kStages * 8);
    ++step;
  }

  // --- consumer 1

  // left = dS.
  __device__ __forceinline__ void differentiate(uint32_t (&left)[kM / 16][4],
                                                const float (&d_p)[kM / 2], uint32_t n) const {
    const uint32_t delta =
        tiles + P::kDelta + n % P::kStages * kM * 4 + static_cast<uint32_t>(thread() % 4) * 8;
    wgmma::barrier_wait(tiles + P::kFullP + n % 2 * 8, n / 2 & 1);
    const uint32_t from = weights_at(n);
#pragma unroll
    for (int c = 0; c < kM / 16; ++c) {
      uint32_t w[4];
      read(w, from + c * 2048);
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // columns of eight queries
        const float2 x = hopper::load_pair(delta + (c * 2 + h) * 32);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 weight = hopper::unpack<T>(w[h * 2 + r]);
          const float* d = &d_p[(c * 2 + h) * 4 + r * 2];
          left[c][h * 2 + r] = wgmma::pack<T>(weight.x * (d[0] - x.x), weight.y * (d[1] - x.y));
        }
      }
    }
    __syncwarp();
    release(P::kEmptyP + n % 2 * 8);
    release_shared(P::kEmptyDO + n % P::kStages * 8);
  }
  __device__ __forceinline__ void sum_keys(float (&d_k)[P::kD / 2], const KeyUnit& u) {
    if (u.steps(p.group) == 0) return;
    float d_p[kM / 2];
    uint32_t left[kM / 16][4];
    const auto multiply = [&](uint32_t n, int m) {
      clear(n, u.q.count - m * kM);
      await_outputs(n);
      wgmma::mma_fence();
      score<P::kV>(d_p, tiles + P::kValues, tiles + P::kDO + n % P::kStages * P::kOutputTile);
    };
    const auto add_keys = [&](uint32_t n) {
      await_queries(n);
      wgmma::mma_fence();
      add<P::kD>(d_k, left, tiles + P::kQ + n % P::kStages * P::kQueryTile);
    };
    multiply(step, u.begin);
    wgmma::mma_wait<0>();
    wgmma::settle(d_p);
    differentiate(left, d_p, step);
    int m = u.begin;
    for (int i = u.steps(p.group) - 1; i > 0; --i) {
      m = m + 1 == u.end ? u.begin : m + 1;
      add_keys(step);
      multiply(step + 1, m);
      wgmma::mma_wait<1>();
      wgmma::settle(d_k);
      release_shared(P::kEmptyQ + step % P::kStages * 8);
      wgmma::mma_wait<0>();
      wgmma::settle(d_p);
      ++step;
      differentiate(left, d_p, step);
    }
    release(P::kEmptyV);
    add_keys(step);
    wgmma::mma_wait<0>();
    wgmma::settle(d_k);
    release_shared(P::kEmptyQ + step % P::kStages * 8);
    ++step;
  }
};

// One consumer: kMe says which.
template <class P, int kMe>
__device__ inline void consume_keys(const BackwardProblem& p, uint32_t tiles) {
  using T = typename P::T;
  constexpr int kSize = kMe == 0 ? P::kV : P::kD;
  KeyConsumer<P> c{p, tiles, 0};
  uint32_t round = 0;
  for_each_key_unit<P>(p, [&](const KeyUnit& u) {
    float sum[kSize / 2];
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) sum[i] = 0.0f;
    if (u.steps(p.group) > 0)
      wgmma::barrier_wait(tiles + (kMe == 0 ? P::kFullK : P::kFullV), round++ & 1);
    if constexpr (kMe == 0)
      c.sum_values(sum, u);
    else
      c.sum_keys(sum, u);
    const int64_t stride = kMe == 0 ? p.d_v_stride : p.d_k_stride;
    hopper::write_rows_of<T, kSize>(
        row_of<T>(kMe == 0 ? p.d_v : p.d_k, u.k.first + u.first, stride, u.head, kSize), stride,
        u.k.count - u.first, sum, kMe == 0 ? 1.0f : p.scale);
  });
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    attention_backward_wide_keys_kernel(const __grid_constant__ BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char key_tiles[];
  const uint32_t tiles = wgmma::shared_address(key_tiles);
  if (tiles % 1024 != 0) __trap();  // TMA's swizzle
  if (threadIdx.x == 0) open_key_barriers<P>(tiles);
  // The next kernel reads nothing that this one writes, so its blocks may start where blocks of
  // this one have ended.
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if constexpr (P::kCluster > 1)
    wgmma::cluster_sync();
  else
    __syncthreads();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (group == 0) {
    wgmma::give_registers<40>();
    const uint32_t warp = threadIdx.x / 32;
    if (warp == 1) {
      load_row_values<P>(p, tiles);
    } else if (threadIdx.x == 0) {
      produce_keys<P>(p, tiles);
    }
  } else if (group == 1) {
    wgmma::take_registers<232>();
    consume_keys<P, 0>(p, tiles);
  } else {
    wgmma::take_registers<232>();
    consume_keys<P, 1>(p, tiles);
  }
  if constexpr (P::kCluster > 1) {  // others write here until they have ended
    __syncwarp();
    wgmma::cluster_sync();
  }
#endif
}

template <class T, int kD, bool kWindowed, bool kScoreMod>
cudaError_t launch_keys(const BackwardProblem& p, int blocks, cudaStream_t stream) {
  using P = KeyTile<T, kD, value_size(kD), kWindowed, kScoreMod>;
  constexpr auto kKernel = attention_backward_wide_keys_kernel<P>;
  if (const cudaError_t code = allow_shared_memory<kKernel>(P::kSharedBytes); code != cudaSuccess)
    return code;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = P::kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(P::kThreads);
  config.dynamicSmemBytes = P::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = P::kCluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kKernel, p);
}

}  // namespace saturate::kernels::attention::wide
