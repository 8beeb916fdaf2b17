// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/mean_logits.h"

#include <fmt/format.h>

#include "kernels/decode/mean_logits_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit cpu_fits(const Context&, const MeanLogitsArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit cuda_fits(const Context&, const MeanLogitsArgs& a) noexcept {
  if (a.columns != nullptr) return {"columns for some tokens alone (a shortlist)"};
  if (a.ld >= int64_t{1} << 30) return {"2^30 or more columns (32-bit offsets within a row)"};
  return fits_cuda(a.dtype, a.sentences * a.beam);
}
#endif

constexpr Impl<MeanLogitsArgs> kMeanLogits[] = {
    SAT_CUDA_IMPL({"mean_logits_cuda", DeviceKind::cuda, cuda_fits, mean_logits_cuda}){
        "mean_logits_cpu", DeviceKind::cpu, cpu_fits, mean_logits_cpu}};

}  // namespace

template <>
std::span<const Impl<MeanLogitsArgs>> impls_of() noexcept {
  return kMeanLogits;
}

void mean_logits(const Context& ctx, const MeanLogitsArgs& a) {
  constexpr const char* kOp = "mean_logits";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"sentences", a.sentences}});
  if (a.models < 1 || a.models > kMaxModels || a.beam < 1 || a.beam > kMaxBeam) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("models is {} and beam {}; they must be in 1 .. {} and 1 .. {}",
                            a.models, a.beam, kMaxModels, kMaxBeam));
  }
  if (a.vocab < 1 || a.ld < a.vocab || a.eos < 0 || a.eos >= a.vocab) {
    throw Error(
        Errc::invalid_argument, kOp,
        fmt::format("vocab is {}, ld {}, eos {}: ld must be at least vocab, and eos below it",
                    a.vocab, a.ld, a.eos));
  }
  if (a.sentences == 0) return;
  for (size_t m = 0; m < static_cast<size_t>(a.models); ++m) {
    require_pointers(kOp, {{"logits of a model", a.logits[m]}});
    if (a.weights[m] > 0) continue;
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("weight {} is {}; it must be above 0", m, a.weights[m]));
  }
  require_pointers(kOp, {{"mean", a.mean},
                         {"log_sums", a.log_sums},
                         {"state.ids", a.state.ids},
                         {"state.positions", a.state.positions},
                         {"state.finished", a.state.finished},
                         {"state.starts", a.state.starts},
                         {"state.scores", a.state.scores},
                         {"state.sentences", a.state.sentences},
                         {"state.slots", a.state.slots},
                         {"state.tokens", a.state.tokens}});
  if (a.suppressed.count > 0) require_pointers(kOp, {{"suppressed.ids", a.suppressed.ids}});
  dispatch<MeanLogitsArgs>(kOp, ctx, a, kMeanLogits, [&] {
    return shape_text(a.dtype, {a.models, a.sentences, a.beam, a.vocab});
  });
}

}  // namespace saturate::kernels
