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
  int64_t sequence = 0, head = 0, kv_head = 0;
  int64_t i = 0, j = 0;                    // counted from the start of their sequence
  int64_t q_row = 0, k_row = 0;            // counted from the start of q and k
  double product = 0, score = 0;           // scale * q.k, and after cap, bias and distance
  double p = 0, keep = 0;                  // probability, and what dropout multiplies it with
  double d_p = 0, delta = 0, d_score = 0;  // keep * d_o.v, o.d_o, p * (d_p - delta)
  double cap_slope = 0, distance = 0;      // derivative of the cap, |i' - j|
  const double* q = nullptr;               // of this head; rotated, as is k
  const double* k = nullptr;
  const double* v = nullptr;
  const double* d_o = nullptr;
  const double* o = nullptr;
};

// Calls visit for every key that a query sees with a probability above 0.
void attention_visit_reference(const AttentionBackwardArgs& args,
                               const std::function<void(const AttentionTerm&)>& visit);

}  // namespace saturate::kernels
