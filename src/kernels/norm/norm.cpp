// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.h"

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/norm/norm_impl.h"

namespace saturate::kernels {
namespace {

Fit forward_fits_cpu(const Context&, const NormForwardArgs& a) noexcept {
  return fits_cpu(a.dtype);
}
Fit backward_fits_cpu(const Context&, const NormBackwardArgs& a) noexcept {
  return fits_cpu(a.dtype);
}
#if SATURATE_WITH_CUDA
Fit fits_columns(DType dtype, int64_t cols) noexcept {
  if (cols > kNormMaxCols) return {"cols > 2^20 (32-bit column arithmetic)"};
  return fits_cuda(dtype);
}
Fit forward_fits_cuda(const Context&, const NormForwardArgs& a) noexcept {
  return fits_columns(a.dtype, a.cols);
}
Fit backward_fits_cuda(const Context&, const NormBackwardArgs& a) noexcept {
  return fits_columns(a.dtype, a.cols);
}
#endif

constexpr Impl<NormForwardArgs> kForward[] = {
    SAT_CUDA_IMPL({"norm_forward_cuda", DeviceKind::cuda, forward_fits_cuda, norm_forward_cuda}){
        "norm_forward_cpu", DeviceKind::cpu, forward_fits_cpu, norm_forward_cpu}};
constexpr Impl<NormBackwardArgs> kBackward[] = {
    SAT_CUDA_IMPL({"norm_backward_cuda", DeviceKind::cuda, backward_fits_cuda, norm_backward_cuda}){
        "norm_backward_cpu", DeviceKind::cpu, backward_fits_cpu, norm_backward_cpu}};

bool has_mean(NormKind kind) { return kind == NormKind::layer_norm; }

}  // namespace

template <>
std::span<const Impl<NormForwardArgs>> impls_of() noexcept {
  return kForward;
}
template <>
std::span<const Impl<NormBackwardArgs>> impls_of() noexcept {
  return kBackward;
}

void norm_forward(const Context& ctx, const NormForwardArgs& args) {
  constexpr const char* kOp = "norm_forward";
  NormForwardArgs a = args;
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"cols", a.cols}});
  require_dropout(kOp, a.branch != nullptr ? a.dropout : 0.0f, a.rng);
  a.rng = whole_matrix(kOp, a.rng, a.rows, a.cols);
  if (a.rows == 0 || a.cols == 0) return;
  require_pointers(kOp, {{"x", a.x}, {"weight", a.weight}, {"y", a.y}, {"rstd", a.rstd}});
  if (has_mean(a.kind)) require_pointers(kOp, {{"mean", a.mean}});
  if (a.branch != nullptr) require_pointers(kOp, {{"sum", a.sum}});
  if (!has_mean(a.kind) && a.bias != nullptr) {
    throw Error(Errc::invalid_argument, kOp, "bias is given: rms_norm has none, pass null");
  }
  dispatch<NormForwardArgs>(kOp, ctx, a, kForward, [&] {
    return shape_text(a.dtype, {a.rows, a.cols});
  });
}

void norm_backward(const Context& ctx, const NormBackwardArgs& args) {
  constexpr const char* kOp = "norm_backward";
  NormBackwardArgs a = args;
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"cols", a.cols}});
  require_dropout(kOp, a.d_branch != nullptr ? a.dropout : 0.0f, a.rng);
  a.rng = whole_matrix(kOp, a.rng, a.rows, a.cols);
  if (a.cols == 0) return;
  if (a.rows > 0) {
    require_pointers(
        kOp,
        {{"d_y", a.d_y}, {"sum", a.sum}, {"weight", a.weight}, {"rstd", a.rstd}, {"d_x", a.d_x}});
    if (has_mean(a.kind)) require_pointers(kOp, {{"mean", a.mean}});
    if (sums_columns(a)) require_pointers(kOp, {{"partial", a.partial}});
  }
  dispatch<NormBackwardArgs>(kOp, ctx, a, kBackward, [&] {
    return shape_text(a.dtype, {a.rows, a.cols});
  });
}

int64_t norm_backward_scratch_bytes(Device device, const NormBackwardArgs& a) {
  const int64_t groups = device.is_cuda()
                             ? kNormCudaBlocks * norm_blocks_each(a.cols, a.dtype == DType::f32)
                             : kNormCpuGroups;
  return groups * 3 * a.cols * static_cast<int64_t>(size_of(wide_of(a.dtype)));
}

}  // namespace saturate::kernels
