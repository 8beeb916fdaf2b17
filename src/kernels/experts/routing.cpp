// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/experts/experts_impl.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

template <class Args>
Fit fits_cpu_of(const Context&, const Args& a) noexcept {
  if constexpr (requires { a.dtype; }) return fits_cpu(a.dtype);
  if constexpr (requires { a.forward; }) return fits_cpu(a.forward.dtype);
  return {};
}
#if SATURATE_WITH_CUDA
template <class Args>
Fit fits_cuda_of(const Context&, const Args& a) noexcept {
  if constexpr (requires { a.dtype; }) return fits_cuda(a.dtype, a.rows * a.experts);
  if constexpr (requires { a.forward; })
    return fits_cuda(a.forward.dtype, a.forward.rows * a.forward.experts);
  if constexpr (requires { a.scratch; }) return fits_cuda(DType::i32, a.rows * a.k);
  return {};
}
#endif

constexpr Impl<RouteTokensArgs> kRoute[] = {SAT_CUDA_IMPL(
    {"route_tokens_cuda", DeviceKind::cuda, fits_cuda_of<RouteTokensArgs>, route_tokens_cuda}){
    "route_tokens_cpu", DeviceKind::cpu, fits_cpu_of<RouteTokensArgs>, route_tokens_cpu}};
constexpr Impl<RouteTokensBackwardArgs> kRouteBackward[] = {SAT_CUDA_IMPL(
    {"route_tokens_backward_cuda", DeviceKind::cuda, fits_cuda_of<RouteTokensBackwardArgs>,
     route_tokens_backward_cuda}){"route_tokens_backward_cpu", DeviceKind::cpu,
                                  fits_cpu_of<RouteTokensBackwardArgs>, route_tokens_backward_cpu}};
constexpr Impl<LimitChoicesArgs> kLimit[] = {SAT_CUDA_IMPL(
    {"limit_choices_cuda", DeviceKind::cuda, fits_cuda_of<LimitChoicesArgs>, limit_choices_cuda}){
    "limit_choices_cpu", DeviceKind::cpu, fits_cpu_of<LimitChoicesArgs>, limit_choices_cpu}};
constexpr Impl<SortByExpertArgs> kSort[] = {SAT_CUDA_IMPL(
    {"sort_by_expert_cuda", DeviceKind::cuda, fits_cuda_of<SortByExpertArgs>, sort_by_expert_cuda}){
    "sort_by_expert_cpu", DeviceKind::cpu, fits_cpu_of<SortByExpertArgs>, sort_by_expert_cpu}};
constexpr Impl<RoutingStatisticsArgs> kStatistics[] = {SAT_CUDA_IMPL(
    {"routing_statistics_cuda", DeviceKind::cuda, fits_cuda_of<RoutingStatisticsArgs>,
     routing_statistics_cuda}){"routing_statistics_cpu", DeviceKind::cpu,
                               fits_cpu_of<RoutingStatisticsArgs>, routing_statistics_cpu}};

void require_experts(const char* op, int64_t experts, int64_t k) {
  if (experts < 1 || experts > kMostExperts || k < 1 || k > kMostChoices) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("{} experts, {} choices of a token: 1 to {} experts and 1 to {} "
                            "choices are possible",
                            experts, k, kMostExperts, kMostChoices));
  }
}

// Whether there is anything to do.
bool check(const char* op, RouteTokensArgs& a) {
  require_float(op, a.dtype);
  require_sizes(op, {{"rows", a.rows}});
  require_experts(op, a.experts, a.k);
  if (a.k > a.experts) {
    throw Error(
        Errc::invalid_argument, op,
        fmt::format("{} choices of {} experts: no more choices than experts", a.k, a.experts));
  }
  if (a.random_second && (a.k != 2 || a.rng.state == nullptr)) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("random_second with k = {}: it needs two choices and the address of "
                            "the counters in rng.state",
                            a.k));
  }
  a.rng = whole_matrix(op, a.rng, a.rows, 1);
  if (a.rows == 0) return false;
  require_pointers(op, {{"logits", a.logits}});
  return true;
}

}  // namespace

template <>
std::span<const Impl<RouteTokensArgs>> impls_of() noexcept {
  return kRoute;
}
template <>
std::span<const Impl<RouteTokensBackwardArgs>> impls_of() noexcept {
  return kRouteBackward;
}
template <>
std::span<const Impl<LimitChoicesArgs>> impls_of() noexcept {
  return kLimit;
}
template <>
std::span<const Impl<SortByExpertArgs>> impls_of() noexcept {
  return kSort;
}
template <>
std::span<const Impl<RoutingStatisticsArgs>> impls_of() noexcept {
  return kStatistics;
}

int64_t expert_scratch(int64_t rows, int64_t k, int64_t experts) noexcept {
  return (rows * k + kSortChunk - 1) / kSortChunk * experts;
}

void route_tokens(const Context& ctx, const RouteTokensArgs& args) {
  constexpr const char* kOp = "route_tokens";
  RouteTokensArgs a = args;
  if (!check(kOp, a)) return;
  require_pointers(kOp, {{"choices", a.choices}, {"gates", a.gates}});
  dispatch<RouteTokensArgs>(kOp, ctx, a, kRoute, [&] {
    return shape_text(a.dtype, {a.rows, a.experts, a.k});
  });
}

void route_tokens_backward(const Context& ctx, const RouteTokensBackwardArgs& args) {
  constexpr const char* kOp = "route_tokens_backward";
  RouteTokensBackwardArgs a = args;
  if (!check(kOp, a.forward)) return;
  require_pointers(kOp, {{"d_gates", a.d_gates}, {"d_logits", a.d_logits}});
  if (a.balance_loss != 0.0f) require_pointers(kOp, {{"counts", a.counts}});
  dispatch<RouteTokensBackwardArgs>(kOp, ctx, a, kRouteBackward);
}

void limit_choices(const Context& ctx, const LimitChoicesArgs& a) {
  constexpr const char* kOp = "limit_choices";
  require_sizes(kOp, {{"rows", a.rows}, {"first_row", a.first_row}, {"own_rows", a.own_rows}});
  require_experts(kOp, a.experts, a.k);
  if (a.first_row + a.own_rows > a.rows) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("rows {} + {} of {}: the own rows are among all rows", a.first_row,
                            a.own_rows, a.rows));
  }
  if (a.rows == 0) return;
  require_pointers(kOp, {{"choices", a.choices}, {"counts", a.counts}, {"scratch", a.scratch}});
  dispatch<LimitChoicesArgs>(kOp, ctx, a, kLimit);
}

void sort_by_expert(const Context& ctx, const SortByExpertArgs& a) {
  constexpr const char* kOp = "sort_by_expert";
  require_sizes(kOp, {{"rows", a.rows}, {"first_expert", a.first_expert}});
  require_experts(kOp, a.experts, a.k);
  if (a.rows == 0) return;
  require_pointers(
      kOp,
      {{"choices", a.choices}, {"slots", a.slots}, {"offsets", a.offsets}, {"scratch", a.scratch}});
  dispatch<SortByExpertArgs>(kOp, ctx, a, kSort);
}

void routing_statistics(const Context& ctx, const RoutingStatisticsArgs& a) {
  constexpr const char* kOp = "routing_statistics";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"first_row", a.first_row}});
  require_experts(kOp, a.experts, a.k);
  if (a.rows == 0) return;
  require_pointers(
      kOp,
      {{"logits", a.logits}, {"choices", a.choices}, {"counts", a.counts}, {"totals", a.totals}});
  dispatch<RoutingStatisticsArgs>(kOp, ctx, a, kStatistics);
}

}  // namespace saturate::kernels
