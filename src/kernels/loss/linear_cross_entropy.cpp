// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/linear_cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/features.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/loss/linear_cross_entropy_impl.h"
#if SATURATE_WITH_CUDA
#include "kernels/gemm/wgmma/wgmma_loss.h"
#include "kernels/hopper/tensor_map.h"
#endif

namespace saturate::kernels {
namespace {

template <class Args>
Fit fits_on_cpu(const Context&, const Args& a) noexcept {
  return fits_cpu(a.dtype);
}

#if SATURATE_WITH_CUDA
template <class Args>
Fit wgmma_fits(const Context& ctx, const Args& a) noexcept {
  if (a.dtype != DType::bf16) return {"exponentials need the range of bf16"};
  if (a.width % 8 != 0 || a.ld % 8 != 0) return {"width or ld is not a multiple of 8"};
  if (a.rows >= int64_t{1} << 30 || a.ld >= int64_t{1} << 27)
    return {"2^30 or more rows, or 2^27 or more classes"};
  return wgmma::device_fits(ctx);
}
#endif

// clang-format off
constexpr Impl<LinearCrossEntropyArgs> kForward[] = {
    SAT_CUDA_IMPL({"linear_cross_entropy_wgmma_cuda", DeviceKind::cuda, wgmma_fits<LinearCrossEntropyArgs>, linear_cross_entropy_wgmma_cuda})
    {"linear_cross_entropy_cpu", DeviceKind::cpu, fits_on_cpu<LinearCrossEntropyArgs>, linear_cross_entropy_cpu},
};
constexpr Impl<LinearCrossEntropyBackwardArgs> kInputGradient[] = {
    SAT_CUDA_IMPL({"linear_cross_entropy_backward_wgmma_cuda", DeviceKind::cuda, wgmma_fits<LinearCrossEntropyBackwardArgs>, linear_cross_entropy_backward_wgmma_cuda})
    {"linear_cross_entropy_backward_cpu", DeviceKind::cpu, fits_on_cpu<LinearCrossEntropyBackwardArgs>, linear_cross_entropy_backward_cpu},
};
// clang-format on

}  // namespace

template <>
std::span<const Impl<LinearCrossEntropyArgs>> impls_of() noexcept {
  return kForward;
}
template <>
std::span<const Impl<LinearCrossEntropyBackwardArgs>> impls_of() noexcept {
  return kInputGradient;
}

Fit linear_cross_entropy_fits(const Context& ctx, const LinearCrossEntropyArgs& args) {
  if (!ctx.device.is_cuda()) return fits_on_cpu(ctx, args);
#if SATURATE_WITH_CUDA
  return wgmma_fits(ctx, args);
#else
  return {};  // there is no such context
#endif
}

Fit linear_cross_entropy_pays(const Context& ctx, const LinearCrossEntropyArgs& args) {
  if (!ctx.device.is_cuda()) return {"products of this device have no such epilogue"};
  if (const Fit fit = linear_cross_entropy_fits(ctx, args); !fit) return fit;
#if SATURATE_WITH_CUDA
  // The product for x's gradient cannot be split over classes, since rows are scaled where it ends.
  const int64_t tiles = wgmma::ceil_div(args.rows, wgmma::kLossTileM) *
                        wgmma::ceil_div(args.width, wgmma::kLossTileN);
  const int64_t at_once = std::max(1, capability_of(ctx).multiprocessors);
  const int64_t places = wgmma::ceil_div(tiles, at_once) * at_once;
  if (4 * tiles < 3 * places)
    return {"tiles of x's gradient leave more than a quarter of the multiprocessors idle"};
#endif
  return {};
}

int64_t linear_cross_entropy_scratch_bytes(Device device,
                                           [[maybe_unused]] const LinearCrossEntropyArgs& args) {
  if (!device.is_cuda()) return 0;
#if SATURATE_WITH_CUDA
  return linear_cross_entropy_wgmma_scratch_bytes(args);
#else
  return 0;
#endif
}

void linear_cross_entropy(const Context& ctx, const LinearCrossEntropyArgs& args) {
  constexpr const char* kOp = "linear_cross_entropy";
  require_float(kOp, args.dtype);
  require_sizes(kOp, {{"rows", args.rows}});
  if (args.vocab < 1 || args.ld < args.vocab || args.width < 1) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("vocab is {}, ld {} and width {}; ld must be at least vocab, vocab and "
                            "width at least 1",
                            args.vocab, args.ld, args.width));
  }
  if (!(args.label_smoothing >= 0.0f && args.label_smoothing < 1.0f)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("label_smoothing is {}; it must be in [0, 1)", args.label_smoothing));
  }
  if (args.rows == 0) return;
  require_pointers(kOp, {{"x", args.x},
                         {"w", args.w},
                         {"targets", args.targets},
                         {"e", args.e},
                         {"scaled", args.scaled},
                         {"factor", args.factor},
                         {"loss", args.loss},
                         {"nll", args.nll}});
  if (args.label_smoothing > 0.0f) require_pointers(kOp, {{"uniform", args.uniform}});
  if (linear_cross_entropy_scratch_bytes(ctx.device, args) > 0)
    require_pointers(kOp, {{"scratch", args.scratch}});
  dispatch(kOp, ctx, args, std::span<const Impl<LinearCrossEntropyArgs>>(kForward), [&] {
    return shape_text(args.dtype, {args.rows, args.width, args.vocab});
  });
}

void linear_cross_entropy_backward(const Context& ctx, const LinearCrossEntropyBackwardArgs& args) {
  constexpr const char* kOp = "linear_cross_entropy_backward";
  require_float(kOp, args.dtype);
  require_sizes(kOp, {{"rows", args.rows}, {"width", args.width}, {"ld", args.ld}});
  if (args.rows * args.width == 0) return;
  require_pointers(kOp, {{"e", args.e}, {"w", args.w}, {"factor", args.factor}, {"d_x", args.d_x}});
  dispatch(kOp, ctx, args, std::span<const Impl<LinearCrossEntropyBackwardArgs>>(kInputGradient),
           [&] {
             return shape_text(args.dtype, {args.rows, args.width, args.ld});
           });
}

}  // namespace saturate::kernels
