// SPDX-License-Identifier: Apache-2.0
// Steps of a consumer of the Hopper backward kernel with dropout. dV(t+1) waits for the gradients
// of the scores, because until then its operand remembers what is dropped (backward_dropout.cuh):
//
//   S(t+1), dK(t) | probabilities of t+1 | dP(t+1) | what is dropped |
//   gradients of the scores, to shared memory | dQ(t), dV(t+1) | dQ(t) leaves
//
// Nothing is under way where a step ends: ptxas does not keep the sums of products in one place
// through the head of the loop, and would do one product after the other everywhere (C7512).
#pragma once
#include "kernels/attention/hopper/backward_consume.cuh"

namespace saturate::kernels::attention::hopper {

template <class P>
__device__ __forceinline__ void Consumer<P>::run_dropping(float (&d_k)[kD / 2],
                                                          float (&d_v)[kD / 2], uint32_t& step,
                                                          int begin, int end) {
  const int steps = (end - begin) * p.group;
  uint32_t left[kM / 16][4], packed[kM / 16][4];
  float no_slopes = 0.0f;
  Place at{begin, 0};
  {
    float s[kM / 2], d_p[kM / 2];
    float2 lse[kM / 8];
    issue_scores(s, step, begin);
    load_lse(lse, step);
    mma_wait<0>();
    settle(s);
    begin_exponentials();
    probabilities(left, s, lse, begin, 0.0f);
    await_values();
    issue_d_p(d_p, d_v, left, step);
    end_exponentials();
    mark(left, at);
    mma_wait<0>();
    settle(d_p);
    score_gradients(packed, d_p, nullptr, left, step, at.m, no_slopes);
    await_room(step);
    put_gradients(packed, step);
    issue_d_v(d_v, left, step);
    mma_wait<0>();
    settle(d_v);
    release(P::kEmptyDO, step % P::kStagesDO);
  }
#pragma unroll 1
  for (int i = 1; i < steps; ++i, ++step) {
    const Place after = next(at, begin, end);
    float s[kM / 2], d_p[kM / 2], d_q[32];
    float2 lse[kM / 8];
    issue_scores(s, step + 1, after.m);
    issue_d_k(d_k, step);
    load_lse(lse, step + 1);
    mma_wait<1>();
    settle(s);
    begin_exponentials();
    probabilities(left, s, lse, after.m, 0.0f);
    issue_d_p(d_p, d_v, left, step + 1);
    end_exponentials();
    mark(left, after);
    mma_wait<0>();
    release(P::kEmptyQ, step % P::kStagesQ);
    settle(d_p);
    score_gradients(packed, d_p, nullptr, left, step + 1, after.m, no_slopes);
    await_room(step + 1);
    put_gradients(packed, step + 1);
    issue_d_q(d_q, step);
    issue_d_v(d_v, left, step + 1);
    mma_wait<1>();
    settle(d_q);
    release(P::kEmptyDS, step % 2);
    finish_d_q(d_q, step, at);
    mma_wait<0>();
    settle(d_v);
    release(P::kEmptyDO, (step + 1) % P::kStagesDO);
    at = after;
  }
  float d_q[32];
  issue_d_q(d_q, step);
  issue_d_k(d_k, step);
  mma_wait<1>();
  release(P::kEmptyDS, step % 2);
  settle(d_q);
  release(P::kEmptyK, 0);
  finish_d_q(d_q, step, at);
  mma_wait<0>();
  release(P::kEmptyQ, step % P::kStagesQ);
  ++step;
}

}  // namespace saturate::kernels::attention::hopper
