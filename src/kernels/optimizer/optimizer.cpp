// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/optimizer.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/optimizer/optimizer_impl.h"

namespace saturate::kernels {
namespace {

template <class Args>
Fit always(const Context&, const Args&) noexcept {
  return {};
}

// clang-format off
constexpr Impl<GradientNormArgs> kGradientNorm[] = {
    SAT_CUDA_IMPL({"gradient_norm_cuda", DeviceKind::cuda, always<GradientNormArgs>, gradient_norm_cuda})
    {"gradient_norm_cpu", DeviceKind::cpu, always<GradientNormArgs>, gradient_norm_cpu},
};
constexpr Impl<AdamWArgs> kAdamW[] = {
    SAT_CUDA_IMPL({"adamw_cuda", DeviceKind::cuda, always<AdamWArgs>, adamw_cuda})
    {"adamw_cpu", DeviceKind::cpu, always<AdamWArgs>, adamw_cpu},
};
constexpr Impl<FinishStepArgs> kFinishStep[] = {
    SAT_CUDA_IMPL({"finish_step_cuda", DeviceKind::cuda, always<FinishStepArgs>, finish_step_cuda})
    {"finish_step_cpu", DeviceKind::cpu, always<FinishStepArgs>, finish_step_cpu},
};
constexpr Impl<BatchIntakeArgs> kBatchIntake[] = {
    SAT_CUDA_IMPL({"batch_intake_cuda", DeviceKind::cuda, always<BatchIntakeArgs>, batch_intake_cuda})
    {"batch_intake_cpu", DeviceKind::cpu, always<BatchIntakeArgs>, batch_intake_cpu},
};
// clang-format on

// The arrays start on 16 bytes so that every access of the GPU is one of 16 bytes.
void require_flat(const char* op, int64_t count, std::initializer_list<NamedPointer> arrays) {
  if (count < 0 || count % kParameterAlign != 0) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("count is {}; it must be a multiple of {}", count, kParameterAlign));
  }
  for (const NamedPointer& a : arrays) {
    if (reinterpret_cast<uintptr_t>(a.pointer) % 16 != 0) {
      throw Error(Errc::invalid_argument, op, fmt::format("{} is not aligned to 16 bytes", a.name));
    }
  }
}

}  // namespace

void gradient_norm(const Context& ctx, const GradientNormArgs& args) {
  require_flat("gradient_norm", args.count, {{"grad", args.grad}});
  require_pointers("gradient_norm", {{"partial", args.partial}, {"state", args.state}});
  if (args.count > 0) require_pointers("gradient_norm", {{"grad", args.grad}});
  dispatch("gradient_norm", ctx, args, std::span<const Impl<GradientNormArgs>>(kGradientNorm));
}

int64_t gradient_norm_scratch_bytes(Device, int64_t count) {
  return norm_parts(count) * static_cast<int64_t>(sizeof(double));
}

void adamw(const Context& ctx, const AdamWArgs& args) {
  require_flat("adamw", args.count,
               {{"master", args.master},
                {"m", args.m},
                {"v", args.v},
                {"grad", args.grad},
                {"ema", args.ema},
                {"compute", args.compute}});
  if (args.count == 0) return;
  require_pointers("adamw", {{"master", args.master},
                             {"m", args.m},
                             {"v", args.v},
                             {"grad", args.grad},
                             {"rules", args.rules},
                             {"state", args.state}});
  if (args.compute != nullptr && args.compute_type != DType::bf16 &&
      args.compute_type != DType::f16) {
    throw Error(
        Errc::invalid_argument, "adamw",
        fmt::format("compute_type is {}; it must be bf16 or f16 (leave compute null for f32)",
                    name_of(args.compute_type)));
  }
  dispatch("adamw", ctx, args, std::span<const Impl<AdamWArgs>>(kAdamW));
}

void finish_step(const Context& ctx, const FinishStepArgs& args) {
  require_pointers("finish_step", {{"state", args.state}, {"ring", args.ring}});
  if (args.ring_slots < 1) {
    throw Error(Errc::invalid_argument, "finish_step",
                fmt::format("ring_slots is {}; it must be at least 1", args.ring_slots));
  }
  dispatch("finish_step", ctx, args, std::span<const Impl<FinishStepArgs>>(kFinishStep));
}

void batch_intake(const Context& ctx, const BatchIntakeArgs& args) {
  require_sizes("batch_intake", {{"words", args.words}});
  require_pointers("batch_intake",
                   {{"slots", args.slots}, {"dst", args.dst}, {"state", args.state}});
  if (args.slot_count < 1) {
    throw Error(Errc::invalid_argument, "batch_intake",
                fmt::format("slot_count is {}; it must be at least 1", args.slot_count));
  }
  if (args.rank < 0 || args.rank >= args.ranks) {
    throw Error(
        Errc::invalid_argument, "batch_intake",
        fmt::format("rank is {} of {}; it must be in 0 .. ranks - 1", args.rank, args.ranks));
  }
  dispatch("batch_intake", ctx, args, std::span<const Impl<BatchIntakeArgs>>(kBatchIntake));
}

}  // namespace saturate::kernels
