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
  if (a.phrases != nullptr) return {"phrases that translations must hold"};
  if (a.columns != nullptr) return {"columns for some tokens alone (a shortlist)"};
  if (a.ld >= int64_t{1} << 30) return {"2^30 or more columns (32-bit offsets within a row)"};
  if (a.draws && a.ld >= int64_t{1} << 24)
    return {"2^24 or more columns (three digits of an index)"};
  return fits_cuda(a.dtype, a.sentences * a.beam);
}
#endif

constexpr Impl<BeamStepArgs> kBeamStep[] = {
    SAT_CUDA_IMPL({"beam_step_cuda", DeviceKind::cuda, cuda_fits, beam_step_cuda}){
        "beam_step_cpu", DeviceKind::cpu, cpu_fits, beam_step_cpu}};

Fit cpu_places(const Context&, const BeamPlaceArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit cuda_places(const Context&, const BeamPlaceArgs& a) noexcept {
  return fits_cuda(a.dtype, a.most * a.beam);
}
#endif

constexpr Impl<BeamPlaceArgs> kBeamPlace[] = {
    SAT_CUDA_IMPL({"beam_place_cuda", DeviceKind::cuda, cuda_places, beam_place_cuda}){
        "beam_place_cpu", DeviceKind::cpu, cpu_places, beam_place_cpu}};

void require_beam(const char* op, int64_t beam) {
  if (beam >= 1 && beam <= kMaxBeam) return;
  throw Error(Errc::invalid_argument, op,
              fmt::format("beam is {}; it must be in 1 .. {}", beam, kMaxBeam));
}

void require_state(const char* op, const BeamState& s) {
  require_pointers(op, {{"ids", s.ids},
                        {"positions", s.positions},
                        {"finished", s.finished},
                        {"lengths", s.lengths},
                        {"starts", s.starts},
                        {"scores", s.scores},
                        {"penalties", s.penalties},
                        {"sentences", s.sentences},
                        {"slots", s.slots},
                        {"tokens", s.tokens},
                        {"sums", s.sums}});
}

}  // namespace

template <>
std::span<const Impl<BeamStepArgs>> impls_of() noexcept {
  return kBeamStep;
}
template <>
std::span<const Impl<BeamPlaceArgs>> impls_of() noexcept {
  return kBeamPlace;
}

void beam_step(const Context& ctx, const BeamStepArgs& a) {
  constexpr const char* kOp = "beam_step";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"sentences", a.sentences},
                      {"result.stride", a.result.stride},
                      {"suppressed.count", a.suppressed.count}});
  require_beam(kOp, a.beam);
  if (a.vocab < 1 || a.ld < a.vocab || a.eos < 0 || a.eos >= a.vocab || a.eos == a.banned) {
    throw Error(
        Errc::invalid_argument, kOp,
        fmt::format("vocab is {}, ld {}, eos {}, banned {}: ld must be at least vocab, and eos "
                    "below vocab and not banned",
                    a.vocab, a.ld, a.eos, a.banned));
  }
  if (a.sentences == 0) return;
  require_state(kOp, a.state);
  require_pointers(kOp, {{"logits", a.logits},
                         {"candidate_scores", a.candidate_scores},
                         {"candidate_ids", a.candidate_ids},
                         {"result.done", a.result.done},
                         {"result.tokens", a.result.tokens},
                         {"result.sums", a.result.sums}});
  if (a.suppressed.count > 0) require_pointers(kOp, {{"suppressed.ids", a.suppressed.ids}});
  dispatch<BeamStepArgs>(kOp, ctx, a, kBeamStep, [&] {
    return shape_text(a.dtype, {a.sentences, a.beam, a.vocab});
  });
}

void beam_place(const Context& ctx, const BeamPlaceArgs& a) {
  constexpr const char* kOp = "beam_place";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"most", a.most}});
  require_beam(kOp, a.beam);
  if (a.most == 0) return;
  require_state(kOp, a.state);
  require_pointers(kOp, {{"placements", a.placements},
                         {"count", a.count},
                         {"prefixes", a.prefixes},
                         {"memory_starts", a.memory_starts},
                         {"memory_lengths", a.memory_lengths}});
  // A GPU ends with an error where a CPU only takes longer.
  if (reinterpret_cast<uintptr_t>(a.placements) % alignof(BeamPlacement) != 0) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("placements begin at an address that is no multiple of {}",
                            alignof(BeamPlacement)));
  }
  dispatch<BeamPlaceArgs>(kOp, ctx, a, kBeamPlace, [&] {
    return shape_text(a.dtype, {a.most, a.beam});
  });
}

}  // namespace saturate::kernels
