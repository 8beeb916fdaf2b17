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

Fit places(const Context&, const SamplePlaceArgs&) noexcept { return {}; }
constexpr Impl<SamplePlaceArgs> kSamplePlace[] = {
    SAT_CUDA_IMPL({"sample_place_cuda", DeviceKind::cuda, places, sample_place_cuda}){
        "sample_place_cpu", DeviceKind::cpu, places, sample_place_cpu}};

void require_state(const char* op, const SampleState& s) {
  require_pointers(op, {{"ids", s.ids},
                        {"positions", s.positions},
                        {"finished", s.finished},
                        {"starts", s.starts},
                        {"sequences", s.sequences},
                        {"tokens", s.tokens}});
}

}  // namespace

template <>
std::span<const Impl<SampleStepArgs>> impls_of() noexcept {
  return kSampleStep;
}
template <>
std::span<const Impl<SamplePlaceArgs>> impls_of() noexcept {
  return kSamplePlace;
}

void sample_step(const Context& ctx, const SampleStepArgs& a) {
  constexpr const char* kOp = "sample_step";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows},
                      {"result.stride", a.result.stride},
                      {"suppressed.count", a.suppressed.count}});
  if (a.vocab < 1 || a.ld < a.vocab) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("vocab is {} and ld {}; ld must be at least vocab and vocab at least 1",
                            a.vocab, a.ld));
  }
  if (a.rows == 0) return;
  require_state(kOp, a.state);
  require_pointers(kOp, {{"logits", a.logits},
                         {"result.tokens", a.result.tokens},
                         {"result.log_probabilities", a.result.log_probabilities}});
  if (a.choices.allowed != nullptr && a.choices.word_stride * 32 < a.vocab) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("choices.word_stride is {} and vocab {}; a word holds 32 ids",
                            a.choices.word_stride, a.vocab));
  }
  if (a.suppressed.count > 0) require_pointers(kOp, {{"suppressed.ids", a.suppressed.ids}});
  dispatch<SampleStepArgs>(kOp, ctx, a, kSampleStep, [&] {
    return shape_text(a.dtype, {a.rows, a.vocab});
  });
}

void sample_place(const Context& ctx, const SamplePlaceArgs& a) {
  constexpr const char* kOp = "sample_place";
  require_sizes(kOp, {{"most", a.most}});
  if (a.most == 0) return;
  require_state(kOp, a.state);
  require_pointers(kOp, {{"placements", a.placements}, {"count", a.count}, {"prompts", a.prompts}});
  dispatch<SamplePlaceArgs>(kOp, ctx, a, kSamplePlace,
                            [&] { return shape_text(DType::i32, {a.most}); });
}

}  // namespace saturate::kernels
