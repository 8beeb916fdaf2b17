// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/activation.h"

#include "kernels/activation/activation_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit forward_fits_cpu(const Context&, const ActivationArgs& a) noexcept { return fits_cpu(a.dtype); }
Fit backward_fits_cpu(const Context&, const ActivationBackwardArgs& a) noexcept {
  return fits_cpu(a.forward.dtype);
}
#if SATURATE_WITH_CUDA
Fit forward_fits_cuda(const Context&, const ActivationArgs& a) noexcept {
  return fits_cuda(a.dtype, a.rows * a.cols);
}
Fit backward_fits_cuda(const Context& ctx, const ActivationBackwardArgs& a) noexcept {
  return forward_fits_cuda(ctx, a.forward);
}
#endif

constexpr Impl<ActivationArgs> kForward[] = {SAT_CUDA_IMPL(
    {"activation_forward_cuda", DeviceKind::cuda, forward_fits_cuda, activation_forward_cuda}){
    "activation_forward_cpu", DeviceKind::cpu, forward_fits_cpu, activation_forward_cpu}};
constexpr Impl<ActivationBackwardArgs> kBackward[] = {SAT_CUDA_IMPL(
    {"activation_backward_cuda", DeviceKind::cuda, backward_fits_cuda, activation_backward_cuda}){
    "activation_backward_cpu", DeviceKind::cpu, backward_fits_cpu, activation_backward_cpu}};

void check(const char* op, ActivationArgs& a) {
  require_float(op, a.dtype);
  require_sizes(op, {{"rows", a.rows}, {"cols", a.cols}});
  require_dropout(op, a.dropout, a.rng);
  a.rng = whole_matrix(op, a.rng, a.rows, a.cols);
}

}  // namespace

template <>
std::span<const Impl<ActivationArgs>> impls_of() noexcept {
  return kForward;
}
template <>
std::span<const Impl<ActivationBackwardArgs>> impls_of() noexcept {
  return kBackward;
}

void activation_forward(const Context& ctx, const ActivationArgs& args) {
  ActivationArgs a = args;
  check("activation_forward", a);
  if (a.rows == 0 || a.cols == 0) return;
  require_pointers("activation_forward", {{"x", a.x}, {"y", a.y}});
  dispatch<ActivationArgs>("activation_forward", ctx, a, kForward, [&] {
    return shape_text(a.dtype, {a.rows, a.cols});
  });
}

void activation_backward(const Context& ctx, const ActivationBackwardArgs& args) {
  ActivationBackwardArgs a = args;
  check("activation_backward", a.forward);
  if (a.forward.rows == 0 || a.forward.cols == 0) return;
  require_pointers("activation_backward", {{"x", a.forward.x}, {"d_y", a.d_y}, {"d_x", a.d_x}});
  dispatch<ActivationBackwardArgs>("activation_backward", ctx, a, kBackward, [&] {
    return shape_text(a.forward.dtype, {a.forward.rows, a.forward.cols});
  });
}

}  // namespace saturate::kernels
