// SPDX-License-Identifier: Apache-2.0
// What routing.cpp and expert_rows.cpp choose from; arguments are checked, no size is 0.
#pragma once
#include "kernels/experts/expert_rows.h"
#include "kernels/experts/routing.h"

namespace saturate::kernels {

constexpr int kSortChunk = 1024;  // choices that a block counts: a thread each

// Number of rows of `rows` that hold tokens when the first is row `first` of the micro-batch.
SAT_HD int64_t valid_rows(const int32_t* valid, int64_t first, int64_t rows) {
  if (valid == nullptr) return rows;
  const int64_t left = *valid - first;
  return left < 0 ? 0 : left < rows ? left : rows;
}
// Choices that an expert takes; the same on every device, as double arithmetic is.
SAT_HD int64_t capacity_of(const LimitChoicesArgs& a) {
  if (a.capacity_factor <= 0) return INT64_MAX;
  const auto choices = static_cast<double>(valid_rows(a.valid, 0, a.rows) * a.k);
  const double places = a.capacity_factor * choices / static_cast<double>(a.experts);
  const auto whole = static_cast<int64_t>(places);
  return whole + (static_cast<double>(whole) < places ? 1 : 0);
}
// Whether GShard keeps a second choice: 24 bits, so that float and double agree.
SAT_HD bool keeps_second(const RouteTokensArgs& a, int64_t row, double gate) {
  const auto element = static_cast<uint64_t>(a.rng.first_row + row);
  const Random4 r = random_block(a.rng.state[0], a.rng.state[1], a.rng.site, element / 4);
  return static_cast<double>(r.x[element % 4] >> 8) * 0x1p-24 < 2 * gate;
}

void route_tokens_cpu(const Context& ctx, const RouteTokensArgs& args);
void route_tokens_cuda(const Context& ctx, const RouteTokensArgs& args);
void route_tokens_backward_cpu(const Context& ctx, const RouteTokensBackwardArgs& args);
void route_tokens_backward_cuda(const Context& ctx, const RouteTokensBackwardArgs& args);
void limit_choices_cpu(const Context& ctx, const LimitChoicesArgs& args);
void limit_choices_cuda(const Context& ctx, const LimitChoicesArgs& args);
void sort_by_expert_cpu(const Context& ctx, const SortByExpertArgs& args);
void sort_by_expert_cuda(const Context& ctx, const SortByExpertArgs& args);
void routing_statistics_cpu(const Context& ctx, const RoutingStatisticsArgs& args);
void routing_statistics_cuda(const Context& ctx, const RoutingStatisticsArgs& args);
void dispatch_rows_cpu(const Context& ctx, const DispatchRowsArgs& args);
void dispatch_rows_cuda(const Context& ctx, const DispatchRowsArgs& args);
void dispatch_rows_backward_cpu(const Context& ctx, const DispatchRowsBackwardArgs& args);
void dispatch_rows_backward_cuda(const Context& ctx, const DispatchRowsBackwardArgs& args);
void combine_rows_cpu(const Context& ctx, const CombineRowsArgs& args);
void combine_rows_cuda(const Context& ctx, const CombineRowsArgs& args);
void combine_rows_backward_cpu(const Context& ctx, const CombineRowsBackwardArgs& args);
void combine_rows_backward_cuda(const Context& ctx, const CombineRowsBackwardArgs& args);

}  // namespace saturate::kernels
