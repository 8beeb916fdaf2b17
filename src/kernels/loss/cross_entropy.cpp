// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/cross_entropy.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/loss/cross_entropy_impl.h"

namespace saturate::kernels {
namespace {

template <class Args>
Fit fits_on_cpu(const Context&, const Args& a) noexcept {
  return fits_cpu(a.dtype);
}
#if SATURATE_WITH_CUDA
Fit cross_entropy_cuda_fits(const Context&, const CrossEntropyArgs& a) noexcept {
  if (a.ld >= int64_t{1} << 28) return {"2^28 or more columns (32-bit offsets within a row)"};
  if (a.rows >= int64_t{1} << 31) return {"2^31 or more rows (one block a row)"};
  return fits_cuda(a.dtype);
}
Fit loss_totals_cuda_fits(const Context&, const LossTotalsArgs& a) noexcept {
  return fits_cuda(a.dtype);
}
#endif

// clang-format off
constexpr Impl<CrossEntropyArgs> kCrossEntropy[] = {
    SAT_CUDA_IMPL({"cross_entropy_cuda", DeviceKind::cuda, cross_entropy_cuda_fits, cross_entropy_cuda})
    {"cross_entropy_cpu", DeviceKind::cpu, fits_on_cpu<CrossEntropyArgs>, cross_entropy_cpu},
};
constexpr Impl<LossTotalsArgs> kLossTotals[] = {
    SAT_CUDA_IMPL({"loss_totals_cuda", DeviceKind::cuda, loss_totals_cuda_fits, loss_totals_cuda})
    {"loss_totals_cpu", DeviceKind::cpu, fits_on_cpu<LossTotalsArgs>, loss_totals_cpu},
};
// clang-format on

}  // namespace

template <>
std::span<const Impl<CrossEntropyArgs>> impls_of() noexcept {
  return kCrossEntropy;
}
template <>
std::span<const Impl<LossTotalsArgs>> impls_of() noexcept {
  return kLossTotals;
}

void cross_entropy(const Context& ctx, const CrossEntropyArgs& args) {
  require_float("cross_entropy", args.dtype);
  require_sizes("cross_entropy", {{"rows", args.rows}});
  if (args.vocab < 1 || args.ld < args.vocab) {
    throw Error(Errc::invalid_argument, "cross_entropy",
                fmt::format("vocab is {} and ld {}; ld must be at least vocab and vocab at least 1",
                            args.vocab, args.ld));
  }
  if (!(args.label_smoothing >= 0.0f && args.label_smoothing < 1.0f)) {
    throw Error(Errc::invalid_argument, "cross_entropy",
                fmt::format("label_smoothing is {}; it must be in [0, 1)", args.label_smoothing));
  }
  if (args.rows == 0) return;
  require_pointers(
      "cross_entropy",
      {{"logits", args.logits}, {"targets", args.targets}, {"loss", args.loss}, {"nll", args.nll}});
  dispatch("cross_entropy", ctx, args, std::span<const Impl<CrossEntropyArgs>>(kCrossEntropy), [&] {
    return shape_text(args.dtype, {args.rows, args.vocab});
  });
}

void loss_totals(const Context& ctx, const LossTotalsArgs& args) {
  require_float("loss_totals", args.dtype);
  require_sizes("loss_totals", {{"rows", args.rows}});
  require_pointers("loss_totals", {{"totals", args.totals}});
  if (args.rows > 0) {
    require_pointers("loss_totals",
                     {{"loss", args.loss}, {"nll", args.nll}, {"targets", args.targets}});
  }
  dispatch("loss_totals", ctx, args, std::span<const Impl<LossTotalsArgs>>(kLossTotals),
           [&] { return shape_text(args.dtype, {args.rows}); });
}

}  // namespace saturate::kernels
