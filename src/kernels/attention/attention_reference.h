// SPDX-License-Identifier: Apache-2.0
// The truth that tests compare with: straight from the formula of attention.h, in double, with the
// whole score matrix of a head in memory. dtype must be f64 and every pointer host memory.
#pragma once
#include <functional>

#include "kernels/attention/attention.h"

namespace saturate::kernels {

void attention_forward_reference(const AttentionArgs& args);
void attention_backward_reference(const AttentionBackwardArgs& args);

// All that the backward pass knows about one query row (of q) and one key row (of k) of a head.
struct AttentionTerm {
  int64_t sequence, head, kv_head;
  int64_t i, j;                       // counted from the start of their sequence
  int64_t q_row, k_row;               // counted from the start of q and k
  double product, score;              // scale * q.k, and after cap, bias and distance
  double p, keep;                     // probability, and what dropout multiplies it with
  double d_p, delta, d_score;         // keep * d_o.v, o.d_o, p * (d_p - delta)
  double cap_slope, distance;         // derivative of the cap, |i' - j|
  const double *q, *k, *v, *d_o, *o;  // of this head; q and k rotated
};

// Calls visit for every key that a query sees with a probability above 0.
void attention_visit_reference(const AttentionBackwardArgs& args,
                               const std::function<void(const AttentionTerm&)>& visit);

}  // namespace saturate::kernels
