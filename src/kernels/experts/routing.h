// SPDX-License-Identifier: Apache-2.0
// Which experts compute which tokens: the choice of each token, the places that experts have, the
// order in which rows lie for grouped products (gemm/grouped), what balances the load. All counts
// stay on the device. For all operations here:
//
// Types     logits, gates and their gradients in wide_of(dtype), sums as well; the rest as given.
// Aliasing  none.
// Stream    enqueued on ctx.stream; capturable; never synchronises.
// Order     bitwise equal run to run: integers are counted, other sums have a fixed order.
// Errors    invalid_argument for sizes and pointers; unsupported when no implementation fits;
//           device.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

constexpr int64_t kMostExperts = 256;  // a warp of the GPU holds the logits of a row
constexpr int64_t kMostChoices = 8;    // of a token

// The experts of each token, best first, from p = softmax(logits):
//
//   choices[r][j] = the expert of the j-th largest logit (the lower one of equals)
//   gates[r][j]   = p[choices[r][j]], for k > 1 divided by the sum over the k choices
//
// random_second (GShard): the second choice stays with probability min(1, 2 gates[r][1]), else
// choices[r][1] = -1. Rows that are not valid get choices -1 and gates 0.
//
// Shapes    logits (rows, experts); choices, gates (rows, k); valid (1): of the whole micro-batch
//           the rows [0, *valid) hold tokens, null: all do. Row r is row rng.first_row + r of it.
// Random    element rng.first_row + r, one a row; read only with random_second.
// Cost      one read of the logits.
// Source    Shazeer et al., arXiv:1701.06538; Lepikhin et al., arXiv:2006.16668, algorithm 1.
struct RouteTokensArgs {
  const void* logits = nullptr;
  int32_t* choices = nullptr;
  void* gates = nullptr;
  const int32_t* valid = nullptr;
  int64_t rows = 0, experts = 0, k = 1;
  DType dtype = DType::f32;
  bool random_second = false;
  RngRef rng;
};
void route_tokens(const Context& ctx, const RouteTokensArgs& args);

// d_logits from d_gates, and from two losses that train the router alone. With T valid rows in the
// micro-batch, f[e] = counts[e] / sum(counts), P[e] the mean of p[e] over the T rows, lse the
// logarithm of the sum of exponentials of a row's logits:
//
//   balance = experts * sum_e f[e] P[e]      z = mean of lse^2
//   loss    = ... + T * (balance_loss * balance + z_loss * z), times grad_scale * *device_scale
//
// T enters because losses of a step are sums over its tokens; it cancels against the means. f has no
// gradient.
//
// Shapes    d_gates (rows, k), 0 where a choice was not computed; d_logits (rows, experts), written
//           throughout; counts (experts) as limit_choices() makes them, read for balance_loss > 0;
//           device_scale: an f32 scalar in device memory, null for 1. `forward` needs no results.
// Cost      logits and d_gates read, d_logits written.
// Source    Fedus et al., arXiv:2101.03961, section 2.2 (balance); Zoph et al., arXiv:2202.08906 (z).
struct RouteTokensBackwardArgs {
  RouteTokensArgs forward;
  const void* d_gates = nullptr;
  const int32_t* counts = nullptr;
  void* d_logits = nullptr;
  float balance_loss = 0.0f, z_loss = 0.0f;
  float grad_scale = 1.0f;
  const float* device_scale = nullptr;
};
void route_tokens_backward(const Context& ctx, const RouteTokensBackwardArgs& args);

// Gives every choice of a micro-batch a place at its expert until its capacity is used up: first
// choices in the order of rows, then second ones, and so on.
//
//   capacity = ceil(capacity_factor * k * T / experts), T = min(rows, *valid) or rows
//   kept[i]  = choices[first_row + i] where it got a place, else -1
//   counts[e] = choices of e, with a place or without; with count_first only first ones
//
// Shapes    choices (rows, k), of all rows of the micro-batch, -1 where there is none; kept
//           (own_rows, k); counts (experts); scratch limit_choices_scratch() of int32.
//           capacity_factor 0: no limit. kept may be null where only counts are wanted.
// Types     i32.
// Cost      choices read twice.
// Source    Lepikhin et al., arXiv:2006.16668, algorithm 1; Fedus et al., arXiv:2101.03961.
struct LimitChoicesArgs {
  const int32_t* choices = nullptr;
  const int32_t* valid = nullptr;
  int32_t* kept = nullptr;
  int32_t* counts = nullptr;
  int32_t* scratch = nullptr;
  int64_t rows = 0, first_row = 0, own_rows = 0, experts = 0, k = 1;
  double capacity_factor = 0;
  bool count_first = false;
};
void limit_choices(const Context& ctx, const LimitChoicesArgs& args);

// Elements of scratch for limit_choices and sort_by_expert.
int64_t expert_scratch(int64_t rows, int64_t k, int64_t experts) noexcept;

// Sorts the choices of experts [first_expert, first_expert + experts) by expert, stable in the
// order of rows and then of choices.
//
//   slots[r][j] = place of the choice among them, -1 where it is of another expert or none
//   offsets[e]  = choices of the experts before first_expert + e
//
// Shapes    choices, slots (rows, k); offsets (experts + 1); scratch expert_scratch() of int32.
// Types     i32.
// Cost      choices read twice, slots written.
// Source    counting sort; Gale et al., arXiv:2211.15841 (dropless experts).
struct SortByExpertArgs {
  const int32_t* choices = nullptr;
  int32_t* slots = nullptr;
  int32_t* offsets = nullptr;
  int32_t* scratch = nullptr;
  int64_t rows = 0, k = 1, first_expert = 0, experts = 0;
};
void sort_by_expert(const Context& ctx, const SortByExpertArgs& args);

// Columns of a routing's totals behind those of the experts.
enum class RoutingTotal : uint8_t {
  tokens,    // valid rows
  left_out,  // choices that random_second has not kept
  dropped,   // choices that got no place
  entropy,   // sum of -sum_e p[e] ln p[e]
  balance,   // sum of experts * sum_e f[e] p[e]
  z          // sum of lse^2
};
constexpr int64_t kRoutingTotals = 6, kRoutingBlocks = 64;

// What a run tells of its routing: sums over tokens, added to totals. Row b of totals gets what
// block b of the launch has seen, so that nothing is added in an order that changes; the sum over
// its rows is what counts. Columns: choices of each expert, then those of RoutingTotal.
//
// Shapes    logits (rows, experts); choices (rows, k) as routed; kept (rows, k), or null: all;
//           counts as in RouteTokensBackwardArgs; totals (kRoutingBlocks, experts + kRoutingTotals)
//           f64, of which the rows may be summed. Rows are numbered as in RouteTokensArgs.
// Cost      one read of logits and choices.
// Source    the formulas above.
struct RoutingStatisticsArgs {
  const void* logits = nullptr;
  const int32_t* choices = nullptr;
  const int32_t* kept = nullptr;
  const int32_t* counts = nullptr;
  const int32_t* valid = nullptr;
  double* totals = nullptr;
  int64_t rows = 0, first_row = 0, experts = 0, k = 1;
  DType dtype = DType::f32;
};
void routing_statistics(const Context& ctx, const RoutingStatisticsArgs& args);

}  // namespace saturate::kernels
