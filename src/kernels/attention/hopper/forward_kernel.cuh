// SPDX-License-Identifier: Apache-2.0
// Forward pass on Hopper: the copy engine brings tiles, wgmma multiplies, softmax in registers.
//
// A block stays for the whole launch (persistent) and takes pieces of work in turn. Its first
// warpgroup has one thread at work, the producer, which runs ahead through the same pieces: queries
// two tiles ahead, keys and values through one ring of slots in the order in which they are read.
// Two consumer warpgroups own 64 query rows each:
//
//   S_n-1 = Q K_n-1'
//   for j = n-1 .. 1:  S_j-1 = Q K_j-1' and O += P_j V_j are under way together; the softmax of
//                      S_j-1 runs under the second. The last keys come first, so that tiles that
//                      need a mask lie at the beginning.
//   O += P_0 V_0
//
// The two consumers take turns to start products (named barriers): while one multiplies the other
// computes exponentials, which take as long as the products at head size 64.
//
// A piece of work is one tile of queries of one head, or, if causal, the tiles t and T - 1 - t of
// its T, which together read the same number of keys whatever t is: so pieces are equal and a fixed
// order balances. Pieces of a head are neighbours, and its keys stay in L2.
//
// The row sums start anew only when a maximum grew by more than 2^8 (kLazy): until then values of
// exp2 may exceed 1, which costs no precision in floating point and saves scaling O.
#pragma once
#include <math_constants.h>

#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/attention_mma_device.cuh"
#include "kernels/attention/hopper/attention_wgmma.cuh"
#include "kernels/attention/hopper/forward_problem.h"
#include "kernels/gemm/wgmma/wgmma_result.cuh"

namespace saturate::kernels::attention {

template <class T_, int kD_, bool kMayDrop_, bool kLong_>
struct ForwardTile {
  using T = T_;
  static constexpr ForwardShape kShape = forward_shape(kD_, kMayDrop_, kLong_);
  static constexpr int kD = kD_, kQueries = kShape.queries, kKeys = kShape.keys;
  static constexpr bool kMayDrop = kMayDrop_;
  static constexpr int kConsumers = kQueries / 64;
  static constexpr int kTeams = kShape.teams;
  static constexpr bool kOverlaps = kTeams == 1;
  static constexpr int kThreads = kTeams * kConsumers * 128 + 128;
  static constexpr bool kTurns = kShape.turns;
  // What a block has at its launch, 480 to 512 for the warpgroups together, is dealt anew.
  static constexpr int kProducerRegisters = kTeams * kConsumers == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kTeams == 2 ? 112 : kConsumers == 2 ? 240 : 160;
  static constexpr int kSlots = 160 * 1024 / (kKeys * kD * 2) < 8 ? 5 : 8;
  static constexpr int kColumnBlocks = kD / 64;
  static constexpr uint32_t kQueryBytes = kQueries * kD * 2, kSlotBytes = kKeys * kD * 2;
  static constexpr uint32_t kSlotsAt = 2 * kQueryBytes,
                            kBarriersAt = kSlotsAt + kSlots * kSlotBytes;
  static constexpr uint32_t kTeamBytes = (kBarriersAt + (2 * kSlots + 4) * 8 + 1023) / 1024 * 1024;
  static constexpr uint32_t kSharedBytes = kTeams * kTeamBytes + 1024;
  static_assert(kSharedBytes <= 232448);
  static constexpr float kLazy = 8.0f;
};

// One tile of queries: where it is and the tiles of keys it reads, last first.
struct ForwardUnit {
  Rows q, k;
  int head, first;  // first query of the tile, in the sequence
  int shift;        // query i stands at key i + shift
  int tiles;        // of keys, 0..tiles-1
};

// By way of lane 0 the compiler knows that a warp agrees, and keeps what follows from it (trip
// counts, slots, descriptors) in uniform registers.
__device__ __forceinline__ Rows agreed_rows(const int32_t* cu, int sequence) {
  const unsigned here = __activemask();  // the producer is one lane
  const int first = __shfl_sync(here, cu[sequence], 0);
  return {first, __shfl_sync(here, cu[sequence + 1], 0) - first};
}

// Calls visit(unit) for every tile of a team of this block, in order.
template <class P, class Visit>
__device__ __forceinline__ void for_each_unit(const ForwardProblem& p, int team,
                                              const Visit& visit) {
  for (int item = static_cast<int>(blockIdx.x) * P::kTeams + team; item < p.items;
       item += static_cast<int>(gridDim.x) * P::kTeams) {
    const int part = item % p.parts, pair = item / p.parts;
    ForwardUnit u;
    u.head = pair % p.heads;
    const int sequence = pair / p.heads;
    u.q = agreed_rows(p.cu_q, sequence);
    u.k = agreed_rows(p.cu_k, sequence);
    u.shift = p.bottom_right ? u.k.count - u.q.count : 0;
    const int tiles = (u.q.count + P::kQueries - 1) / P::kQueries;
    const int twin = tiles - 1 - part;
    if (p.causal ? part > twin : part >= tiles) continue;
#pragma unroll 1
    for (int n = 0; n < (p.causal && part < twin ? 2 : 1); ++n) {
      u.first = (n == 0 && p.causal ? twin : part) * P::kQueries;
      const int end =
          p.causal ? max(0, min(u.k.count, u.first + P::kQueries + u.shift)) : u.k.count;
      u.tiles = (end + P::kKeys - 1) / P::kKeys;
      visit(u);
    }
  }
}

// The tile of queries and the slots as a ring: step counts what has passed through it.
struct Ring {
  uint32_t full, empty;
  __device__ __forceinline__ void wait_full(uint32_t slot, uint32_t round) const {
    wgmma::barrier_wait(full + slot * 8, round & 1);
  }
  __device__ __forceinline__ void wait_empty(uint32_t slot, uint32_t round) const {
    wgmma::barrier_wait(empty + slot * 8, (round & 1) ^ 1);
  }
  __device__ __forceinline__ void release(uint32_t slot) const {  // by one thread a warpgroup
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + slot * 8) : "memory");
  }
};

template <class P>
__device__ __forceinline__ void produce_forward(const ForwardProblem& p, int team, uint32_t tiles,
                                                Ring query, Ring slots) {
  uint32_t q_step = 0, step = 0;
  const auto load = [&](const CUtensorMap& map, int column, int row) {
    const uint32_t slot = step % P::kSlots, at = tiles + P::kSlotsAt + slot * P::kSlotBytes;
    slots.wait_empty(slot, step / P::kSlots);
    wgmma::barrier_expect(slots.full + slot * 8, P::kSlotBytes);
#pragma unroll
    for (int c = 0; c < P::kColumnBlocks; ++c)
      wgmma::load_box<false>(at + c * (P::kKeys * 128), map, slots.full + slot * 8, column + c * 64,
                             row);
    ++step;
  };
  for_each_unit<P>(p, team, [&](const ForwardUnit& u) {
    const uint32_t slot = q_step % 2;
    query.wait_empty(slot, q_step / 2);
    wgmma::barrier_expect(query.full + slot * 8, P::kQueryBytes);
#pragma unroll
    for (int c = 0; c < P::kColumnBlocks; ++c)
      wgmma::load_box<false>(tiles + slot * P::kQueryBytes + c * (P::kQueries * 128), p.q,
                             query.full + slot * 8, u.head * P::kD + c * 64, u.q.first + u.first);
    ++q_step;
    const int column = u.head / p.group * P::kD;
    for (int j = u.tiles - 1; j >= 0; --j) {
      load(p.k, column, u.k.first + j * P::kKeys);
      const int values = P::kOverlaps ? j + 1 : j;
      if (values < u.tiles) load(p.v, column, u.k.first + values * P::kKeys);
    }
    if (P::kOverlaps && u.tiles > 0) load(p.v, column, u.k.first);
  });
}

template <int kCount>
__device__ __forceinline__ void settle(float (&d)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) asm volatile("" : "+f"(d[j])::"memory");
}

// S = Q K' for the 64 rows of a warpgroup.
template <class P>
__device__ __forceinline__ void multiply_scores(float (&s)[P::kKeys / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int c = 0; c < P::kD / 16; ++c) {
    const uint32_t block = c / 4, in_block = c % 4 * 32;
    hopper::multiply<typename P::T, P::kKeys, 0, 0>(
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
    hopper::multiply<typename P::T, P::kD, 1>(o, weights[c],
                                              wgmma::descriptor(v + c * 2048 / 16, 1024), 1);
}

// Scores of keys that this thread's two rows may not see become -infinity. `column`: key of s[0],
// `bound`: keys from it on do not exist; row: position of the upper row among the keys.
template <class P>
__device__ __forceinline__ void mask(float (&s)[P::kKeys / 2], int column, int bound, bool causal,
                                     int row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int end = (causal ? min(bound, row + half * 8 + 1) : bound) - column;
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (j * 8 + c >= end) s[j * 4 + half * 2 + c] = -CUDART_INF_F;
    }
  }
}

// One step of the online softmax: s becomes weights, `shrink` what earlier sums shrink by.
template <class P>
__device__ __forceinline__ void softmax(float (&s)[P::kKeys / 2], float (&top)[2],
                                        float (&weight)[2], float (&shrink)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float high = -CUDART_INF_F, high2 = -CUDART_INF_F;
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
      high = fmaxf(high, s[j * 4 + half * 2]);
      high2 = fmaxf(high2, s[j * 4 + half * 2 + 1]);
    }
    high = fmaxf(high, high2);
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 2)) * scale;
    // -infinity until a key is seen: then exponents are taken from 0, and all are 0.
    const float before = top[half];
    if (high > before + P::kLazy || before == -CUDART_INF_F) top[half] = fmaxf(high, before);
    const float base = top[half] == -CUDART_INF_F ? 0.0f : top[half];
    shrink[half] = exp2_fast(before - base);
    float sum = 0.0f, sum2 = 0.0f;
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
      float* x = &s[j * 4 + half * 2];
      x[0] = exp2_fast(x[0] * scale - base);
      x[1] = exp2_fast(x[1] * scale - base);
      sum += x[0];
      sum2 += x[1];
    }
    weight[half] = weight[half] * shrink[half] + (sum + sum2);
  }
}

template <class P>
__device__ __forceinline__ void drop(const ForwardProblem& p, float (&s)[P::kKeys / 2],
                                     uint64_t seed, uint64_t step, uint64_t block) {
  const uint32_t threshold = dropout_threshold(p.dropout);
#pragma unroll
  for (int j = 0; j < P::kKeys / 8; ++j) {
    uint32_t bits[4];
    draw_rows(bits, seed, step, p.rng.op, block + static_cast<uint64_t>(2 * j));
#pragma unroll
    for (int e = 0; e < 4; ++e) s[j * 4 + e] = bits[e] >= threshold ? s[j * 4 + e] : 0.0f;
  }
}

template <class P>
__device__ __forceinline__ void to_weights(uint32_t (&w)[P::kKeys / 16][4],
                                           const float (&s)[P::kKeys / 2]) {
#pragma unroll
  for (int c = 0; c < P::kKeys / 16; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[c][i] = wgmma::pack<typename P::T>(s[c * 8 + i * 2], s[c * 8 + i * 2 + 1]);
  }
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
  const bool drops = P::kMayDrop && p.dropout > 0.0f;
  const uint64_t seed = drops ? p.rng.state[0] : 0, micro_step = drops ? p.rng.state[1] : 0;
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
    query.wait_full(q_slot, q_step / 2);
    ++q_step;
    // From scores to weights, in place.
    const auto weigh = [&](int j) {
      const int first_key = j * P::kKeys;
      if (first_key + P::kKeys > u.k.count ||
          (p.causal && first_key + P::kKeys - 1 > u.first + consumer * 64 + u.shift))
        mask<P>(s, first_key + lane() % 4 * 2, u.k.count, p.causal, row + u.shift);
      softmax<P>(s, top, weight, shrink, p.scale_log2);
      if (P::kMayDrop && drops)
        drop<P>(p, s, seed, micro_step,
                (static_cast<uint64_t>(u.head * p.q_rows + u.q.first + u.first + warp_row) << 14) +
                    static_cast<uint64_t>(first_key / 4));
    };
    // Tiles of keys that these 64 rows read; who takes turns does what the other does.
    int mine = u.tiles;
    if constexpr (!P::kTurns) {
      const int first = u.first + consumer * 64;
      if (p.causal) mine = min(mine, max(0, (first + 64 + u.shift + P::kKeys - 1) / P::kKeys));
      if (first >= u.q.count) mine = 0;
    }
    if (mine < u.tiles || mine == 0) {  // who multiplies nothing must meet here all the same
      const int whole = 2 * (u.tiles - mine);
      skip(static_cast<uint32_t>(P::kOverlaps && mine > 0 ? whole - 1 : whole));
    }
    if constexpr (!P::kOverlaps) {
      for (int j = mine - 1; j >= 0; --j) {
        arrived(step);
        wgmma::mma_fence();
        multiply_scores<P>(s, q, low_k(step));
        wgmma::mma_commit();
        wgmma::mma_wait<0>();
        settle(s);
        settle(o);
        release(step);
        if (j < mine - 1) release(step - 1);
        weigh(j);
        if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < P::kD / 2; ++i) o[i] *= shrink[i / 2 % 2];
        }
        to_weights<P>(weights, s);
        arrived(step + 1);
        if (j == u.tiles - 1 && (j + 1) * P::kKeys > u.k.count)
          clear_values<P>(shared + slot_at(step + 1) - tiles, u.k.count - j * P::kKeys,
                          own_barrier);
        wgmma::mma_fence();
        multiply_values<P>(o, weights, low_v(step + 1));
        wgmma::mma_commit();
        step += 2;
      }
      wgmma::mma_wait<0>();
      settle(o);
      if (mine > 0) release(step - 1);
      if (threadIdx.x % 128 == 0) query.release(q_slot);
    } else if (mine > 0) {
      arrived(step);
      take_turn();
      wgmma::mma_fence();
      multiply_scores<P>(s, q, low_k(step));
      wgmma::mma_commit();
      pass_turn();
      wgmma::mma_wait<0>();
      settle(s);
      release(step);
      ++step;
      if (mine < u.tiles) skip(1);  // the values before the first ones
      weigh(mine - 1);
      to_weights<P>(weights, s);
      for (int j = mine - 1; j > 0; --j) {
        arrived(step);      // keys of tile j - 1
        arrived(step + 1);  // values of tile j
        if (j == u.tiles - 1 && (j + 1) * P::kKeys > u.k.count)
          clear_values<P>(shared + slot_at(step + 1) - tiles, u.k.count - j * P::kKeys,
                          own_barrier);
        take_turn();
        wgmma::mma_fence();
        multiply_scores<P>(s, q, low_k(step));
        wgmma::mma_commit();
        multiply_values<P>(o, weights, low_v(step + 1));
        wgmma::mma_commit();
        pass_turn();
        wgmma::mma_wait<1>();
        settle(s);
        weigh(j - 1);
        // The release asks for the sums (they are never negative), and stays before the wait: else
        // ptxas would wait first and compute the exponentials when nothing runs beside them.
        if (!(weight[0] + weight[1] < 0.0f)) release(step);
        wgmma::mma_wait<0>();
        settle(o);
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
      if (u.tiles == 1 && P::kKeys > u.k.count)
        clear_values<P>(shared + slot_at(step) - tiles, u.k.count, own_barrier);
      take_turn();
      wgmma::mma_fence();
      multiply_values<P>(o, weights, low_v(step));
      wgmma::mma_commit();
      pass_turn();
      wgmma::mma_wait<0>();
      settle(o);
      release(step);
      ++step;
    } else {
      if (threadIdx.x % 128 == 0) query.release(q_slot);
    }
    write_forward<P>(p, u, o, top, weight, row);
  });
  if (consumer == 0) take_turn();  // what consumer 1 passed last: barriers end as they began
}

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
  static const cudaError_t raised =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes);
  if (raised != cudaSuccess) return raised;
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

template <class T, int kD>
cudaError_t launch_forward_shapes(bool is_long, const ForwardProblem& p, int blocks,
                                  cudaStream_t stream) {
  if (p.dropout > 0.0f)
    return launch_forward_hopper<ForwardTile<T, kD, true, false>>(p, blocks, stream);
  if constexpr (kD == 64) {
    if (is_long) return launch_forward_hopper<ForwardTile<T, kD, false, true>>(p, blocks, stream);
  }
  return launch_forward_hopper<ForwardTile<T, kD, false, false>>(p, blocks, stream);
}

template <int kD>
cudaError_t launch_forward_types(DType type, bool is_long, const ForwardProblem& p, int blocks,
                                 cudaStream_t stream) {
  return type == DType::f16 ? launch_forward_shapes<__half, kD>(is_long, p, blocks, stream)
                            : launch_forward_shapes<__nv_bfloat16, kD>(is_long, p, blocks, stream);
}

}  // namespace saturate::kernels::attention
