// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/beam_step.h"

#include <fmt/format.h>

#include "kernels/decode/beam_step_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit cpu_fits(const Context&, const BeamStepArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit cuda_fits(const Context&, const BeamStepArgs& a) noexcept {
  if (a.ld >= int64_t{1} << 30) return {"2^30 or more columns (32-bit offsets within a row)"};
  return fits_cuda(a.dtype, a.sentences * a.beam);
}
#endif

constexpr Impl<BeamStepArgs> kBeamStep[] = {
    SAT_CUDA_IMPL({"beam_step_cuda", DeviceKind::cuda, cuda_fits, beam_step_cuda}){
        "beam_step_cpu", DeviceKind::cpu, cpu_fits, beam_step_cpu}};

}  // namespace

template <>
std::span<const Impl<BeamStepArgs>> impls_of() noexcept {
  return kBeamStep;
}

void beam_step(const Context& ctx, const BeamStepArgs& a) {
  constexpr const char* kOp = "beam_step";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"sentences", a.sentences}, {"result_stride", a.result_stride}});
  if (a.beam < 1 || a.beam > kMaxBeam) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("beam is {}; it must be in 1 .. {}", a.beam, kMaxBeam));
  }
  if (a.vocab < 1 || a.ld < a.vocab || a.eos < 0 || a.eos >= a.vocab || a.eos == a.banned) {
    throw Error(
        Errc::invalid_argument, kOp,
        fmt::format("vocab is {}, ld {}, eos {}, banned {}: ld must be at least vocab, and eos "
                    "below vocab and not banned",
                    a.vocab, a.ld, a.eos, a.banned));
  }
  if (!(a.length_penalty >= 0.0f)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("length_penalty is {}; it must not be negative", a.length_penalty));
  }
  if (a.sentences == 0) return;
  require_pointers(kOp, {{"logits", a.logits},
                         {"ids", a.state.ids},
                         {"positions", a.state.positions},
                         {"finished", a.state.finished},
                         {"lengths", a.state.lengths},
                         {"scores", a.state.scores},
                         {"slots", a.state.slots},
                         {"tokens", a.state.tokens},
                         {"starts", a.state.starts},
                         {"limits", a.state.limits},
                         {"candidate_scores", a.candidate_scores},
                         {"candidate_ids", a.candidate_ids},
                         {"result", a.result}});
  dispatch<BeamStepArgs>(kOp, ctx, a, kBeamStep, [&] {
    return shape_text(a.dtype, {a.sentences, a.beam, a.vocab});
  });
}

}  // namespace saturate::kernels
