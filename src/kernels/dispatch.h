// SPDX-License-Identifier: Apache-2.0
// Ordered lists of implementations: the first that fits runs, and each refusal has a reason.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/features.h"
#include "runtime/context.h"

namespace saturate::kernels {

template <class Args>
struct Impl {
  const char* name;  // as it appears in traces: "layer_norm_forward_cuda"
  DeviceKind device;
  // Reads sizes, types, strides, the alignment of pointers and whether they are null, the device's
  // capability and the scratch of the context; follows no pointer.
  Fit (*fits)(const Context&, const Args&) noexcept;
  void (*launch)(const Context&, const Args&);
  // Bytes of scratch that the launch wants, beside what the context lends; null: none.
  int64_t (*workspace)(const Context&, const Args&) noexcept = nullptr;
  // Refuses where it could run but others are expected to be faster; a measured choice overrules
  // it. Asked after `fits`; null: never.
  Fit (*pays)(const Context&, const Args&) noexcept = nullptr;
};

// Why an implementation was not chosen; both texts are static.
struct Refusal {
  const char* impl;
  const char* reason;
};
std::string text_of(std::span<const Refusal> refused);  // "one: its reason; another: its reason"

// What runs an operation: chosen once, when the operation is recorded, from sizes, types, the
// device and what was measured on it; run as often as wanted.
template <class Args>
struct Plan {
  const Impl<Args>* impl = nullptr;
  int64_t workspace_bytes = 0;   // what the caller gives, aligned to 256
  std::vector<Refusal> refused;  // what is before it in the list

  void run(const Context& ctx, const Args& args) const { impl->launch(ctx, args); }
};

// True when SATURATE_VERBOSE contains "dispatch".
bool dispatch_is_verbose() noexcept;
// Prints "dispatch: <op> <shape>: <impl> runs" or "... refused: <reason>" to standard error, each
// text once.
void note_dispatch(const char* op, const std::string& shape, const char* impl, const char* refusal);

// For choose(): what to print of the arguments.
struct NoShape {
  std::string operator()() const { return {}; }
};

// The first implementation that fits; `shape` makes the text for note_dispatch. `refused`, where
// not null, gets what refused before it.
//
// Errors: unsupported, with every refusal's reason, when no implementation fits.
template <class Args, class Shape = NoShape>
const Impl<Args>& choose(const char* op, const Context& ctx, const Args& args,
                         std::span<const Impl<Args>> list, const Shape& shape = {},
                         std::vector<Refusal>* refused = nullptr) {
  std::vector<Refusal> own;
  std::vector<Refusal>& refusals = refused != nullptr ? *refused : own;
  for (const Impl<Args>& impl : list) {
    if (impl.device != ctx.device.kind) continue;
    Fit fit = impl.fits(ctx, args);
    if (fit && impl.pays != nullptr) fit = impl.pays(ctx, args);
    if (dispatch_is_verbose()) note_dispatch(op, shape(), impl.name, fit.reason);
    if (fit) return impl;
    refusals.push_back({impl.name, fit.reason});
  }
  const std::string reasons = refusals.empty() ? "none is built for it" : text_of(refusals);
  throw Error(Errc::unsupported, op, "no implementation fits on this device (" + reasons + ")");
}

template <class Args, class Shape = NoShape>
Plan<Args> plan_of(const char* op, const Context& ctx, const Args& args,
                   std::span<const Impl<Args>> list, const Shape& shape = {}) {
  Plan<Args> plan;
  plan.impl = &choose(op, ctx, args, list, shape, &plan.refused);
  if (plan.impl->workspace != nullptr) plan.workspace_bytes = plan.impl->workspace(ctx, args);
  return plan;
}

template <class Args, class Shape = NoShape>
void dispatch(const char* op, const Context& ctx, const Args& args,
              std::span<const Impl<Args>> list, const Shape& shape = {}) {
  choose(op, ctx, args, list, shape).launch(ctx, args);
}

}  // namespace saturate::kernels

// Lists entries that exist only in a build with CUDA.
#if SATURATE_WITH_CUDA
#define SAT_CUDA_IMPL(...) __VA_ARGS__,
#else
#define SAT_CUDA_IMPL(...)
#endif
