// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/linear_attention/linear_attention.h"

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "model/mixers/linear_attention/linear_attention_impl.h"

namespace saturate::model {
namespace {

using kernels::Impl;
using Forward = LinearAttentionArgs;
using Backward = LinearAttentionBackwardArgs;
using Step = LinearAttentionStepArgs;

Fit forward_fits_cpu(const Context&, const Forward& a) noexcept {
  return kernels::fits_cpu(a.dtype);
}
Fit backward_fits_cpu(const Context&, const Backward& a) noexcept {
  return kernels::fits_cpu(a.forward.dtype);
}
Fit step_fits_cpu(const Context&, const Step& a) noexcept { return kernels::fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit forward_fits_cuda(const Context& ctx, const Forward& a) noexcept {
  if (a.heads > 65535) return {"more than 65535 heads (rows of the grid)"};
  if (linear_attention_shared_bytes(a.head_size) > linear_attention_cuda_room(ctx.device)) {
    return {"head_size is too large: the state of a head must fit the shared memory of a block"};
  }
  return kernels::fits_cuda(a.dtype);
}
Fit backward_fits_cuda(const Context& ctx, const Backward& a) noexcept {
  return forward_fits_cuda(ctx, a.forward);
}
Fit step_fits_cuda(const Context&, const Step& a) noexcept {
  if (a.heads > 65535) return {"more than 65535 heads (rows of the grid)"};
  if (a.head_size > 1023) return {"head_size > 1023 (a thread for each column of the state)"};
  return kernels::fits_cuda(a.dtype);
}
#endif

constexpr Impl<Forward> kForward[] = {
    SAT_CUDA_IMPL({"linear_attention_forward_cuda", DeviceKind::cuda, forward_fits_cuda,
                   linear_attention_forward_cuda}){"linear_attention_forward_cpu", DeviceKind::cpu,
                                                   forward_fits_cpu, linear_attention_forward_cpu}};
constexpr Impl<Backward> kBackward[] = {SAT_CUDA_IMPL(
    {"linear_attention_backward_cuda", DeviceKind::cuda, backward_fits_cuda,
     linear_attention_backward_cuda}){"linear_attention_backward_cpu", DeviceKind::cpu,
                                      backward_fits_cpu, linear_attention_backward_cpu}};
constexpr Impl<Step> kStep[] = {SAT_CUDA_IMPL(
    {"linear_attention_step_cuda", DeviceKind::cuda, step_fits_cuda, linear_attention_step_cuda}){
    "linear_attention_step_cpu", DeviceKind::cpu, step_fits_cpu, linear_attention_step_cpu}};

// Whether there is anything to do.
bool check(const char* op, const Forward& a) {
  kernels::require_float(op, a.dtype);
  kernels::require_sizes(op, {{"sequences", a.sequences},
                              {"rows", a.rows},
                              {"heads", a.heads},
                              {"head_size", a.head_size}});
  if (a.rows == 0 || a.heads * a.head_size == 0) return false;
  kernels::require_pointers(
      op, {{"qkv", a.qkv}, {"o", a.o}, {"denominator", a.denominator}, {"cu", a.cu}});
  return true;
}

}  // namespace

void linear_attention_forward(const Context& ctx, const LinearAttentionArgs& a) {
  constexpr const char* kOp = "linear_attention_forward";
  if (check(kOp, a)) kernels::dispatch<Forward>(kOp, ctx, a, kForward);
}

void linear_attention_backward(const Context& ctx, const LinearAttentionBackwardArgs& a) {
  constexpr const char* kOp = "linear_attention_backward";
  if (!check(kOp, a.forward)) return;
  kernels::require_pointers(kOp, {{"d_o", a.d_o}, {"d_qkv", a.d_qkv}});
  kernels::dispatch<Backward>(kOp, ctx, a, kBackward);
}

void linear_attention_step(const Context& ctx, const LinearAttentionStepArgs& a) {
  constexpr const char* kOp = "linear_attention_step";
  kernels::require_float(kOp, a.dtype);
  kernels::require_sizes(kOp, {{"rows", a.rows}, {"heads", a.heads}, {"head_size", a.head_size}});
  if (a.rows == 0 || a.heads * a.head_size == 0) return;
  kernels::require_pointers(
      kOp, {{"qkv", a.qkv}, {"o", a.o}, {"state", a.state}, {"positions", a.positions}});
  kernels::dispatch<Step>(kOp, ctx, a, kStep);
}

}  // namespace saturate::model
