// SPDX-License-Identifier: Apache-2.0
// Which blocks of queries and of keys meet in the Hopper backward kernel where windows and
// alignment may be set. A block of queries that sees no key belongs to the block of keys nearest to
// its place, which writes zeros for it: so every d_q is written by somebody.
#pragma once
#include "kernels/attention/hopper/backward_work.cuh"

namespace saturate::kernels::attention::hopper {

// Of a / b, the integer below (b a power of two known to the compiler).
template <int b>
__device__ __forceinline__ int floor_of(int a) {
  static_assert((b & (b - 1)) == 0);
  return a >> (31 - __builtin_clz(b));
}

// The blocks of keys, of so many, that add to d_q of block m of queries. The last does first, and
// the first last.
struct Adders {
  int first, last;
};
template <class P>
__device__ __forceinline__ Adders adders_at(const BackwardProblem& p, int shift, int key_blocks,
                                            int m) {
  const int at = m * P::kM + shift;
  return {min(max(floor_of<P::kN>(at - p.windowed.left), 0), key_blocks - 1),
          min(max(floor_of<P::kN>(at + P::kM - 1 + p.windowed.right), 0), key_blocks - 1)};
}

// What adders_at() says, seen from the keys.
template <class P>
__device__ __forceinline__ int windowed_begin(const BackwardProblem& p, const Work<P>& w) {
  if (w.n == 0) return 0;
  const int at = w.n * P::kN - p.windowed.shift(w.q.count, w.k.count) - p.windowed.right;
  return min(max(floor_of<P::kM>(at), 0), w.query_blocks());
}
template <class P>
__device__ __forceinline__ int windowed_end(const BackwardProblem& p, const Work<P>& w) {
  if (w.n >= w.key_blocks() - 1) return w.query_blocks();
  const int at = (w.n + 1) * P::kN - 1 - p.windowed.shift(w.q.count, w.k.count) + p.windowed.left;
  return min(max(floor_of<P::kM>(at) + 1, 0), w.query_blocks());
}

}  // namespace saturate::kernels::attention::hopper
