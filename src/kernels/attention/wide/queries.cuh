// SPDX-License-Identifier: Apache-2.0
// Backward pass on Hopper for wide heads, gradients of the queries. Two kernels share the work, as
// d_k and d_v of a tile fill the registers: this one multiplies q k' and d_o v' again. A block
// keeps 128 rows of q and d_o in shared memory and walks over their keys, last ones first, as the
// forward pass does; each of two consumers has 64 rows, whose d_q stay in its registers:
//
//   for each tile of keys j:  S_j+1 = Q K', dP_j+1 = dO V' and d_q += dS_j K are under way
//   together;
//                             dS_j+1 = P (dP - delta) is computed under the last.
#pragma once
#include "kernels/attention/hopper/backward_device.cuh"
#include "kernels/attention/wide/forward.cuh"
#include "kernels/attention/wide/launch.h"
#include "kernels/device/shared_memory.cuh"

namespace saturate::kernels::attention::wide {

template <class T_, int kD_, int kV_, bool kWindowed_ = false, bool kScoreMod_ = false>
struct QueryTile {
  using T = T_;
  static constexpr bool kWindowed = kWindowed_, kScoreMod = kScoreMod_;
  static constexpr int kD = kD_, kV = kV_, kKeys = query_keys(kD_);
  static constexpr int kQueries = kQueryRows, kConsumers = 2, kTeams = 1, kThreads = 384;
  // A tile of keys is needed longer than its values.
  static constexpr int kStagesK = 2, kStagesV = kD == 256 ? 1 : 2;
  static constexpr int kColumnBlocks = kD / 64;  // of a tile of keys
  static constexpr uint32_t kQueryBytes = kQueries * kD * 2, kOutputBytes = kQueries * kV * 2;
  static constexpr uint32_t kKeyBytes = kKeys * kD * 2, kValueBytes = kKeys * kV * 2;
  static constexpr uint32_t kOutputsAt = kQueryBytes, kKeysAt = kOutputsAt + kOutputBytes;
  static constexpr uint32_t kValuesAt = kKeysAt + kStagesK * kKeyBytes;
  static constexpr uint32_t kBarriersAt = kValuesAt + kStagesV * kValueBytes;
  static constexpr uint32_t kSharedBytes = kBarriersAt + (2 * kStagesK + 2 * kStagesV + 2) * 8;
  static_assert(kSharedBytes <= 232448);
  // For the products of d_o and v, which are those of q and k at another size.
  struct Values {
    using T = T_;
    static constexpr int kD = kV_, kKeys = QueryTile::kKeys, kQueries = QueryTile::kQueries;
  };
  // d_q += dS K, as O += P V.
  struct Sums {
    using T = T_;
    static constexpr int kV = kD_, kKeys = QueryTile::kKeys;
  };
};

template <class P>
struct QueryRings {
  Ring query, keys, values;
  __device__ __forceinline__ explicit QueryRings(uint32_t tiles) {
    const uint32_t at = tiles + P::kBarriersAt, v = at + 16 + 16 * P::kStagesK;
    query = {at, at + 8};
    keys = {at + 16, at + 16 + 8 * P::kStagesK};
    values = {v, v + 8 * P::kStagesV};
  }
};

template <class P>
__device__ inline void produce_queries(const BackwardProblem& p, uint32_t tiles) {
  const QueryRings<P> rings(tiles);
  uint32_t q_step = 0, step = 0;
  // kRows rows of a head whose columns begin at x.
  const auto load = [&]<int kRows, int kColumns>(const CUtensorMap& map, uint32_t to, uint32_t full,
                                                 int x, int y) {
    wgmma::barrier_expect(full, kRows * kColumns * 2);
#pragma unroll(P::kWindowed ? 1 : kColumns / 64)
    for (int c = 0; c < kColumns / 64; ++c)
      wgmma::load_box<false>(to + c * (kRows * 128), map, full, x + c * 64, y);
  };
  for_each_unit<P>(p, 0, [&](const ForwardUnit& u) {
    rings.query.wait_empty(0, q_step++);
    const int row = u.q.first + u.first, head = u.head / p.group;
    wgmma::barrier_expect(rings.query.full, P::kQueryBytes + P::kOutputBytes);
#pragma unroll
    for (int c = 0; c < P::kD / 64; ++c)
      wgmma::load_box<false>(tiles + c * (P::kQueries * 128), p.q, rings.query.full,
                             u.head * P::kD + c * 64, row);
#pragma unroll
    for (int c = 0; c < P::kV / 64; ++c)
      wgmma::load_box<false>(tiles + P::kOutputsAt + c * (P::kQueries * 128), p.d_o,
                             rings.query.full, u.head * P::kV + c * 64, row);
    for (int j = u.tiles - 1; j >= 0; --j, ++step) {
      const int key = u.k.first + first_key_of<P>(u) + j * P::kKeys;
      const uint32_t k = step % P::kStagesK, v = step % P::kStagesV;
      rings.keys.wait_empty(k, step / P::kStagesK);
      load.template operator()<P::kKeys, P::kD>(p.k, tiles + P::kKeysAt + k * P::kKeyBytes,
                                                rings.keys.full + k * 8, head * P::kD, key);
      rings.values.wait_empty(v, step / P::kStagesV);
      load.template operator()<P::kKeys, P::kV>(p.v, tiles + P::kValuesAt + v * P::kValueBytes,
                                                rings.values.full + v * 8, head * P::kV, key);
    }
  });
}

template <class P>
__device__ inline void consume_queries(const BackwardProblem& p, uint32_t tiles, char* shared,
                                       int consumer) {
  const QueryRings<P> rings(tiles);
  const int own_barrier = 4 + consumer;
  const int warp_row = consumer * 64 + static_cast<int>(threadIdx.x % 128 / 32) * 16;
  const uint32_t q = wgmma::descriptor_low(tiles + consumer * 64 * 128, 16);
  const uint32_t d_o = wgmma::descriptor_low(tiles + P::kOutputsAt + consumer * 64 * 128, 16);
  uint32_t q_step = 0, step = 0;
  const auto key_slot = [&](uint32_t n) { return P::kKeysAt + n % P::kStagesK * P::kKeyBytes; };
  const auto release = [&](Ring r, uint32_t slot) {
    if (threadIdx.x % 128 == 0) r.release(slot);
  };
  const float cap_factor = P::kScoreMod ? __fdividef(1.0f, p.windowed.cap_out) : 0.0f;
  // Passes over tiles that these 64 rows do not read, see forward.cuh.
  const auto skip = [&](int count) {
    if (count <= 0) return;
    if (threadIdx.x % 128 < 32)
      for (uint32_t n = step; n < step + count; ++n) {
        rings.keys.wait_full(n % P::kStagesK, n / P::kStagesK);
        release(rings.keys, n % P::kStagesK);
        rings.values.wait_full(n % P::kStagesV, n / P::kStagesV);
        release(rings.values, n % P::kStagesV);
      }
    step += count;
    wgmma::named_sync(own_barrier, 128);
  };
  for_each_unit<P>(p, 0, [&](const ForwardUnit& u) {
    const int first = u.first + consumer * 64;
    const int row = u.first + warp_row + lane() / 4;  // and the one 8 below
    float d_q[P::kD / 2], s[P::kKeys / 2], d_p[P::kKeys / 2];
    uint32_t packed[P::kKeys / 16][4];
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = u.head * p.q_rows + u.q.first + row + half * 8;
      const bool exists = row + half * 8 < u.q.count;
      lse[half] = exists ? p.lse[at] * kLog2e : 0.0f;
      delta[half] = exists ? p.delta[at] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < P::kD / 2; ++j) d_q[j] = 0.0f;
    // Scores and d_p of the tile in this step, one group of instructions each.
    const auto multiply = [&] {
      const uint32_t k = step % P::kStagesK, v = step % P::kStagesV;
      rings.keys.wait_full(k, step / P::kStagesK);
      wgmma::mma_fence();
      multiply_rows<P>(s, hopper::here(q), wgmma::descriptor_low(tiles + key_slot(step), 16));
      wgmma::mma_commit();
      rings.values.wait_full(v, step / P::kStagesV);
      wgmma::mma_fence();
      multiply_rows<typename P::Values>(
          d_p, hopper::here(d_o),
          wgmma::descriptor_low(tiles + P::kValuesAt + v * P::kValueBytes, 16));
      wgmma::mma_commit();
    };
    // s becomes the gradients of the scores. Keys that do not exist or are not seen give none,
    // whatever lies in their place.
    const auto differentiate = [&](int j) {
      const int first_key = first_key_of<P>(u) + j * P::kKeys;
#pragma unroll
      for (int i = 0; i < P::kKeys / 2; ++i) {
        const float error = d_p[i] - delta[i / 2 % 2];
        if constexpr (P::kScoreMod) {
          const float x = p.windowed.capped(s[i]),
                      bent = x * cap_factor;  // tanh of what was capped
          s[i] = exp2_fast(x - lse[i / 2 % 2]) * error * (1.0f - bent * bent);
        } else {
          s[i] = exp2_fast(s[i] * p.scale_log2 - lse[i / 2 % 2]) * error;
        }
      }
      const int shift = P::kWindowed ? u.shift : 0, place = first + shift;
      const int right = P::kWindowed ? p.windowed.right : p.causal ? 0 : u.k.count;
      const bool early = P::kWindowed && first_key < place + 63 - p.windowed.left;
      if (early || first_key + P::kKeys > u.k.count || first_key + P::kKeys - 1 > place + right) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = row + half * 8 + shift, column = first_key + lane() % 4 * 2;
          const int end = min(u.k.count, at + right + 1) - column;
          const int begin = P::kWindowed ? at - p.windowed.left - column : 0;
#pragma unroll
          for (int i = 0; i < P::kKeys / 8; ++i)
#pragma unroll
            for (int c = 0; c < 2; ++c)
              if (i * 8 + c >= end || (P::kWindowed && i * 8 + c < begin))
                s[i * 4 + half * 2 + c] = 0.0f;
        }
      }
    };
    const auto add = [&](uint32_t n, int j) {  // d_q += dS K for tile j, in slot n
      const int keys = u.k.count - first_key_of<P>(u);
      if ((j + 1) * P::kKeys > keys)
        clear_values<P>(shared + key_slot(n), keys - j * P::kKeys, own_barrier);
      wgmma::mma_fence();
      multiply_columns<typename P::Sums>(
          d_q, packed, wgmma::descriptor_low(tiles + key_slot(n), P::kKeys * 128));
      wgmma::mma_commit();
    };
    rings.query.wait_full(0, q_step++);
    const auto [begin, mine] = tiles_read<P>(p, u, first);
    skip(u.tiles - mine);
    if (mine > 0) {
      multiply();
      wgmma::mma_wait<0>();
      wgmma::settle(s);
      wgmma::settle(d_p);
      release(rings.values, step % P::kStagesV);
      differentiate(mine - 1);
      to_weights<P>(packed, s);
      for (int j = mine - 1; j > begin; --j) {
        add(step, j);
        ++step;
        multiply();
        wgmma::mma_wait<2>();
        wgmma::settle(d_q);
        release(rings.keys, (step - 1) % P::kStagesK);
        wgmma::mma_wait<0>();
        wgmma::settle(s);
        wgmma::settle(d_p);
        release(rings.values, step % P::kStagesV);
        differentiate(j - 1);
        to_weights<P>(packed, s);
      }
    }
    release(rings.query, 0);
    if (mine > 0) {
      add(step, begin);
      wgmma::mma_wait<0>();
      wgmma::settle(d_q);
      release(rings.keys, step % P::kStagesK);
      ++step;
    }
    skip(begin);
    hopper::write_rows_of<typename P::T, P::kD>(
        row_of<typename P::T>(p.d_q, u.q.first + first, p.d_q_stride, u.head, P::kD), p.d_q_stride,
        u.q.count - first, d_q, p.scale);
  });
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    attention_backward_wide_queries_kernel(const __grid_constant__ BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared_tiles[];
  const uint32_t tiles = wgmma::shared_address(shared_tiles);
  if (tiles % 1024 != 0) __trap();  // TMA's swizzle
  if (threadIdx.x == 0) {
    const QueryRings<P> rings(tiles);
    const auto open = [](Ring ring, uint32_t count) {
      for (uint32_t s = 0; s < count; ++s) {
        wgmma::barrier_init(ring.full + s * 8, 1);
        wgmma::barrier_init(ring.empty + s * 8, P::kConsumers);
      }
    };
    open(rings.query, 1);
    open(rings.keys, P::kStagesK);
    open(rings.values, P::kStagesV);
    wgmma::barrier_init_fence();
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (group == P::kConsumers) {
    wgmma::give_registers<24>();
    if (threadIdx.x % 128 == 0) produce_queries<P>(p, tiles);
  } else {
    wgmma::take_registers<240>();
    consume_queries<P>(p, tiles, shared_tiles, group);
  }
  wgmma::await_previous_kernel();  // who waits for this kernel waits for that one's results too
#endif
}

// In the stream right after launch_keys(): blocks start as that kernel's blocks end.
template <class T, int kD, bool kWindowed, bool kScoreMod>
cudaError_t launch_queries(const BackwardProblem& p, int blocks, cudaStream_t stream) {
  using P = QueryTile<T, kD, value_size(kD), kWindowed, kScoreMod>;
  constexpr auto kKernel = attention_backward_wide_queries_kernel<P>;
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

}  // namespace saturate::kernels::attention::wide
