// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/sample_step.h"

#include <fmt/format.h>

#include "kernels/decode/sample_step_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit cpu_fits(const Context&, const SampleStepArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit cuda_fits(const Context&, const SampleStepArgs& a) noexcept {
  if (a.ld >= int64_t{1} << 24) return {"2^24 or more columns (three digits of an index)"};
  return fits_cuda(a.dtype, a.rows);
}
#endif

constexpr Impl<SampleStepArgs> kSampleStep[] = {
    SAT_CUDA_IMPL({"sample_step_cuda", DeviceKind::cuda, cuda_fits, sample_step_cuda}){
        "sample_step_cpu", DeviceKind::cpu, cpu_fits, sample_step_cpu}};

}  // namespace

template <>
std::span<const Impl<SampleStepArgs>> impls_of() noexcept {
  return kSampleStep;
}

void sample_step(const Context& ctx, const SampleStepArgs& a) {
  constexpr const char* kOp = "sample_step";
  require_float(kOp, a.dtype);
  require_sizes(
      kOp,
      {{"rows", a.rows}, {"prompt_stride", a.prompt_stride}, {"result_stride", a.result_stride}});
  if (a.vocab < 1 || a.ld < a.vocab) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("vocab is {} and ld {}; ld must be at least vocab and vocab at least 1",
                            a.vocab, a.ld));
  }
  if (a.rows == 0) return;
  require_pointers(kOp, {{"logits", a.logits},
                         {"ids", a.state.ids},
                         {"positions", a.state.positions},
                         {"finished", a.state.finished},
                         {"prompts", a.state.prompts},
                         {"prompt_lengths", a.state.prompt_lengths},
                         {"limits", a.state.limits},
                         {"streams", a.state.streams},
                         {"controls", a.controls},
                         {"result", a.result}});
  dispatch<SampleStepArgs>(kOp, ctx, a, kSampleStep, [&] {
    return shape_text(a.dtype, {a.rows, a.vocab});
  });
}

}  // namespace saturate::kernels
