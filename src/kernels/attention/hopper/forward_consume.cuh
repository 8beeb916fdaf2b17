// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the Hopper forward kernel: 64 query rows through their keys.
#pragma once
#include "kernels/attention/hopper/forward_softmax.cuh"
#include "kernels/attention/hopper/forward_windowed.cuh"
#include "kernels/attention/hopper/forward_work.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace saturate::kernels::attention {

// S = Q K' for the 64 rows of a warpgroup.
template <class P>
__device__ __forceinline__ void multiply_scores(float (&s)[P::kKeys / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int c = 0; c < P::kD / 16; ++c) {
    const uint32_t block = c / 4, in_block = c % 4 * 32;
    wgmma::mma<typename P::T, P::kKeys, 0, 0>(
        s, wgmma::descriptor(q + (block * P::kQueries * 128 + in_block) / 16, 1024),
        wgmma::descriptor(k + (block * P::kKeys * 128 + in_block) / 16, 1024), c);
  }
}
// O += P V.
template <class P>
__device__ __forceinline__ void multiply_values(float (&o)[P::kD / 2],
                                                const uint32_t (&weights)[P::kKeys / 16][4],
                                                uint32_t v) {
#pragma unroll
  for (int c = 0; c < P::kKeys / 16; ++c)
    wgmma::mma_from_registers<typename P::T, P::kD, 1>(
        o, weights[c], wgmma::descriptor(v + c * 2048 / 16, 1024), 1);
}

// Rows of a slot of values from `valid` on become zero: they belong to others, and 0 times what
// they hold may be NaN. Every warpgroup that reads them does it for itself.
template <class P>
__device__ __forceinline__ void clear_values(char* slot, int valid, int own_barrier) {
  const int thread = static_cast<int>(threadIdx.x % 128);
#pragma unroll 1
  for (int row = valid + thread / 8; row < P::kKeys; row += 16) {
#pragma unroll
    for (int c = 0; c < P::kColumnBlocks; ++c)
      *reinterpret_cast<uint4*>(slot + (c * P::kKeys + row) * 128 + thread % 8 * 16) =
          make_uint4(0, 0, 0, 0);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the tensor cores read
  wgmma::named_sync(own_barrier, 128);
}

// O, divided by the sum of weights, and the logarithm of that sum.
template <class P>
__device__ __forceinline__ void write_forward(const ForwardProblem& p, const ForwardUnit& u,
                                              float (&o)[P::kD / 2], const float (&top)[2],
                                              const float (&weight)[2], int row) {
  const int l = lane();
  float* lse = p.lse + u.head * p.q_rows + u.q.first;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float w = weight[half];
    w += __shfl_xor_sync(~0u, w, 1);
    w += __shfl_xor_sync(~0u, w, 2);
    const float factor = w > 0.0f ? __fdividef(1.0f, (1.0f - p.dropout) * w) : 0.0f;
    const int i = row + half * 8;
    if (l % 4 == 0 && i < u.q.count) lse[i] = w > 0.0f ? top[half] * kLn2 + logf(w) : -CUDART_INF_F;
    auto* line = row_of<typename P::T>(p.o, u.q.first + i, p.o_stride, u.head, P::kD);
#pragma unroll
    for (int g = 0; g < P::kD / 32; ++g) {
      uint32_t v[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* x = &o[(g * 4 + n) * 4 + half * 2];
        v[n] = wgmma::pack<typename P::T>(x[0] * factor, x[1] * factor);
      }
      wgmma::transpose_quad(v);
      if (i < u.q.count)
        *reinterpret_cast<uint4*>(line + g * 32 + l % 4 * 8) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

template <class P>
__device__ __forceinline__ void consume_forward(const ForwardProblem& p, int team, uint32_t tiles,
                                                char* shared, Ring query, Ring slots,
                                                int consumer) {
  const int warp_row = consumer * 64 + static_cast<int>(threadIdx.x % 128 / 32) * 16;
  constexpr int kTurn = 1;
  const int own_barrier = 4 + team * P::kConsumers + consumer;
  const auto take_turn = [&] {
    if constexpr (P::kTurns) wgmma::named_sync(kTurn + consumer, 256);
  };
  const auto pass_turn = [&] {
    if constexpr (P::kTurns) wgmma::named_arrive(kTurn + (consumer ^ 1), 256);
  };
  if (consumer == 1) pass_turn();  // consumer 0 begins
  uint32_t q_step = 0, step = 0;
  const auto slot_at = [&](uint32_t n) {
    return tiles + P::kSlotsAt + n % P::kSlots * P::kSlotBytes;
  };
  const auto low_k = [&](uint32_t n) { return wgmma::descriptor_low(slot_at(n), 16); };
  const auto low_v = [&](uint32_t n) { return wgmma::descriptor_low(slot_at(n), P::kKeys * 128); };
  const auto arrived = [&](uint32_t n) { slots.wait_full(n % P::kSlots, n / P::kSlots); };
  const auto release = [&](uint32_t n) {
    if (threadIdx.x % 128 == 0) slots.release(n % P::kSlots);
  };
  // Passes over slots that these 64 rows do not read. One warp waits for them and the others for
  // it: nothing else would keep a late warp from missing two rounds of a slot, which look like
  // none.
  const auto skip = [&](uint32_t count) {
    if (threadIdx.x % 128 < 32) {
      for (uint32_t n = step; n < step + count; ++n) {
        arrived(n);
        release(n);
      }
    }
    step += count;
    wgmma::named_sync(own_barrier, 128);
  };
  for_each_unit<P>(p, team, [&](const ForwardUnit& u) {
    const uint32_t q_slot = q_step % 2;
    const uint32_t q =
        wgmma::descriptor_low(tiles + q_slot * P::kQueryBytes + consumer * 64 * 128, 16);
    const int row = u.first + warp_row + lane() / 4;  // and the one 8 below
    float o[P::kD / 2], s[P::kKeys / 2];
    uint32_t weights[P::kKeys / 16][4];
    float top[2] = {-CUDART_INF_F, -CUDART_INF_F}, weight[2] = {0.0f, 0.0f}, shrink[2];
#pragma unroll
    for (int j = 0; j < P::kD / 2; ++j) o[j] = 0.0f;
    if constexpr (P::kWindowed) begin_with_sink(p, u, top, weight);
    query.wait_full(q_slot, q_step / 2);
    ++q_step;
    // From scores to weights, in place.
    const auto weigh = [&](int j) {
      const int first_key = j * P::kKeys;
      if constexpr (P::kScoreMod)
        score<P>(p, s, u.head, row + u.shift - (u.base + first_key + lane() % 4 * 2));
      if constexpr (P::kWindowed)
        mask_windowed<P>(p, u, s, u.base + first_key, u.first + consumer * 64, row);
      else if (first_key + P::kKeys > u.k.count ||
               (p.causal && first_key + P::kKeys - 1 > u.first + consumer * 64))
        mask<P>(s, first_key + lane() % 4 * 2, u.k.count, p.causal, row);
      softmax<P>(s, top, weight, shrink, P::kScoreMod ? 1.0f : p.scale_log2);
      if constexpr (P::kDrops)
        drop<P>(p, s,
                random_row(p.rng, u.head, u.q.first + u.first + warp_row) +
                    static_cast<uint64_t>(first_key / 4));
    };
    // Tiles of keys that these 64 rows read; who takes turns does what the other does.
    int mine = u.tiles, begin = 0;
    if constexpr (P::kWindowed && !P::kTurns) {
      const TileRange range = tiles_of<P>(p.windowed, u, u.first + consumer * 64);
      begin = range.begin, mine = range.end;
    } else if constexpr (!P::kTurns) {
      const int first = u.first + consumer * 64;
      if (p.causal) mine = min(mine, (first + 64 + P::kKeys - 1) / P::kKeys);
      if (first >= u.q.count) mine = 0;
    }
    if (mine < u.tiles || mine == 0) {  // who multiplies nothing must meet here all the same
      const int whole = 2 * (u.tiles - mine);
      skip(static_cast<uint32_t>(P::kOverlaps && mine > 0 ? whole - 1 : whole));
    }
    const int keys = P::kWindowed ? u.k.count - u.base : u.k.count;  // from tile 0 on
    if constexpr (!P::kOverlaps) {
      for (int j = mine - 1; j >= begin; --j) {
        arrived(step);
        wgmma::mma_fence();
        multiply_scores<P>(s, q, low_k(step));
        wgmma::mma_commit();
        wgmma::mma_wait<0>();
        wgmma::settle(s);
        wgmma::settle(o);
        release(step);
        if (j < mine - 1) release(step - 1);
        weigh(j);
        if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < P::kD / 2; ++i) o[i] *= shrink[i / 2 % 2];
        }
        to_weights<P>(weights, s);
        arrived(step + 1);
        if (j == u.tiles - 1 && (j + 1) * P::kKeys > keys)
          clear_values<P>(shared + slot_at(step + 1) - tiles, keys - j * P::kKeys, own_barrier);
        wgmma::mma_fence();
        multiply_values<P>(o, weights, low_v(step + 1));
        wgmma::mma_commit();
        step += 2;
      }
      wgmma::mma_wait<0>();
      wgmma::settle(o);
      if (mine > 0) release(step - 1);
      if (P::kWindowed && begin > 0) skip(static_cast<uint32_t>(2 * begin));
      if (threadIdx.x % 128 == 0) query.release(q_slot);
    } else if (mine > 0) {
      arrived(step);
      take_turn();
      wgmma::mma_fence();
      multiply_scores<P>(s, q, low_k(step));
      wgmma::mma_commit();
      pass_turn();
      wgmma::mma_wait<0>();
      wgmma::settle(s);
      release(step);
      ++step;
      if (mine < u.tiles) skip(1);  // the values before the first ones
      weigh(mine - 1);
      to_weights<P>(weights, s);
      for (int j = mine - 1; j > 0; --j) {
        arrived(step);      // keys of tile j - 1
        arrived(step + 1);  // values of tile j
        if (j == u.tiles - 1 && (j + 1) * P::kKeys > keys)
          clear_values<P>(shared + slot_at(step + 1) - tiles, keys - j * P::kKeys, own_barrier);
        take_turn();
        wgmma::mma_fence();
        multiply_scores<P>(s, q, low_k(step));
        wgmma::mma_commit();
        multiply_values<P>(o, weights, low_v(step + 1));
        wgmma::mma_commit();
        pass_turn();
        wgmma::mma_wait<1>();
        wgmma::settle(s);
        weigh(j - 1);
        // The release asks for the sums (they are never negative), and stays before the wait: else
        // ptxas would wait first and compute the exponentials when nothing runs beside them.
        if (!(weight[0] + weight[1] < 0.0f)) release(step);
        wgmma::mma_wait<0>();
        wgmma::settle(o);
        release(step + 1);
        step += 2;
        to_weights<P>(weights, s);
        if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < P::kD / 2; ++i) o[i] *= shrink[i / 2 % 2];
        }
      }
      if (threadIdx.x % 128 == 0) query.release(q_slot);
      arrived(step);
      if (u.tiles == 1 && P::kKeys > keys)
        clear_values<P>(shared + slot_at(step) - tiles, keys, own_barrier);
      take_turn();
      wgmma::mma_fence();
      multiply_values<P>(o, weights, low_v(step));
      wgmma::mma_commit();
      pass_turn();
      wgmma::mma_wait<0>();
      wgmma::settle(o);
      release(step);
      ++step;
    } else {
      if (threadIdx.x % 128 == 0) query.release(q_slot);
    }
    write_forward<P>(p, u, o, top, weight, row);
  });
  if (consumer == 0) take_turn();  // what consumer 1 passed last: barriers end as they began
}

}  // namespace saturate::kernels::attention
