// SPDX-License-Identifier: Apache-2.0
// What the consumers of the Hopper backward kernel do. Each goes its own way through a step and
// meets the other only in d_q, for which both need all gradients of the scores, half a step later;
// so one may multiply while the other takes exponentials. Step t of a consumer:
//
//   gradients of the scores | dK(t) from registers, S(t+1) | they and dQ(t-1) leave |
//   probabilities of t+1 | dQ(t), dP(t+1), dV(t+1) | dQ(t) to shared memory
//
// With dropout see backward_dropout_steps.cuh.
#pragma once
#include "kernels/attention/hopper/backward_dropout.cuh"
#include "kernels/attention/hopper/backward_results.cuh"
#include "kernels/attention/hopper/backward_score_mod.cuh"
#include "kernels/attention/hopper/backward_windowed.cuh"
#include "kernels/attention/hopper/backward_work.cuh"

namespace saturate::kernels::attention::hopper {

template <class P>
struct Consumer {
  using T = typename P::T;
  static constexpr int kM = P::kM, kN = P::kN, kD = P::kD;

  const BackwardProblem& p;
  uint32_t shared, me;  // which consumer
  uint32_t slot;        // of the unit; what is needed rarely is read there, to save registers
  int thread;           // among all consumers
  int queries, n;       // of the sequence; number of the block of keys
  int keys;             // of the sequence, from this block on
  uint32_t round;       // of the barriers of k and v
  DropoutBits dropout;

  __device__ __forceinline__ int lane() const {
    return static_cast<int>(here(static_cast<uint32_t>(thread)) % 32);
  }
  __device__ __forceinline__ int warp_row() const {
    return static_cast<int>(here(static_cast<uint32_t>(thread)) / 32 * 16);
  }

  // sum (64 keys of this consumer, kM) = its rows of the key tile times the query tile.
  __device__ __forceinline__ void score(float (&sum)[kM / 2], uint32_t keys, uint32_t queries) {
    const uint32_t a = here(descriptor_low(keys + me * 8192, 16));
    const uint32_t b = here(descriptor_low(queries, 16));
#pragma unroll
    for (int c = 0; c < kD / 16; ++c)
      wgmma::mma<T, kM, 0, 0>(sum, descriptor(a + c / 4 * (P::kKeyPanel / 16) + c % 4 * 2, 1024),
                              descriptor(b + c / 4 * (P::kQueryPanel / 16) + c % 4 * 2, 1024), c);
    mma_commit();
  }
  __device__ __forceinline__ void issue_scores(float (&s)[kM / 2], uint32_t step, int m) {
    const uint32_t stage = step % P::kStagesQ, tile = shared + P::kQ + stage * P::kQueryTile;
    barrier_wait(shared + P::kFullQ + stage * 8, step / P::kStagesQ & 1);
    const int valid = queries - m * kM;
    if (valid < kM) {  // both tiles here, where neither consumer waits for the other's turn
      const uint32_t other = step % P::kStagesDO;
      barrier_wait(shared + P::kFullDO + other * 8, step / P::kStagesDO & 1);
      clear_rows<kM, P::kPanels>(tile, valid, kM, thread);
      clear_rows<kM, P::kPanels>(shared + P::kDO + other * P::kQueryTile, valid, kM, thread);
    }
    mma_fence();
    score(s, shared + P::kK, tile);
  }
  // Those of the queries of this lane's columns.
  __device__ __forceinline__ void load_lse(float2 (&lse)[kM / 8], uint32_t step) {
    const uint32_t from = shared + P::kLse + step % P::kStagesQ * kM * 4 + lane() % 4 * 8;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) lse[j] = load_pair(from + j * 32);
  }
  // s becomes probabilities, rounded.
  __device__ __forceinline__ void probabilities(uint32_t (&left)[kM / 16][4], float (&s)[kM / 2],
                                                const float2 (&lse)[kM / 8], int m, float slope) {
    const int ahead = m * kM - n * kN, first = warp_row();
    if constexpr (P::kScoreMod) {
      if (p.windowed.slopes == nullptr)
        capped_probabilities<P>(p, s, lse);
      else
        sloped_probabilities<P>(p, s, lse, slope, near(m));
    } else {
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) {
        const float2 x = lse[j];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[4 * j + e] = exp2_fast(s[4 * j + e] * p.score_scale - (e % 2 == 0 ? x.x : x.y));
      }
    }
    if constexpr (P::kWindowed) {
      mask_windowed(s, ahead + shift(), first);
    } else if (keys < kN || (p.b.forward.causal && ahead < first + 15)) {
      const int l = lane();
#pragma unroll
      for (int j = 0; j < kM / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = ahead + j * 8 + l % 4 * 2 + e % 2;
          const int key = first + l / 4 + e / 2 * 8;
          if (key >= keys || (p.b.forward.causal && key > i)) s[4 * j + e] = 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < kM / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        left[j / 2][j % 2 * 2 + h] = wgmma::pack<T>(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
  }
  // Windowed: what takes a query to its place among the keys, and the blocks of keys that add to d_q
  // of block m of queries.
  __device__ __forceinline__ int shift() const { return p.windowed.shift(queries, keys + n * kN); }
  __device__ __forceinline__ Adders adders_to(int m) const {
    return adders_at<P>(p, shift(), (keys + kN - 1) / kN + n, m);
  }
  // Probabilities of keys that a query does not see become zero; `place`: of the first query of the
  // tile, `first`: of this warp's keys, both from the first key of the block on.
  __device__ __forceinline__ void mask_windowed(float (&s)[kM / 2], int place, int first) {
    const int left = p.windowed.left, span = left + p.windowed.right;
    if (keys >= kN && first + 15 <= place + p.windowed.right && first >= place + kM - 1 - left)
      return;
    const int l = lane(), key = first + l / 4, low = place + l % 4 * 2 - left;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = key + e / 2 * 8, beyond = at - (low + j * 8 + e % 2);
        if (at >= keys || static_cast<unsigned>(beyond) > static_cast<unsigned>(span))
          s[4 * j + e] = 0.0f;
      }
  }
  // Score modification (backward_score_mod.cuh): distance of a query of block m from a key, for elements of a
  // tile.
  __device__ __forceinline__ float near(int m) const {
    const int l = lane();
    return static_cast<float>(m * kM - n * kN + shift() - warp_row() + l % 4 * 2 - l / 4);
  }
  // Slope of head g of the group, for powers of two; 0 without slopes.
  __device__ __forceinline__ float slope_of(int g) const {
    if constexpr (P::kScoreMod) {
      if (p.windowed.slopes != nullptr)
        return p.windowed.slopes[read_work<P>(slot).kv * p.group + g] * kLog2e;
    }
    return 0.0f;
  }
  // A warp's sum for head g leaves when `next_g` is another head.
  __device__ __forceinline__ void put_slope_sum(float& sum, int g, int next_g) const {
    if constexpr (P::kScoreMod) {
      if (p.slope_sums == nullptr || g == next_g) return;
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      const Work<P> w = read_work<P>(slot);
      const int block = w.k.first / kN + w.piece - w.q.first / kM + n;  // of keys, of all sequences
      const int64_t at = (int64_t{w.kv} * p.group + g) * p.key_pieces + block;
      if (lane() == 0) p.slope_sums[at * kBackwardWarps + thread / 32] = sum;
      sum = 0.0f;
    }
  }

  // The row sums of d_o o of the queries of this lane's columns.
  __device__ __forceinline__ void load_delta(float2 (&x)[kM / 8], uint32_t step) {
    const uint32_t from = shared + P::kDelta + step % P::kStagesDO * kM * 4 + lane() % 4 * 8;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) x[j] = load_pair(from + j * 32);
  }
  // d_p becomes the gradients of the scores. early: what load_delta() gave, or null.
  __device__ __forceinline__ void score_gradients(uint32_t (&packed)[kM / 16][4],
                                                  const float (&d_p)[kM / 2],
                                                  const float2 (*early)[kM / 8],
                                                  uint32_t (&left)[kM / 16][4], uint32_t step,
                                                  int m, float& slope_sum) {
    const uint32_t delta = shared + P::kDelta + step % P::kStagesDO * kM * 4 + lane() % 4 * 8;
    if constexpr (P::kScoreMod) {
      const uint32_t lse = shared + P::kLse + step % P::kStagesQ * kM * 4 + lane() % 4 * 8;
      if (p.windowed.slopes == nullptr)
        return capped_gradients<P>(p, packed, d_p, left, delta, lse);
      if (p.slope_sums != nullptr)
        return sloped_gradients<P>(packed, d_p, left, delta, near(m), slope_sum);
    }
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      const float2 x = early ? (*early)[j] : load_pair(delta + j * 32);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (P::kDrops) {
          packed[j / 2][j % 2 * 2 + h] =
              dropped_gradients<T>(left[j / 2][j % 2 * 2 + h], &d_p[4 * j + 2 * h], x);
        } else {
          const float2 prob = unpack<T>(left[j / 2][j % 2 * 2 + h]);
          packed[j / 2][j % 2 * 2 + h] = wgmma::pack<T>(prob.x * (d_p[4 * j + 2 * h] - x.x),
                                                        prob.y * (d_p[4 * j + 2 * h + 1] - x.y));
        }
      }
    }
  }
  // To shared memory, for both consumers. summed: one fence for them and for what put_d_q() has left
  // of the step before.
  __device__ __forceinline__ void put_gradients(const uint32_t (&packed)[kM / 16][4], uint32_t step,
                                                bool summed = false) {
    const auto l = static_cast<uint32_t>(lane()), key = warp_row() + l % 16;
    const uint32_t line = shared + P::kDS + step % 2 * P::kScoreTile + key * 128;
#pragma unroll
    for (int c = 0; c < kM / 16; ++c) {
      const uint32_t chunk = (c % 4 * 2 + l / 16) ^ (key % 8);
      store_matrices(line + c / 4 * (kN * 128) + chunk * 16, packed[c][0], packed[c][1],
                     packed[c][2], packed[c][3]);
    }
    publish_stores();
    if constexpr (P::kDrops)
      named_sync(2 + static_cast<int>(me), 128);  // d_k reads those of all four warps
    else
      __syncwarp();
    if (lane() == 0) barrier_arrive(shared + P::kFullDS + step % 2 * 8);
    if (summed) sums_done(step - 1);
  }
  // By a warp that has left buffer `step` of sums.
  __device__ __forceinline__ void sums_done(uint32_t step) {
    if (lane() == 0) barrier_arrive(shared + P::kSumDone + me * 16 + step % 2 * 8);
  }
  __device__ __forceinline__ void finish_d_q(const float (&d_q)[32], uint32_t step, Place x) {
    if (!put_d_q(d_q, step, x)) return;
    publish_stores();
    __syncwarp();
    sums_done(step);
  }
  // d_q leaves the registers: to the sums of other keys, or with them to its place. True: it lies in
  // shared memory, and publish_stores() and sums_done() are still to come.
  __device__ __forceinline__ bool put_d_q(const float (&d_q)[32], uint32_t step, Place x) {
    const uint32_t buffer = step % 2;
    const uint32_t sums = shared + P::kDQ + (buffer * 2 + me) * P::kSumBytes +
                          here(static_cast<uint32_t>(thread)) % 128 * 16;
    barrier_wait(shared + P::kSumReady + me * 16 + buffer * 8, step / 2 & 1);
    bool waits = n > 0;  // for the sums of blocks of keys before this
    if constexpr (P::kWindowed) waits = n > adders_to(x.m).first;
    if (waits) {
      put_sums(sums, d_q);
      return true;
    }
    const Work<P> w = read_work<P>(slot);
    bool more;
    if constexpr (P::kWindowed)
      more = adders_to(x.m).last > n;
    else
      more = adders<P>(p, w.key_blocks(), x.m) > 1;
    const int row = x.m * kM + (kD == 64 ? me * 64 : 0), column = kD == 64 ? 0 : me * 64;
    T* out = row_of<T>(p.b.d_q, w.q.first + row, p.b.d_q_stride, w.kv * p.group + x.g, kD) + column;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float total[16];
      add_sums(total, &d_q[g * 16], sums + g * 4 * 2048, more);
      write_rows_of<T, 32>(out + g * 32, p.b.d_q_stride, queries - row, total,
                           P::kDrops ? kept(p.b.forward.scale) : p.b.forward.scale);
    }
    __syncwarp();
    sums_done(step);
    return false;
  }
  __device__ __forceinline__ void release(uint32_t empty, uint32_t stage) {
    if (lane() == 0) barrier_arrive(shared + empty + stage * 8);
  }

  // d_p = d_o v^T and, without dropout, d_v += p^T d_o, two groups.
  __device__ __forceinline__ void issue_d_p(float (&d_p)[kM / 2], float (&d_v)[kD / 2],
                                            const uint32_t (&left)[kM / 16][4], uint32_t step) {
    const uint32_t stage = step % P::kStagesDO, d_o = shared + P::kDO + stage * P::kQueryTile;
    barrier_wait(shared + P::kFullDO + stage * 8, step / P::kStagesDO & 1);
    mma_fence();
    score(d_p, shared + P::kV, d_o);
    if constexpr (!P::kDrops) multiply_d_v(d_v, left, d_o);
  }
  __device__ __forceinline__ void issue_d_v(float (&d_v)[kD / 2],
                                            const uint32_t (&left)[kM / 16][4], uint32_t step) {
    mma_fence();
    multiply_d_v(d_v, left, shared + P::kDO + step % P::kStagesDO * P::kQueryTile);
  }
  __device__ __forceinline__ void multiply_d_v(float (&d_v)[kD / 2],
                                               const uint32_t (&left)[kM / 16][4], uint32_t d_o) {
    const uint32_t columns = here(descriptor_low(d_o, P::kQueryPanel));
#pragma unroll
    for (int c = 0; c < kM / 16; ++c)
      wgmma::mma_from_registers<T, kD, 1>(d_v, left[c], descriptor(columns + c * 128, 1024), 1);
    mma_commit();
  }
  // d_k += the gradients of the scores times q, from registers.
  __device__ __forceinline__ void issue_d_k(float (&d_k)[kD / 2],
                                            const uint32_t (&packed)[kM / 16][4], uint32_t step) {
    const uint32_t columns =
        here(descriptor_low(shared + P::kQ + step % P::kStagesQ * P::kQueryTile, P::kQueryPanel));
    mma_fence();
#pragma unroll
    for (int c = 0; c < kM / 16; ++c)
      wgmma::mma_from_registers<T, kD, 1>(d_k, packed[c], descriptor(columns + c * 128, 1024), 1);
    mma_commit();
  }
  // The same from shared memory, for dropout, whose registers are all in use.
  __device__ __forceinline__ void issue_d_k(float (&d_k)[kD / 2], uint32_t step) {
    const uint32_t d_s = shared + P::kDS + step % 2 * P::kScoreTile;
    const uint32_t left = here(descriptor_low(d_s + me * 8192, 16));
    const uint32_t columns =
        here(descriptor_low(shared + P::kQ + step % P::kStagesQ * P::kQueryTile, P::kQueryPanel));
    mma_fence();
#pragma unroll
    for (int c = 0; c < kM / 16; ++c)
      wgmma::mma<T, kD, 0, 1>(d_k, descriptor(left + c / 4 * (kN * 128 / 16) + c % 4 * 2, 1024),
                              descriptor(columns + c * 128, 1024), 1);
    mma_commit();
  }
  __device__ __forceinline__ void issue_d_q(float (&d_q)[32], uint32_t step) {
    const uint32_t d_s = shared + P::kDS + step % 2 * P::kScoreTile;
    const uint32_t left = here(descriptor_low(d_s + (kD == 64 ? me * (kN * 128) : 0), 16));
    const uint32_t columns =
        here(descriptor_low(shared + P::kK + (kD == 128 ? me * P::kKeyPanel : 0), P::kKeyPanel));
    barrier_wait(shared + P::kFullDS + step % 2 * 8, step / 2 & 1);
    mma_fence();
#pragma unroll
    for (int c = 0; c < kN / 16; ++c)
      wgmma::mma<T, 64, 1, 1>(d_q, descriptor(left + c * 128, 1024),
                              descriptor(columns + c * 128, 1024), c);
    mma_commit();
  }

  // The consumers take turns at exponentials, so that one has the tensor cores meanwhile.
  __device__ __forceinline__ void begin_exponentials() {
    if constexpr (P::kTurns) named_sync(4 + static_cast<int>(me), kConsumers);
  }
  __device__ __forceinline__ void end_exponentials() {
    if constexpr (P::kTurns) named_arrive(5 - static_cast<int>(me), kConsumers);
  }

  // Dropout: left remembers by their signs which probabilities are dropped.
  __device__ __forceinline__ void mark(uint32_t (&left)[kM / 16][4], Place x) const {
    if constexpr (P::kDrops) {
      const Work<P> w = read_work<P>(slot);
      const int64_t row = w.q.first + x.m * kM;
      mark_dropped<P>(left, dropout,
                      random_row(p.b.forward, w.kv * p.group + x.g, row) +
                          static_cast<uint64_t>((n * kN + warp_row()) / 4));
    }
  }
  // A factor of a result, with 1 / (1 - p), which the sums lack.
  __device__ __forceinline__ float kept(float factor) const {
    return factor / (1.0f - p.b.forward.dropout);
  }

  // Until both consumers have multiplied the gradients of the scores that lie where those of `step`
  // will.
  __device__ __forceinline__ void await_room(uint32_t step) const {
    barrier_wait(shared + P::kEmptyDS + step % 2 * 8, (step / 2 & 1) ^ 1);
  }
  // The steps of a unit with dropout, one or more (backward_dropout_steps.cuh).
  __device__ __forceinline__ void run_dropping(float (&d_k)[kD / 2], float (&d_v)[kD / 2],
                                               uint32_t& step, int begin, int end);

  // This consumer's rows of v are there, with zeros for keys beyond the sequence. Does not wait for
  // the other consumer, which may be waiting for its turn.
  __device__ __forceinline__ void await_values() {
    barrier_wait(shared + P::kFullV, round & 1);
    const int first = static_cast<int>(me) * 64, end = first + 64;
    if (keys < end)
      clear_rows<kN, P::kPanels, 128>(shared + P::kV, max(keys, first), end, thread,
                                      2 + static_cast<int>(me));
  }
  // One unit; `step` counts steps of all units.
  __device__ __forceinline__ void run(uint32_t& step, int begin, int windowed_end) {
    float d_k[kD / 2], d_v[kD / 2];
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) d_k[i] = d_v[i] = 0.0f;
    const int end = P::kWindowed ? windowed_end : (queries + kM - 1) / kM;
    const int steps = (end - begin) * p.group;
    if constexpr (P::kDrops) {
      if (steps > 0) run_dropping(d_k, d_v, step, begin, end);
    } else if (steps > 0) {
      float d_p[kM / 2];
      uint32_t left[kM / 16][4], packed[kM / 16][4];
      Place at{begin, 0};
      float slope_sum = 0.0f;
      {
        float s[kM / 2];
        float2 lse[kM / 8];
        issue_scores(s, step, begin);
        load_lse(lse, step);
        mma_wait<0>();
        settle(s);
        begin_exponentials();
        probabilities(left, s, lse, begin, slope_of(0));
      }
      await_values();
      issue_d_p(d_p, d_v, left, step);
      end_exponentials();
      float2 delta[kM / 8];
      const float2(*const early)[kM / 8] = P::kEarlyDelta ? &delta : nullptr;
      if constexpr (P::kEarlyDelta) load_delta(delta, step);
      mma_wait<1>();
      settle(d_p);
      bool summed = false;  // d_q of the step before lies in shared memory
#pragma unroll 1
      for (int i = 1; i < steps; ++i, ++step) {
        const Place after = next(at, begin, end);
        score_gradients(packed, d_p, early, left, step, at.m, slope_sum);
        put_slope_sum(slope_sum, at.g, after.g);
        float s[kM / 2], d_q[32];
        issue_d_k(d_k, packed, step);
        issue_scores(s, step + 1, after.m);
        put_gradients(packed, step, summed);
        mma_wait<2>();
        release(P::kEmptyDO, step % P::kStagesDO);
        float2 lse[kM / 8];
        load_lse(lse, step + 1);
        mma_wait<0>();
        release(P::kEmptyQ, step % P::kStagesQ);
        settle(s);
        begin_exponentials();
        probabilities(left, s, lse, after.m, slope_of(after.g));
        issue_d_q(d_q, step);
        issue_d_p(d_p, d_v, left, step + 1);
        end_exponentials();
        mma_wait<2>();
        settle(d_q);
        summed = put_d_q(d_q, step, at);
        if constexpr (P::kEarlyDelta) load_delta(delta, step + 1);
        mma_wait<1>();
        settle(d_p);
        at = after;
      }
      score_gradients(packed, d_p, early, left, step, at.m, slope_sum);
      put_slope_sum(slope_sum, at.g, p.group);
      put_gradients(packed, step, summed);
      mma_wait<0>();
      release(P::kEmptyDO, step % P::kStagesDO);
      float d_q[32];
      issue_d_q(d_q, step);
      issue_d_k(d_k, packed, step);
      mma_wait<1>();
      settle(d_q);
      release(P::kEmptyK, 0);
      finish_d_q(d_q, step, at);
      mma_wait<0>();
      release(P::kEmptyQ, step % P::kStagesQ);
      ++step;
    }
    settle(d_k);
    settle(d_v);
    const Work<P> w = read_work<P>(slot);
    const int row = n * kN + me * 64;
    const float factor = P::kDrops ? kept(1.0f) : 1.0f, scale = p.b.forward.scale * factor;
    if (steps <= 0 || w.k.count - row < 64) {  // rows of another sequence follow, or v is not here
      write_rows_of<T, kD>(row_of<T>(p.b.d_k, w.k.first + row, p.b.d_k_stride, w.kv, kD),
                           p.b.d_k_stride, w.k.count - row, d_k, scale);
      write_rows_of<T, kD>(row_of<T>(p.b.d_v, w.k.first + row, p.b.d_v_stride, w.kv, kD),
                           p.b.d_v_stride, w.k.count - row, d_v, factor);
      named_sync(2 + static_cast<int>(me), 128);  // all four warps are done with v
    } else {
      const int column = w.kv * kD;
      store_rows(d_v, factor, p.d_v, column, w.k.first + row);
      store_rows(d_k, scale, p.d_k, column, w.k.first + row);
    }
    if (steps > 0 && thread % 128 == 0) barrier_arrive(shared + P::kEmptyV);
  }
  // 64 rows of results by way of this consumer's rows of v, which nobody reads any more; on return
  // these are free again, in the view of the consumer's first thread.
  __device__ __forceinline__ void store_rows(const float (&sum)[kD / 2], float factor,
                                             const CUtensorMap& map, int column, int row) {
    const uint32_t rows = shared + P::kV + me * 8192;
    named_sync(2 + static_cast<int>(me), 128);
    stage_rows<T, kD>(rows, P::kKeyPanel, sum, factor);
    publish_stores();
    named_sync(2 + static_cast<int>(me), 128);
    if (thread % 128 != 0) return;
#pragma unroll
    for (int i = 0; i < P::kPanels; ++i)
      store_box(map, rows + i * P::kKeyPanel, column + i * 64, row);
    commit_stores();
    await_stores_read();
  }
};

template <class P>
__device__ inline void consume(const BackwardProblem& p, uint32_t shared) {
  using T = typename P::T;
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const auto me = static_cast<uint32_t>(__shfl_sync(~0u, thread / 128, 0));
  const DropoutBits dropout(p.b.forward.rng, p.b.forward.dropout, P::kDrops);
  uint32_t step = 0, round = 0;
  if (P::kTurns && me == 1) named_arrive(4, kConsumers);  // the first turn is the other's
  for (uint32_t count = 0;; ++count) {
    const Work<P> w = get_work<P>(shared, count);
    if (w.n < 0) return;
    if (w.k.count > 0) {
      const int keys = w.k.count - w.n * P::kN, begin = w.begin(p), end = w.end(p);
      Consumer<P> consumer{
          p, shared, me, work_slot<P>(shared, count), thread, w.q.count, w.n, keys, round, dropout};
      if (begin < end) {
        barrier_wait(shared + P::kFullK, round++ & 1);
        if (keys < P::kN) clear_rows<P::kN, P::kPanels>(shared + P::kK, keys, P::kN, thread);
      }
      consumer.run(step, begin, end);
    } else {  // queries without a key
      for (int g = 0; g < p.group; ++g)
        for (int i = thread; i < w.q.count * (P::kD / 8); i += kConsumers) {
          T* line = row_of<T>(p.b.d_q, w.q.first + i / (P::kD / 8), p.b.d_q_stride,
                              w.kv * p.group + g, P::kD);
          *reinterpret_cast<uint4*>(line + i % (P::kD / 8) * 8) = make_uint4(0, 0, 0, 0);
        }
    }
    __syncwarp();
    if (thread % 32 == 0) free_work<P>(shared, count);
  }
}

}  // namespace saturate::kernels::attention::hopper
