// SPDX-License-Identifier: Apache-2.0
// Forward pass on Hopper for wide heads: as forward_kernel.cuh, whose softmax, units and way to
// memory are used here too, with one tile of queries in shared memory instead of two, and keys and
// values in rings of their own, since their heads may differ in size. The tensor cores need so
// much longer than the exponentials that consumers take no turns.
#pragma once
#include "kernels/attention/hopper/forward_kernel.cuh"
#include "kernels/attention/hopper/forward_windowed.cuh"
#include "kernels/attention/wide/launch.h"
#include "kernels/attention/wide/mma.cuh"
#include "kernels/device/shared_memory.cuh"

namespace saturate::kernels::attention::wide {

// kD: of q and k, kV: of v and o. kWindowed: with windows, alignment and sinks; kScoreMod: with them
// and a soft cap (windowed.h).
template <class T_, int kD_, int kV_, int kKeys_, bool kWindowed_ = false, bool kScoreMod_ = false>
struct ForwardTile {
  using T = T_;
  static constexpr bool kWindowed = kWindowed_, kScoreMod = kScoreMod_;
  static constexpr int kD = kD_, kV = kV_, kKeys = kKeys_;
  static constexpr int kQueries = 128, kConsumers = 2, kTeams = 1, kThreads = 384, kStages = 2;
  static constexpr int kColumnBlocks = kV / 64;  // of a tile of values
  static constexpr uint32_t kQueryBytes = kQueries * kD * 2, kKeyBytes = kKeys * kD * 2;
  static constexpr uint32_t kValueBytes = kKeys * kV * 2;
  static constexpr uint32_t kKeysAt = kQueryBytes, kValuesAt = kKeysAt + kStages * kKeyBytes;
  static constexpr uint32_t kBarriersAt = kValuesAt + kStages * kValueBytes;
  static constexpr uint32_t kSharedBytes = kBarriersAt + (4 * kStages + 2) * 8 + 1024;
  static_assert(kSharedBytes <= 232448);
  static constexpr float kLazy = 8.0f;
  struct Output {  // for what only knows one head size
    using T = T_;
    static constexpr int kD = kV_, kThreads = 384;
  };
};

// The rings of a block, by the address of its tiles.
template <class P>
struct ForwardRings {
  Ring query, keys, values;
  __device__ __forceinline__ explicit ForwardRings(uint32_t tiles) {
    const uint32_t at = tiles + P::kBarriersAt;
    query = {at, at + 8};
    keys = {at + 16, at + 16 + 8 * P::kStages};
    values = {at + 16 + 16 * P::kStages, at + 16 + 24 * P::kStages};
  }
};

// Of tile 0 of a unit.
template <class P>
__device__ __forceinline__ int first_key_of(const ForwardUnit& u) {
  return P::kWindowed ? u.base : 0;
}
// Tiles of a unit that 64 queries from `first` on read.
template <class P>
__device__ __forceinline__ TileRange tiles_read(const ForwardProblem& p, const ForwardUnit& u,
                                                int first) {
  if constexpr (P::kWindowed) return tiles_of<P>(p.windowed, u, first);
  if (first >= u.q.count) return {0, 0};
  return {0, p.causal ? min(u.tiles, (first + 64 + P::kKeys - 1) / P::kKeys) : u.tiles};
}

template <class P>
__device__ inline void produce_forward(const ForwardProblem& p, uint32_t tiles) {
  const ForwardRings<P> rings(tiles);
  uint32_t q_step = 0, step = 0;
  for_each_unit<P>(p, 0, [&](const ForwardUnit& u) {
    rings.query.wait_empty(0, q_step++);
    wgmma::barrier_expect(rings.query.full, P::kQueryBytes);
#pragma unroll(P::kWindowed ? 1 : P::kD / 64)
    for (int c = 0; c < P::kD / 64; ++c)
      wgmma::load_box<false>(tiles + c * (P::kQueries * 128), p.q, rings.query.full,
                             u.head * P::kD + c * 64, u.q.first + u.first);
    const int head = u.head / p.group;
    for (int j = u.tiles - 1; j >= 0; --j, ++step) {
      const uint32_t slot = step % P::kStages, round = step / P::kStages;
      const int row = u.k.first + first_key_of<P>(u) + j * P::kKeys;
      rings.keys.wait_empty(slot, round);
      wgmma::barrier_expect(rings.keys.full + slot * 8, P::kKeyBytes);
#pragma unroll(P::kWindowed ? 1 : P::kD / 64)
      for (int c = 0; c < P::kD / 64; ++c)
        wgmma::load_box<false>(tiles + P::kKeysAt + slot * P::kKeyBytes + c * (P::kKeys * 128), p.k,
                               rings.keys.full + slot * 8, head * P::kD + c * 64, row);
      rings.values.wait_empty(slot, round);
      wgmma::barrier_expect(rings.values.full + slot * 8, P::kValueBytes);
#pragma unroll(P::kWindowed ? 1 : P::kV / 64)
      for (int c = 0; c < P::kV / 64; ++c)
        wgmma::load_box<false>(tiles + P::kValuesAt + slot * P::kValueBytes + c * (P::kKeys * 128),
                               p.v, rings.values.full + slot * 8, head * P::kV + c * 64, row);
    }
  });
}

// S = Q K' for the 64 rows of a warpgroup.
template <class P>
__device__ __forceinline__ void multiply_rows(float (&s)[P::kKeys / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int c = 0; c < P::kD / 16; ++c) {
    const uint32_t block = c / 4, in_block = c % 4 * 32;
    wide::mma<typename P::T, P::kKeys>(
        s, wgmma::descriptor(q + (block * P::kQueries * 128 + in_block) / 16, 1024),
        wgmma::descriptor(k + (block * P::kKeys * 128 + in_block) / 16, 1024), c);
  }
}
// O += P V.
template <class P>
__device__ __forceinline__ void multiply_columns(float (&o)[P::kV / 2],
                                                 const uint32_t (&weights)[P::kKeys / 16][4],
                                                 uint32_t v) {
#pragma unroll
  for (int c = 0; c < P::kKeys / 16; ++c)
    wide::mma_from_registers<typename P::T, P::kV>(o, weights[c],
                                                   wgmma::descriptor(v + c * 2048 / 16, 1024), 1);
}

template <class P>
__device__ inline void consume_forward(const ForwardProblem& p, uint32_t tiles, char* shared,
                                       int consumer) {
  const ForwardRings<P> rings(tiles);
  const int own_barrier = 4 + consumer;
  const int warp_row = consumer * 64 + static_cast<int>(threadIdx.x % 128 / 32) * 16;
  const uint32_t q = wgmma::descriptor_low(tiles + consumer * 64 * 128, 16);
  uint32_t q_step = 0, step = 0;
  const auto low_k = [&](uint32_t n) {
    return wgmma::descriptor_low(tiles + P::kKeysAt + n % P::kStages * P::kKeyBytes, 16);
  };
  const auto value_slot = [&](uint32_t n) {
    return P::kValuesAt + n % P::kStages * P::kValueBytes;
  };
  const auto low_v = [&](uint32_t n) {
    return wgmma::descriptor_low(tiles + value_slot(n), P::kKeys * 128);
  };
  const auto arrived = [&](Ring r, uint32_t n) { r.wait_full(n % P::kStages, n / P::kStages); };
  const auto release = [&](Ring r, uint32_t n) {
    if (threadIdx.x % 128 == 0) r.release(n % P::kStages);
  };
  // Passes over tiles that these 64 rows do not read. One warp waits for them and the others for
  // it: nothing else would keep a late warp from missing two rounds of a slot, which look like
  // none.
  const auto skip = [&](int count) {
    if (count <= 0) return;
    if (threadIdx.x % 128 < 32)
      for (uint32_t n = step; n < step + count; ++n) {
        arrived(rings.keys, n);
        release(rings.keys, n);
        arrived(rings.values, n);
        release(rings.values, n);
      }
    step += count;
    wgmma::named_sync(own_barrier, 128);
  };
  for_each_unit<P>(p, 0, [&](const ForwardUnit& u) {
    const int first = u.first + consumer * 64;
    const int row = u.first + warp_row + lane() / 4;  // and the one 8 below
    float o[P::kV / 2], s[P::kKeys / 2];
    uint32_t weights[P::kKeys / 16][4];
    float top[2] = {-CUDART_INF_F, -CUDART_INF_F}, weight[2] = {0.0f, 0.0f}, shrink[2];
#pragma unroll
    for (int j = 0; j < P::kV / 2; ++j) o[j] = 0.0f;
    if constexpr (P::kWindowed) begin_with_sink(p, u, top, weight);
    rings.query.wait_full(0, q_step++);
    const auto weigh = [&](int j) {
      const int first_key = first_key_of<P>(u) + j * P::kKeys;
      if constexpr (P::kScoreMod) {
#pragma unroll
        for (float& x : s) x = p.windowed.capped(x);
      }
      if constexpr (P::kWindowed)
        mask_windowed<P>(p, u, s, first_key, first, row);
      else if (first_key + P::kKeys > u.k.count || (p.causal && first_key + P::kKeys - 1 > first))
        mask<P>(s, first_key + lane() % 4 * 2, u.k.count, p.causal, row);
      softmax<P>(s, top, weight, shrink, P::kScoreMod ? 1.0f : p.scale_log2);
    };
    const auto clear = [&](int j) {
      const int keys = u.k.count - first_key_of<P>(u);
      if ((j + 1) * P::kKeys > keys)
        clear_values<P>(shared + value_slot(step), keys - j * P::kKeys, own_barrier);
    };
    const auto [begin, mine] = tiles_read<P>(p, u, first);
    skip(u.tiles - mine);
    if (mine > 0) {
      arrived(rings.keys, step);
      wgmma::mma_fence();
      multiply_rows<P>(s, q, low_k(step));
      wgmma::mma_commit();
      wgmma::mma_wait<0>();
      wgmma::settle(s);
      release(rings.keys, step);
      weigh(mine - 1);
      to_weights<P>(weights, s);
      for (int j = mine - 1; j > begin; --j, ++step) {
        arrived(rings.keys, step + 1);
        arrived(rings.values, step);
        clear(j);
        wgmma::mma_fence();
        multiply_rows<P>(s, q, low_k(step + 1));
        wgmma::mma_commit();
        multiply_columns<P>(o, weights, low_v(step));
        wgmma::mma_commit();
        wgmma::mma_wait<1>();
        wgmma::settle(s);
        weigh(j - 1);
        // Asks for the sums, so that the exponentials stay before the wait (forward_consume.cuh).
        if (!(weight[0] + weight[1] < 0.0f)) release(rings.keys, step + 1);
        wgmma::mma_wait<0>();
        wgmma::settle(o);
        release(rings.values, step);
        to_weights<P>(weights, s);
        if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < P::kV / 2; ++i) o[i] *= shrink[i / 2 % 2];
        }
      }
    }
    if (threadIdx.x % 128 == 0) rings.query.release(0);
    if (mine > 0) {
      arrived(rings.values, step);
      clear(begin);
      wgmma::mma_fence();
      multiply_columns<P>(o, weights, low_v(step));
      wgmma::mma_commit();
      wgmma::mma_wait<0>();
      wgmma::settle(o);
      release(rings.values, step);
      ++step;
    }
    skip(begin);
    write_forward<typename P::Output>(p, u, o, top, weight, row);
  });
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    attention_forward_wide_kernel(const __grid_constant__ ForwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (wgmma::shared_address(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    wgmma::prefetch_map(p.q);
    wgmma::prefetch_map(p.k);
    wgmma::prefetch_map(p.v);
    const ForwardRings<P> rings(tiles);
    const auto open = [](Ring ring, uint32_t count) {
      for (uint32_t s = 0; s < count; ++s) {
        wgmma::barrier_init(ring.full + s * 8, 1);
        wgmma::barrier_init(ring.empty + s * 8, P::kConsumers);
      }
    };
    open(rings.query, 1);
    open(rings.keys, P::kStages);
    open(rings.values, P::kStages);
    wgmma::barrier_init_fence();
  }
  __syncthreads();
  wgmma::await_previous_kernel();
  clear_tail<typename P::Output>(p);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (group == P::kConsumers) {
    wgmma::give_registers<40>();
    if (threadIdx.x % 128 == 0) produce_forward<P>(p, tiles);
  } else {
    wgmma::take_registers<232>();
    consume_forward<P>(p, tiles, shared + (tiles - wgmma::shared_address(shared)), group);
  }
#endif
}

template <class T, int kD, bool kWindowed, bool kScoreMod>
cudaError_t launch_forward(const ForwardProblem& p, int blocks, cudaStream_t stream) {
  using P = ForwardTile<T, kD, value_size(kD), forward_keys(kD), kWindowed, kScoreMod>;
  constexpr auto kKernel = attention_forward_wide_kernel<P>;
  if (const cudaError_t code = allow_shared_memory<kKernel>(P::kSharedBytes); code != cudaSuccess)
    return code;
  kKernel<<<static_cast<unsigned>(blocks), P::kThreads, P::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace saturate::kernels::attention::wide
