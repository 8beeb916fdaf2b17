// SPDX-License-Identifier: Apache-2.0
#include "kernels/adapters/keep_columns.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/adapters/keep_columns_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit keep_columns_fits_cpu(const Context&, const KeepColumnsArgs& a) noexcept {
  return fits_cpu(a.dtype);
}
#if SATURATE_WITH_CUDA
Fit keep_columns_fits_cuda(const Context&, const KeepColumnsArgs& a) noexcept {
  return fits_cuda(a.dtype, a.rows * a.begins[static_cast<size_t>(a.groups)]);
}
#endif

constexpr Impl<KeepColumnsArgs> kKeepColumns[] = {SAT_CUDA_IMPL(
    {"keep_columns_cuda", DeviceKind::cuda, keep_columns_fits_cuda, keep_columns_cuda}){
    "keep_columns_cpu", DeviceKind::cpu, keep_columns_fits_cpu, keep_columns_cpu}};

}  // namespace

template <>
std::span<const Impl<KeepColumnsArgs>> impls_of() noexcept {
  return kKeepColumns;
}

void keep_columns(const Context& ctx, const KeepColumnsArgs& a) {
  constexpr const char* kOp = "keep_columns";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"groups", a.groups}, {"group_stride", a.group_stride}});
  if (a.groups < 1 || a.groups > kMostAdapters) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("groups is {}: it must lie between 1 and {}", a.groups, kMostAdapters));
  }
  const auto end = a.begins.begin() + a.groups + 1;
  if (a.begins[0] != 0 || !std::is_sorted(a.begins.begin(), end)) {
    throw Error(Errc::invalid_argument, kOp, "the columns of groups must ascend from 0");
  }
  const int64_t cols = a.begins[static_cast<size_t>(a.groups)];
  if (a.rows == 0 || cols == 0) return;
  require_pointers(kOp, {{"x", a.x}, {"group_of_row", a.group_of_row}});
  dispatch<KeepColumnsArgs>(kOp, ctx, a, kKeepColumns, [&] {
    return shape_text(a.dtype, {a.rows, cols});
  });
}

}  // namespace saturate::kernels
