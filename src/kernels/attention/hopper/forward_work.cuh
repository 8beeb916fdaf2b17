// SPDX-License-Identifier: Apache-2.0
// What the blocks of the Hopper forward kernel work on, in which order, and what the producer
// brings.
#pragma once
#include "kernels/attention/device.cuh"
#include "kernels/attention/hopper/forward_problem.h"
#include "kernels/hopper/instructions.cuh"

namespace saturate::kernels::attention {

// kWindowed: with windows, alignment and sinks; kScoreMod: with them, a cap or slopes (windowed.h).
template <class T_, int kD_, bool kDrops_, bool kLong_, bool kWindowed_ = false,
          bool kScoreMod_ = false>
struct ForwardTile {
  using T = T_;
  static constexpr ForwardShape kShape = forward_shape(kD_, kLong_);
  static constexpr int kD = kD_, kQueries = kShape.queries, kKeys = kShape.keys;
  static constexpr bool kDrops = kDrops_, kWindowed = kWindowed_, kScoreMod = kScoreMod_;
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
  static_assert(!kWindowed || kTurns || !kOverlaps);  // who has turns or no overlap skips tiles
};

// One tile of queries: where it is and the tiles of keys it reads, last first.
struct ForwardUnit {
  Rows q, k;
  int head, first;  // first query of the tile, in the sequence
  int tiles;        // of keys, 0..tiles-1
  int base, shift;  // windowed: first key of tile 0; what takes a query to its place among the keys
};

// By way of lane 0 the compiler knows that a warp agrees, and keeps what follows from it (trip
// counts, slots, descriptors) in uniform registers.
__device__ __forceinline__ Rows agreed_rows(const int32_t* cu, int sequence) {
  const unsigned here = __activemask();  // the producer is one lane
  const int first = __shfl_sync(here, cu[sequence], 0);
  return {first, __shfl_sync(here, cu[sequence + 1], 0) - first};
}

// Calls visit(unit) for every tile of a team of this block, in order. Windowed instances have an
// overload of their own (forward_windowed.cuh).
template <class P, class Visit>
requires(!P::kWindowed) __device__ __forceinline__
    void for_each_unit(const ForwardProblem& p, int team, const Visit& visit) {
  for (int item = static_cast<int>(blockIdx.x) * P::kTeams + team; item < p.items;
       item += static_cast<int>(gridDim.x) * P::kTeams) {
    const int part = item % p.parts, pair = item / p.parts;
    ForwardUnit u;
    u.head = pair % p.heads;
    const int sequence = pair / p.heads;
    u.q = agreed_rows(p.cu_q, sequence);
    u.k = agreed_rows(p.cu_k, sequence);
    const int tiles = (u.q.count + P::kQueries - 1) / P::kQueries;
    const int twin = tiles - 1 - part;
    if (p.causal ? part > twin : part >= tiles) continue;
#pragma unroll 1
    for (int n = 0; n < (p.causal && part < twin ? 2 : 1); ++n) {
      u.first = (n == 0 && p.causal ? twin : part) * P::kQueries;
      const int end = p.causal ? min(u.k.count, u.first + P::kQueries) : u.k.count;
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
    const int first_key = P::kWindowed ? u.k.first + u.base : u.k.first;
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
      load(p.k, column, first_key + j * P::kKeys);
      const int values = P::kOverlaps ? j + 1 : j;
      if (values < u.tiles) load(p.v, column, first_key + values * P::kKeys);
    }
    if (P::kOverlaps && u.tiles > 0) load(p.v, column, first_key);
  });
}

}  // namespace saturate::kernels::attention
