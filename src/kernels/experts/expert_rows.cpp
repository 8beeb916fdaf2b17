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
  if constexpr (requires { a.forward; })
    return fits_cpu(a.forward.dtype);
  else
    return fits_cpu(a.dtype);
}
#if SATURATE_WITH_CUDA
template <class Args>
Fit fits_cuda_of(const Context&, const Args& args) noexcept {
  const auto fit = [](const auto& a) { return fits_cuda(a.dtype, a.rows * a.cols * a.k); };
  if constexpr (requires { args.forward; })
    return fit(args.forward);
  else
    return fit(args);
}
#endif

constexpr Impl<DispatchRowsArgs> kDispatch[] = {SAT_CUDA_IMPL(
    {"dispatch_rows_cuda", DeviceKind::cuda, fits_cuda_of<DispatchRowsArgs>, dispatch_rows_cuda}){
    "dispatch_rows_cpu", DeviceKind::cpu, fits_cpu_of<DispatchRowsArgs>, dispatch_rows_cpu}};
constexpr Impl<DispatchRowsBackwardArgs> kDispatchBackward[] = {
    SAT_CUDA_IMPL({"dispatch_rows_backward_cuda", DeviceKind::cuda,
                   fits_cuda_of<DispatchRowsBackwardArgs>, dispatch_rows_backward_cuda}){
        "dispatch_rows_backward_cpu", DeviceKind::cpu, fits_cpu_of<DispatchRowsBackwardArgs>,
        dispatch_rows_backward_cpu}};
constexpr Impl<CombineRowsArgs> kCombine[] = {SAT_CUDA_IMPL(
    {"combine_rows_cuda", DeviceKind::cuda, fits_cuda_of<CombineRowsArgs>, combine_rows_cuda}){
    "combine_rows_cpu", DeviceKind::cpu, fits_cpu_of<CombineRowsArgs>, combine_rows_cpu}};
constexpr Impl<CombineRowsBackwardArgs> kCombineBackward[] = {SAT_CUDA_IMPL(
    {"combine_rows_backward_cuda", DeviceKind::cuda, fits_cuda_of<CombineRowsBackwardArgs>,
     combine_rows_backward_cuda}){"combine_rows_backward_cpu", DeviceKind::cpu,
                                  fits_cpu_of<CombineRowsBackwardArgs>, combine_rows_backward_cpu}};

template <class Args>
bool check(const char* op, const Args& a) {
  require_float(op, a.dtype);
  require_sizes(op, {{"rows", a.rows}, {"cols", a.cols}});
  if (a.k < 1 || a.k > kMostChoices) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("k is {}: a row has 1 to {} choices", a.k, kMostChoices));
  }
  if (a.rows == 0 || a.cols == 0) return false;
  require_pointers(op, {{"slots", a.slots}});
  return true;
}

}  // namespace

template <>
std::span<const Impl<DispatchRowsArgs>> impls_of() noexcept {
  return kDispatch;
}
template <>
std::span<const Impl<DispatchRowsBackwardArgs>> impls_of() noexcept {
  return kDispatchBackward;
}
template <>
std::span<const Impl<CombineRowsArgs>> impls_of() noexcept {
  return kCombine;
}
template <>
std::span<const Impl<CombineRowsBackwardArgs>> impls_of() noexcept {
  return kCombineBackward;
}

void dispatch_rows(const Context& ctx, const DispatchRowsArgs& a) {
  constexpr const char* kOp = "dispatch_rows";
  if (!check(kOp, a)) return;
  require_pointers(kOp, {{"x", a.x}, {"y", a.y}});
  dispatch<DispatchRowsArgs>(kOp, ctx, a, kDispatch, [&] {
    return shape_text(a.dtype, {a.rows, a.cols, a.k});
  });
}

void dispatch_rows_backward(const Context& ctx, const DispatchRowsBackwardArgs& a) {
  constexpr const char* kOp = "dispatch_rows_backward";
  if (!check(kOp, a.forward)) return;
  require_pointers(kOp, {{"d_y", a.d_y}, {"d_x", a.d_x}});
  dispatch<DispatchRowsBackwardArgs>(kOp, ctx, a, kDispatchBackward, [&] {
    return shape_text(a.forward.dtype, {a.forward.rows, a.forward.cols, a.forward.k});
  });
}

void combine_rows(const Context& ctx, const CombineRowsArgs& a) {
  constexpr const char* kOp = "combine_rows";
  if (!check(kOp, a)) return;
  require_pointers(kOp, {{"x", a.x}, {"gates", a.gates}, {"y", a.y}});
  dispatch<CombineRowsArgs>(kOp, ctx, a, kCombine, [&] {
    return shape_text(a.dtype, {a.rows, a.cols, a.k});
  });
}

void combine_rows_backward(const Context& ctx, const CombineRowsBackwardArgs& a) {
  constexpr const char* kOp = "combine_rows_backward";
  if (!check(kOp, a.forward)) return;
  require_pointers(kOp, {{"x", a.forward.x},
                         {"gates", a.forward.gates},
                         {"d_y", a.d_y},
                         {"d_x", a.d_x},
                         {"d_gates", a.d_gates}});
  dispatch<CombineRowsBackwardArgs>(kOp, ctx, a, kCombineBackward, [&] {
    return shape_text(a.forward.dtype, {a.forward.rows, a.forward.cols, a.forward.k});
  });
}

}  // namespace saturate::kernels
