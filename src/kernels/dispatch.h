// SPDX-License-Identifier: Apache-2.0
// Ordered lists of implementations: the first that fits runs, and each refusal has a reason.
#pragma once
#include <span>

#include "base/error.h"
#include "base/features.h"
#include "runtime/context.h"

namespace saturate::kernels {

template <class Args>
struct Impl {
  const char* name;  // as it appears in traces: "layer_norm_forward_cuda"
  DeviceKind device;
  Fit (*fits)(const Context&, const Args&) noexcept;
  void (*launch)(const Context&, const Args&);
};

// True when SATURATE_VERBOSE contains "dispatch".
bool dispatch_is_verbose() noexcept;
// Prints "dispatch: <op>: <impl> runs" or "... refused: <reason>" to standard error, each text once.
void note_dispatch(const char* op, const char* impl, const char* refusal);

// Errors: unsupported, with every refusal's reason, when no implementation fits.
template <class Args>
const Impl<Args>& choose(const char* op, const Context& ctx, const Args& args,
                         std::span<const Impl<Args>> list) {
  std::string refusals;
  for (const Impl<Args>& impl : list) {
    if (impl.device != ctx.device.kind) continue;
    const Fit fit = impl.fits(ctx, args);
    if (dispatch_is_verbose()) note_dispatch(op, impl.name, fit.reason);
    if (fit) return impl;
    refusals += std::string(refusals.empty() ? "" : "; ") + impl.name + ": " + fit.reason;
  }
  throw Error(Errc::unsupported, op,
              "no implementation fits on this device (" +
                  (refusals.empty() ? std::string("none is built for it") : refusals) + ")");
}

template <class Args>
void dispatch(const char* op, const Context& ctx, const Args& args, std::span<const Impl<Args>> list) {
  choose(op, ctx, args, list).launch(ctx, args);
}

}  // namespace saturate::kernels

// Lists entries that exist only in a build with CUDA.
#if SATURATE_WITH_CUDA
#define SAT_CUDA_IMPL(...) __VA_ARGS__,
#else
#define SAT_CUDA_IMPL(...)
#endif
