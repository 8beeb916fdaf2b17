// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise/elementwise.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/elementwise/elementwise_impl.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

template <class Args>
Fit typed_fits_cpu(const Context&, const Args& a) noexcept {
  return fits_cpu(a.dtype);
}
Fit cast_fits_cpu(const Context&, const CastArgs&) noexcept { return {}; }
#if SATURATE_WITH_CUDA
template <class Args>
Fit typed_fits_cuda(const Context&, const Args& a) noexcept {
  return fits_cuda(a.dtype);
}
Fit cast_fits_cuda(const Context&, const CastArgs& a) noexcept {
  return fits_cuda(a.x_type == DType::f64 ? a.x_type : a.y_type);
}
#endif

constexpr Impl<AddArgs> kAdd[] = {
    SAT_CUDA_IMPL({"add_cuda", DeviceKind::cuda, typed_fits_cuda<AddArgs>, add_cuda}){
        "add_cpu", DeviceKind::cpu, typed_fits_cpu<AddArgs>, add_cpu}};
constexpr Impl<SoftCapArgs> kSoftCap[] = {
    SAT_CUDA_IMPL({"soft_cap_cuda", DeviceKind::cuda, typed_fits_cuda<SoftCapArgs>, soft_cap_cuda}){
        "soft_cap_cpu", DeviceKind::cpu, typed_fits_cpu<SoftCapArgs>, soft_cap_cpu}};
constexpr Impl<CastArgs> kCast[] = {
    SAT_CUDA_IMPL({"cast_cuda", DeviceKind::cuda, cast_fits_cuda, cast_cuda}){
        "cast_cpu", DeviceKind::cpu, cast_fits_cpu, cast_cpu}};
constexpr Impl<ColumnSumArgs> kColumnSum[] = {SAT_CUDA_IMPL(
    {"column_sum_cuda", DeviceKind::cuda, typed_fits_cuda<ColumnSumArgs>, column_sum_cuda}){
    "column_sum_cpu", DeviceKind::cpu, typed_fits_cpu<ColumnSumArgs>, column_sum_cpu}};

}  // namespace

template <>
std::span<const Impl<AddArgs>> impls_of() noexcept {
  return kAdd;
}
template <>
std::span<const Impl<SoftCapArgs>> impls_of() noexcept {
  return kSoftCap;
}
template <>
std::span<const Impl<CastArgs>> impls_of() noexcept {
  return kCast;
}
template <>
std::span<const Impl<ColumnSumArgs>> impls_of() noexcept {
  return kColumnSum;
}

void add(const Context& ctx, const AddArgs& a) {
  require_float("add", a.dtype);
  require_sizes("add", {{"count", a.count}, {"b_count", a.b_count}});
  if (a.b_count > 0 && a.count % a.b_count != 0) {
    throw Error(Errc::invalid_argument, "add",
                fmt::format("b_count is {} for {} elements: it must divide them, or be 0",
                            a.b_count, a.count));
  }
  if (a.count == 0) return;
  require_pointers("add", {{"a", a.a}, {"b", a.b}, {"y", a.y}});
  dispatch<AddArgs>("add", ctx, a, kAdd, [&] { return shape_text(a.dtype, {a.count}); });
}

void soft_cap(const Context& ctx, const SoftCapArgs& a) {
  require_float("soft_cap", a.dtype);
  require_sizes("soft_cap", {{"count", a.count}});
  if (!(a.cap > 0.0f)) {
    throw Error(Errc::invalid_argument, "soft_cap",
                fmt::format("cap is {}: it must be positive", a.cap));
  }
  if (a.count == 0) return;
  require_pointers("soft_cap", {{"x", a.x}, {"y", a.y}});
  dispatch<SoftCapArgs>("soft_cap", ctx, a, kSoftCap,
                        [&] { return shape_text(a.dtype, {a.count}); });
}

void cast(const Context& ctx, const CastArgs& a) {
  require_float("cast", a.x_type);
  require_float("cast", a.y_type);
  require_sizes("cast", {{"count", a.count}});
  if (a.count == 0) return;
  require_pointers("cast", {{"x", a.x}, {"y", a.y}});
  dispatch<CastArgs>("cast", ctx, a, kCast, [&] { return shape_text(a.x_type, {a.count}); });
}

void column_sum(const Context& ctx, const ColumnSumArgs& a) {
  require_float("column_sum", a.dtype);
  require_sizes("column_sum", {{"rows", a.rows}, {"cols", a.cols}});
  if (a.rows > 1 && a.ld < a.cols) {
    throw Error(Errc::invalid_argument, "column_sum",
                fmt::format("ld is {} for {} columns: rows overlap", a.ld, a.cols));
  }
  if (a.cols == 0) return;
  require_pointers("column_sum", {{"out", a.out}});
  if (a.rows > 0) require_pointers("column_sum", {{"x", a.x}, {"partial", a.partial}});
  dispatch<ColumnSumArgs>("column_sum", ctx, a, kColumnSum, [&] {
    return shape_text(a.dtype, {a.rows, a.cols});
  });
}

int64_t column_sum_scratch_bytes(Device device, const ColumnSumArgs& a) {
  const int64_t groups = device.is_cuda() ? kColumnSumCudaGroups : kColumnSumCpuGroups;
  return groups * a.cols * static_cast<int64_t>(size_of(wide_of(a.dtype)));
}

}  // namespace saturate::kernels
