// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/optimizer.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/optimizer/optimizer_impl.h"

namespace saturate::kernels {
namespace {

template <class Args>
Fit fits_dtype(const Context& ctx, const Args& args) noexcept {
  return ctx.device.is_cuda() ? fits_cuda(args.dtype) : fits_cpu(args.dtype);
}

template <class Args>
Fit always(const Context&, const Args&) noexcept {
  return {};
}

// clang-format off
constexpr Impl<GradientNormArgs> kNormBlocks[] = {
    SAT_CUDA_IMPL({"gradient_norm_blocks_cuda", DeviceKind::cuda, fits_dtype<GradientNormArgs>, gradient_norm_blocks_cuda})
    {"gradient_norm_blocks_cpu", DeviceKind::cpu, fits_dtype<GradientNormArgs>, gradient_norm_blocks_cpu},
};
constexpr Impl<GradientNormArgs> kNormJoin[] = {
    SAT_CUDA_IMPL({"gradient_norm_join_cuda", DeviceKind::cuda, always<GradientNormArgs>, gradient_norm_join_cuda})
    {"gradient_norm_join_cpu", DeviceKind::cpu, always<GradientNormArgs>, gradient_norm_join_cpu},
};
constexpr Impl<AdamWArgs> kAdamW[] = {
    SAT_CUDA_IMPL({"adamw_cuda", DeviceKind::cuda, fits_dtype<AdamWArgs>, adamw_cuda})
    {"adamw_cpu", DeviceKind::cpu, fits_dtype<AdamWArgs>, adamw_cpu},
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
void require_aligned(const char* op, std::initializer_list<NamedPointer> arrays) {
  for (const NamedPointer& a : arrays) {
    if (reinterpret_cast<uintptr_t>(a.pointer) % 16 != 0) {
      throw Error(Errc::invalid_argument, op, fmt::format("{} is not aligned to 16 bytes", a.name));
    }
  }
}

// Ascending and apart; both ends are multiples of `align`, but for an end that is `count`.
void require_ranges(const char* op, std::span<const OwnedRange> ranges, int64_t align,
                    int64_t count) {
  int64_t before = 0;
  for (const OwnedRange& r : ranges) {
    const bool ends = r.end % align == 0 || r.end == count;
    if (r.begin < before || r.end < r.begin || r.end > count || r.begin % align != 0 || !ends ||
        r.local < 0 || r.local % kParameterAlign != 0) {
      throw Error(Errc::invalid_argument, op,
                  fmt::format("range [{}, {}) at {}: ranges must ascend within {} elements, in "
                              "multiples of {}",
                              r.begin, r.end, r.local, count, align));
    }
    before = r.end;
  }
}

void require_norm(const char* op, const GradientNormArgs& args) {
  if (args.count < 0 || args.count % kParameterAlign != 0) {
    throw Error(
        Errc::invalid_argument, op,
        fmt::format("count is {}; it must be a multiple of {}", args.count, kParameterAlign));
  }
  require_pointers(op, {{"partial", args.partial}, {"state", args.state}});
}

}  // namespace

template <>
std::span<const Impl<AdamWArgs>> impls_of() noexcept {
  return kAdamW;
}
template <>
std::span<const Impl<GradientNormArgs>> impls_of() noexcept {
  return kNormBlocks;
}

void gradient_norm_blocks(const Context& ctx, const GradientNormArgs& args) {
  constexpr const char* kOp = "gradient_norm_blocks";
  require_norm(kOp, args);
  require_aligned(kOp, {{"grad", args.grad}});
  require_ranges(kOp, args.ranges, kNormBlock, args.count);
  if (args.count > 0) require_pointers(kOp, {{"grad", args.grad}});
  dispatch(kOp, ctx, args, std::span<const Impl<GradientNormArgs>>(kNormBlocks),
           [&] { return shape_text(args.dtype, {args.count}); });
}

void gradient_norm_join(const Context& ctx, const GradientNormArgs& args) {
  require_norm("gradient_norm_join", args);
  dispatch("gradient_norm_join", ctx, args, std::span<const Impl<GradientNormArgs>>(kNormJoin),
           [&] { return shape_text(args.dtype, {args.count}); });
}

void adamw(const Context& ctx, const AdamWArgs& args) {
  require_aligned("adamw", {{"master", args.master},
                            {"m", args.m},
                            {"v", args.v},
                            {"grad", args.grad},
                            {"ema", args.ema},
                            {"compute", args.compute}});
  require_ranges("adamw", args.ranges, kParameterAlign, INT64_MAX);
  if (args.ranges.empty()) return;
  require_pointers("adamw", {{"master", args.master},
                             {"m", args.m},
                             {"v", args.v},
                             {"grad", args.grad},
                             {"rules", args.rules},
                             {"state", args.state}});
  if (args.moments != MomentType::wide) require_pointers("adamw", {{"pieces", args.pieces}});
  if (args.moments == MomentType::blocks)
    require_pointers("adamw", {{"m_scales", args.m_scales}, {"v_scales", args.v_scales}});
  if (args.compute != nullptr && args.compute_type != DType::bf16 &&
      args.compute_type != DType::f16) {
    throw Error(
        Errc::invalid_argument, "adamw",
        fmt::format("compute_type is {}; it must be bf16 or f16 (leave compute null for f32)",
                    name_of(args.compute_type)));
  }
  dispatch("adamw", ctx, args, std::span<const Impl<AdamWArgs>>(kAdamW),
           [&] { return shape_text(args.dtype, {static_cast<int64_t>(args.ranges.size())}); });
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
