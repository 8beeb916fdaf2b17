// SPDX-License-Identifier: Apache-2.0
// How the work of the Hopper backward kernel is cut; every warp walks over it in the same order.
#pragma once
#include "kernels/attention/hopper/backward_device.cuh"

namespace saturate::kernels::attention::hopper {

template <class P>
struct Work;
template <class P>
__device__ __forceinline__ int windowed_begin(const BackwardProblem& p, const Work<P>& w);
template <class P>
__device__ __forceinline__ int windowed_end(const BackwardProblem& p, const Work<P>& w);

// A unit of work: one block of keys of one key head of one sequence, with all the queries that see
// it. A block that is free takes the next number. Numbers go through a band of heads together, all
// last keys first: blocks at work at one time share their sums of d_q in L2, and whoever waits for
// another's sums waits for a lower number, which has begun, and as a rule by a step or more
// earlier.
template <class P>
struct Work {
  Rows q, k;
  int piece;  // first block of queries of the sequence (backward_problem.h)
  int kv, n;  // key head, block of keys; n < 0: no more work

  __device__ __forceinline__ int key_blocks() const { return (k.count + P::kN - 1) / P::kN; }
  __device__ __forceinline__ int query_blocks() const { return (q.count + P::kM - 1) / P::kM; }
  // Blocks of queries that see the keys: the first, and the one after the last.
  __device__ __forceinline__ int begin(const BackwardProblem& p) const {
    if constexpr (P::kWindowed) return windowed_begin<P>(p, *this);
    return p.b.forward.causal ? min(n * P::kN / P::kM, query_blocks()) : 0;
  }
  __device__ __forceinline__ int end(const BackwardProblem& p) const {
    if constexpr (P::kWindowed) return windowed_end<P>(p, *this);
    return query_blocks();
  }
};
// Unit `number`; false if there is nothing to do.
template <class P>
__device__ __forceinline__ bool make_work(Work<P>& w, const BackwardProblem& p, int number) {
  const AttentionArgs& a = p.b.forward;
  const int heads = static_cast<int>(a.sequences * a.kv_heads), per_band = p.band * p.key_blocks;
  const int band = number / per_band, in_band = number % per_band;
  const int width = min(p.band, heads - band * p.band);
  const int head = band * p.band + in_band % width;
  const int sequence = head / static_cast<int>(a.kv_heads);
  w.kv = head % static_cast<int>(a.kv_heads);
  w.n = p.key_blocks - 1 - in_band / width;
  w.q = rows_of(a.cu_q, sequence);
  w.k = rows_of(a.cu_k, sequence);
  w.piece = w.q.first / P::kM + sequence;
  return w.n < max(1, w.key_blocks()) && w.q.count + w.k.count > 0;
}

// A slot in shared memory by which one thread hands the others their next unit.
template <class P>
__device__ __forceinline__ void put_work(uint32_t slot, const Work<P>& w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(slot), "r"(w.q.first),
               "r"(w.q.count), "r"(w.k.first), "r"(w.k.count)
               : "memory");
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(slot + 16), "r"(w.piece), "r"(w.kv),
               "r"(w.n), "r"(0)
               : "memory");
}
template <class P>
__device__ __forceinline__ uint32_t work_slot(uint32_t shared, uint32_t count) {
  return shared + P::kWork + count % 2 * 32;
}
template <class P>
__device__ __forceinline__ Work<P> read_work(uint32_t slot) {
  Work<P> w;
  int unused;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.q.first), "=r"(w.q.count), "=r"(w.k.first), "=r"(w.k.count)
               : "r"(slot)
               : "memory");
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.piece), "=r"(w.kv), "=r"(w.n), "=r"(unused)
               : "r"(slot + 16)
               : "memory");
  return w;
}
template <class P>
__device__ __forceinline__ Work<P> get_work(uint32_t shared, uint32_t count) {
  barrier_wait(shared + P::kFullWork + count % 2 * 8, count / 2 & 1);
  return read_work<P>(work_slot<P>(shared, count));
}
// By one lane of a warp that is done with the slot.
template <class P>
__device__ __forceinline__ void free_work(uint32_t shared, uint32_t count) {
  barrier_arrive(shared + P::kEmptyWork + count % 2 * 8);
}

// A step of the work on some keys: block m of queries of head g of the group.
struct Place {
  int m, g;
};
__device__ __forceinline__ Place next(Place x, int begin, int end) {
  return x.m + 1 == end ? Place{begin, x.g + 1} : Place{x.m + 1, x.g};
}

// How many blocks of keys, of so many, add to d_q of block `m` of queries; the last keys do first,
// and keep the order down to n = 0, so that the sums do not depend on who is faster.
template <class P>
__device__ __forceinline__ int adders(const BackwardProblem& p, int key_blocks, int m) {
  return p.b.forward.causal ? min(key_blocks, ((m + 1) * P::kM - 1) / P::kN + 1) : key_blocks;
}

}  // namespace saturate::kernels::attention::hopper
