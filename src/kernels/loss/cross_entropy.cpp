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
Fit finish_cpu_fits(const Context&, const CrossEntropyFinishArgs& a) noexcept {
  return fits_cpu(a.forward.dtype);
}
#if SATURATE_WITH_CUDA
template <class Args>
Fit rows_fit_cuda(const Args& a) noexcept {
  if (a.ld >= int64_t{1} << 28) return {"2^28 or more columns (32-bit offsets within a row)"};
  if (a.rows >= int64_t{1} << 31) return {"2^31 or more rows (one block a row)"};
  return fits_cuda(a.dtype);
}
Fit cross_entropy_cuda_fits(const Context&, const CrossEntropyArgs& a) noexcept {
  return rows_fit_cuda(a);
}
Fit statistics_cuda_fits(const Context&, const LossStatisticsArgs& a) noexcept {
  return rows_fit_cuda(a);
}
Fit finish_cuda_fits(const Context&, const CrossEntropyFinishArgs& a) noexcept {
  return rows_fit_cuda(a.forward);
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
constexpr Impl<LossStatisticsArgs> kStatistics[] = {
    SAT_CUDA_IMPL({"loss_statistics_cuda", DeviceKind::cuda, statistics_cuda_fits, loss_statistics_cuda})
    {"loss_statistics_cpu", DeviceKind::cpu, fits_on_cpu<LossStatisticsArgs>, loss_statistics_cpu},
};
constexpr Impl<CrossEntropyFinishArgs> kFinish[] = {
    SAT_CUDA_IMPL({"cross_entropy_finish_cuda", DeviceKind::cuda, finish_cuda_fits, cross_entropy_finish_cuda})
    {"cross_entropy_finish_cpu", DeviceKind::cpu, finish_cpu_fits, cross_entropy_finish_cpu},
};
constexpr Impl<LossTotalsArgs> kLossTotals[] = {
    SAT_CUDA_IMPL({"loss_totals_cuda", DeviceKind::cuda, loss_totals_cuda_fits, loss_totals_cuda})
    {"loss_totals_cpu", DeviceKind::cpu, fits_on_cpu<LossTotalsArgs>, loss_totals_cpu},
};
// clang-format on

void require_smoothing(const char* op, float smoothing) {
  if (!(smoothing >= 0.0f && smoothing < 1.0f)) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("label_smoothing is {}; it must be in [0, 1)", smoothing));
  }
}

}  // namespace

template <>
std::span<const Impl<CrossEntropyArgs>> impls_of() noexcept {
  return kCrossEntropy;
}
template <>
std::span<const Impl<LossStatisticsArgs>> impls_of() noexcept {
  return kStatistics;
}
template <>
std::span<const Impl<CrossEntropyFinishArgs>> impls_of() noexcept {
  return kFinish;
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
  require_smoothing("cross_entropy", args.label_smoothing);
  if (args.rows == 0) return;
  require_pointers(
      "cross_entropy",
      {{"logits", args.logits}, {"targets", args.targets}, {"loss", args.loss}, {"nll", args.nll}});
  dispatch("cross_entropy", ctx, args, std::span<const Impl<CrossEntropyArgs>>(kCrossEntropy), [&] {
    return shape_text(args.dtype, {args.rows, args.vocab});
  });
}

void loss_statistics(const Context& ctx, const LossStatisticsArgs& args) {
  constexpr const char* kOp = "loss_statistics";
  require_float(kOp, args.dtype);
  require_sizes(kOp, {{"rows", args.rows},
                      {"vocab", args.vocab},
                      {"ld", args.ld},
                      {"first_class", args.first_class}});
  if (args.rows == 0) return;
  require_pointers(
      kOp, {{"logits", args.logits}, {"targets", args.targets}, {"statistics", args.statistics}});
  dispatch(kOp, ctx, args, std::span<const Impl<LossStatisticsArgs>>(kStatistics), [&] {
    return shape_text(args.dtype, {args.rows, args.ld});
  });
}

void cross_entropy_finish(const Context& ctx, const CrossEntropyFinishArgs& args) {
  constexpr const char* kOp = "cross_entropy_finish";
  const CrossEntropyArgs& row = args.forward;
  require_float(kOp, row.dtype);
  require_sizes(kOp, {{"rows", row.rows}, {"ld", row.ld}, {"first_class", args.first_class}});
  if (row.vocab < 1 || args.parts < 1) {
    throw Error(
        Errc::invalid_argument, kOp,
        fmt::format("vocab is {} and parts {}; both must be at least 1", row.vocab, args.parts));
  }
  require_smoothing(kOp, row.label_smoothing);
  if (row.rows == 0) return;
  require_pointers(kOp, {{"logits", row.logits},
                         {"targets", row.targets},
                         {"loss", row.loss},
                         {"nll", row.nll},
                         {"statistics", args.statistics}});
  dispatch(kOp, ctx, args, std::span<const Impl<CrossEntropyFinishArgs>>(kFinish), [&] {
    return shape_text(row.dtype, {row.rows, row.ld});
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
