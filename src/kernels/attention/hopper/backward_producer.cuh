// SPDX-License-Identifier: Apache-2.0
// What the first warpgroup of the Hopper backward kernel does: it takes work, feeds the consumers
// and carries their sums of d_q away.
#pragma once
#include <math_constants.h>

#include "kernels/attention/hopper/backward_windowed.cuh"
#include "kernels/attention/hopper/backward_work.cuh"

namespace saturate::kernels::attention::hopper {

// One thread takes units and loads tiles.
template <class P>
__device__ inline void load_tiles(const BackwardProblem& p, uint32_t shared) {
  uint32_t step = 0, round = 0, count = 0;
  // Only a block that runs has a number: one that finds no free multiprocessor yet keeps nobody
  // waiting.
  const auto take = [&] { return atomicAdd(p.ticket, 1); };
  int number = take();
  while (true) {
    Work<P> w;
    w.n = -1;
    while (number < p.units && !make_work(w, p, number)) number = take();
    if (number >= p.units) w.n = -1;
    barrier_wait(shared + P::kEmptyWork + count % 2 * 8, (count / 2 & 1) ^ 1);
    put_work(work_slot<P>(shared, count), w);
    barrier_arrive(shared + P::kFullWork + count % 2 * 8);
    ++count;
    if (w.n < 0) return;
    if (w.k.count > 0 && w.begin(p) < w.end(p)) {
      // k for the first scores, v for the first d_p: each as soon as its place is free.
      const auto load_keys = [&](const CUtensorMap& map, uint32_t tile, uint32_t full,
                                 uint32_t empty) {
        barrier_wait(shared + empty, (round & 1) ^ 1);
        barrier_expect(shared + full, P::kKeyTile);
#pragma unroll
        for (int i = 0; i < P::kPanels; ++i)
          load_box<false>(shared + tile + i * P::kKeyPanel, map, shared + full,
                          w.kv * P::kD + i * 64, w.k.first + w.n * P::kN);
      };
      load_keys(p.k, P::kK, P::kFullK, P::kEmptyK);
      bool first = true;
      for (int g = 0; g < p.group; ++g)
        for (int m = w.begin(p); m < w.end(p); ++m, ++step) {
          const auto load = [&](const CUtensorMap& map, uint32_t tiles, uint32_t full,
                                uint32_t empty, uint32_t stages) {
            const uint32_t stage = step % stages, bar = full + stage * 8;
            barrier_wait(empty + stage * 8, (step / stages & 1) ^ 1);
            barrier_expect(bar, P::kQueryTile);
#pragma unroll
            for (int i = 0; i < P::kPanels; ++i)
              load_box<false>(tiles + stage * P::kQueryTile + i * P::kQueryPanel, map, bar,
                              (w.kv * p.group + g) * P::kD + i * 64, w.q.first + m * P::kM);
          };
          load(p.q, shared + P::kQ, shared + P::kFullQ, shared + P::kEmptyQ, P::kStagesQ);
          if (first) load_keys(p.v, P::kV, P::kFullV, P::kEmptyV);
          first = false;
          load(p.d_o, shared + P::kDO, shared + P::kFullDO, shared + P::kEmptyDO, P::kStagesDO);
        }
      ++round;
    }
    number = take();  // only now: others may wait for what a unit with a lower number adds
  }
}

// One warp loads what belongs to rows of queries.
template <class P>
__device__ inline void load_row_values(const BackwardProblem& p, uint32_t shared) {
  const AttentionArgs& a = p.b.forward;
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t step = 0;
  for (uint32_t count = 0;; ++count) {
    const Work<P> w = get_work<P>(shared, count);
    __syncwarp();
    if (lane == 0) free_work<P>(shared, count);
    if (w.n < 0) return;
    if (w.k.count == 0) continue;
    for (int g = 0; g < p.group; ++g)
      for (int m = w.begin(p); m < w.end(p); ++m, ++step) {
        const int64_t at = (w.kv * p.group + g) * a.q_rows + w.q.first + m * P::kM;
        const int valid = w.q.count - m * P::kM;
        const auto load = [&](const void* from, float scale, float beyond, uint32_t values,
                              uint32_t full, uint32_t empty, uint32_t stages) {
          const uint32_t stage = step % stages;
          float x[P::kM / 32];
#pragma unroll
          for (int i = 0; i < P::kM / 32; ++i) {
            const int r = i * 32 + lane;
            x[i] = r < valid ? static_cast<const float*>(from)[at + r] * scale : beyond;
          }
          barrier_wait(empty + stage * 8, (step / stages & 1) ^ 1);
#pragma unroll
          for (int i = 0; i < P::kM / 32; ++i)
            asm volatile(
                "st.shared.f32 [%0], %1;" ::"r"(values + (stage * P::kM + i * 32 + lane) * 4),
                "f"(x[i])
                : "memory");
          barrier_arrive(full + stage * 8);
        };
        // +infinity makes every probability of a row beyond the sequence zero.
        load(a.lse, kLog2e, CUDART_INF_F, shared + P::kLse, shared + P::kFullQ, shared + P::kEmptyQ,
             P::kStagesQ);
        load(p.b.delta, P::kDrops ? 1.0f - a.dropout : 1.0f, 0.0f, shared + P::kDelta,
             shared + P::kFullDO, shared + P::kEmptyDO, P::kStagesDO);
      }
  }
}

// How many blocks of keys have added to a piece.
__device__ __forceinline__ void await_adders(const int* added, int count) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(added) : "memory");
  } while (now != count);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ __forceinline__ void publish_adders(int* added, int count) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(added), "r"(count) : "memory");
}

// One thread for each consumer: takes its sums of d_q to those of the keys before, and for the
// first keys brings all of these back. Two buffers, so that a consumer need not wait for others.
template <class P>
struct Collector {
  const BackwardProblem& p;
  uint32_t shared, consumer;
  int n, key_blocks, first;  // of the unit; where the pieces of its first head begin
  int shift;                 // windowed: of the sequence

  __device__ __forceinline__ uint32_t ready(uint32_t step) const {
    return shared + P::kSumReady + consumer * 16 + step % 2 * 8;
  }
  __device__ __forceinline__ uint32_t sums(uint32_t step) const {
    return shared + P::kDQ + (step % 2 * 2 + consumer) * P::kSumBytes;
  }
  // Number of this consumer's half of a piece.
  __device__ __forceinline__ int half(Place x) const {
    return (first + x.g * p.query_blocks + x.m) * 2 + static_cast<int>(consumer);
  }
  __device__ __forceinline__ char* memory(int half) const {
    return reinterpret_cast<char*>(p.partial) + int64_t{half} * P::kSumBytes;
  }
  // Blocks of keys that add to block m of queries.
  __device__ __forceinline__ Adders adders_to(int m) const {
    if constexpr (P::kWindowed) return adders_at<P>(p, shift, key_blocks, m);
    return {0, adders<P>(p, key_blocks, m) - 1};
  }
  // Lets the consumer at the buffer of this step, which nobody reads any more.
  __device__ __forceinline__ void prepare(Place x, uint32_t step) const {
    const Adders all = adders_to(x.m);
    const int before = all.last - all.first;
    if (n > all.first || before == 0) return barrier_arrive(ready(step));
    const int from = half(x);
    await_adders(p.added + from, before);
    barrier_expect(ready(step), P::kSumBytes);
    load_piece(sums(step), memory(from), P::kSumBytes, ready(step));
  }
  __device__ __forceinline__ void run() {
    uint32_t step = 0;
    for (uint32_t count = 0;; ++count) {
      Place x, after;
      int begin, end;
      {
        const Work<P> w = get_work<P>(shared, count);
        free_work<P>(shared, count);
        if (w.n < 0) return;
        begin = w.begin(p), end = w.end(p);
        if (w.k.count == 0 || begin == end) continue;
        n = w.n, key_blocks = w.key_blocks(), first = w.kv * p.group * p.query_blocks + w.piece;
        if constexpr (P::kWindowed) shift = p.windowed.shift(w.q.count, w.k.count);
      }
      int under_way = -1, adders = 0;  // on its way to memory, and the count to publish after it
      x = {begin, 0};
      prepare(x, step);
#pragma unroll 1
      for (; x.g < p.group; x = after, ++step) {
        after = next(x, begin, end);
        // Others may wait for this step's sums: they go before waiting for others' sums.
        const bool late = P::kWindowed && after.g < p.group && n > adders_to(x.m).first &&
                          n == adders_to(after.m).first;
        await_stores_read();
        if (after.g < p.group && !late) prepare(after, step + 1);
        if (under_way >= 0) {
          await_pieces();
          publish_adders(p.added + under_way, adders);
          if constexpr (P::kWindowed) under_way = -1;
        }
        barrier_wait(shared + P::kSumDone + consumer * 16 + step % 2 * 8, step / 2 & 1);
        if (n == (P::kWindowed ? adders_to(x.m).first : 0)) continue;
        under_way = half(x), adders = adders_to(x.m).last + 1 - n;
        if (adders > 1) {
          await_adders(p.added + under_way, adders - 1);
          add_piece(memory(under_way), sums(step), P::kSumBytes);
        } else {
          store_piece(memory(under_way), sums(step), P::kSumBytes);
        }
        commit_stores();
        if (late) {
          await_pieces();
          publish_adders(p.added + under_way, adders);
          under_way = -1;
          prepare(after, step + 1);
        }
      }
      if (under_way >= 0) {
        await_pieces();
        publish_adders(p.added + under_way, adders);
      }
    }
  }
};

}  // namespace saturate::kernels::attention::hopper
