// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention.h"

#include <fmt/format.h>

#include <cstdint>

#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/dropout.h"
#include "kernels/attention/features.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/hopper/forward.h"
#include "kernels/attention/hopper/windowed.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/mma/features.h"
#include "kernels/attention/tune/table.h"
#include "kernels/attention/wide/wide.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit fits_cpu(const Context&, const AttentionArgs& a) noexcept {
  if (a.dtype != DType::f32 && a.dtype != DType::f64) return {"dtype is neither f32 nor f64"};
  return {};
}
Fit fits_cpu_backward(const Context& c, const AttentionBackwardArgs& b) noexcept {
  return fits_cpu(c, b.forward);
}

[[maybe_unused]] bool is_16_bit(DType t) noexcept { return t == DType::bf16 || t == DType::f16; }

[[maybe_unused]] Fit fits_plain(const Context&, const AttentionArgs& a) noexcept {
  if (a.dtype == DType::f64) return {"dtype is f64, which only the CPU computes"};
  if (a.head_size > 256 || attention_v_head_size(a) > 256)
    return {"head size is above 256 (shared memory of one tile)"};
  return attention_fits_grid(a);
}
[[maybe_unused]] Fit fits_plain_backward(const Context& c,
                                         const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  if (const Fit f = attention_fits_bias_gradient(b); !f) return f;
  return fits_plain(c, a);
}

[[maybe_unused]] Fit fits_mma(const Context& c, const AttentionArgs& a) noexcept {
  if (!is_16_bit(a.dtype)) return {"dtype is neither bf16 nor f16 (tensor-core operands)"};
  if (a.head_size != 32 && a.head_size != 64 && a.head_size != 128)
    return {"head size is none of 32, 64, 128"};
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (capability_of(c).major < 8) return {"the GPU is older than compute capability 8.0"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  return attention_fits_grid(a);
}
// At head size 128 the kernels with features are faster, but for their tiles of 64 rows (LADDER.md).
[[maybe_unused]] Fit mma_pays(const Context&, const AttentionArgs& a) noexcept {
  if (a.head_size == 128 && attention_mean_length(a) > 64)
    return {"head size is 128 and sequences are longer than 64 rows in the mean"};
  return {};
}
[[maybe_unused]] Fit mma_pays_backward(const Context& c, const AttentionBackwardArgs& b) noexcept {
  return mma_pays(c, b.forward);
}
[[maybe_unused]] Fit fits_mma_backward(const Context& c, const AttentionBackwardArgs& b) noexcept {
  if (!attention_rows_aligned(b.d_o, b.forward.o_stride) ||
      !attention_rows_aligned(b.d_q, b.d_q_stride) ||
      !attention_rows_aligned(b.d_k, b.d_k_stride) || !attention_rows_aligned(b.d_v, b.d_v_stride))
    return {"a gradient is not aligned to 16 bytes, or its stride is no multiple of 8"};
  return fits_mma(c, b.forward);
}

[[maybe_unused]] Fit fits_short_backward(const Context& c,
                                         const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  if (a.head_size != 32 && a.head_size != 64) return {"head size is neither 32 nor 64"};
  if (attention_mean_length(a) > 64) return {"sequences are longer than 64 rows in the mean"};
  // A block goes through all queries of a tile of keys alone, and scores of several tiles are
  // computed twice: a long sequence would end last, after all the others.
  if (a.max_q > 128 || a.max_k > 128) return {"a sequence may be longer than 128 rows"};
  if (a.kv_heads > INT32_MAX / (a.sequences + 64)) return {"more than 2^31 blocks (grid size)"};
  return fits_mma_backward(c, b);
}

}  // namespace

Fit attention_fits_grid(const AttentionArgs& a) noexcept {
  if (a.heads > 65535) return {"more than 65535 heads (second grid dimension)"};
  const int64_t longest = a.max_q > a.max_k ? a.max_q : a.max_k;
  if (longest > INT32_MAX / 2)
    return {"a sequence may be longer than 2^30 rows (32-bit positions)"};
  if ((a.sequences + 1) * (longest / 16 + 1) > INT32_MAX)
    return {"more than 2^31 tiles (grid size)"};
  return {};
}

Fit attention_fits_bias_gradient(const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  if (b.d_bias != nullptr && a.max_k > 16 * 65535)
    return {"more than 2^20 columns of d_bias (second grid dimension)"};
  if (b.d_bias != nullptr && a.sequences * a.heads * (a.max_q / 16 + 1) > INT32_MAX)
    return {"more than 2^31 tiles of d_bias (grid size)"};
  return {};
}

int64_t attention_mean_length(const AttentionArgs& a) noexcept {
  if (a.sequences == 0) return 0;
  const int64_t rows = a.q_rows > a.k_rows ? a.q_rows : a.k_rows;
  const int64_t longest = a.max_q > a.max_k ? a.max_q : a.max_k;
  const int64_t mean = (rows + a.sequences - 1) / a.sequences;
  return mean < longest ? mean : longest;
}

// clang-format cannot read list entries that a build without CUDA leaves out.
// clang-format off
std::span<const Impl<AttentionArgs>> attention_forward_impls() noexcept {
  static constexpr Impl<AttentionArgs> kList[] = {
      SAT_CUDA_IMPL({"attention_forward_hopper_cuda", DeviceKind::cuda,
                     attention_forward_hopper_fits, attention_forward_hopper_cuda, nullptr,
                     attention_forward_hopper_pays})
      SAT_CUDA_IMPL({"attention_forward_wide_cuda", DeviceKind::cuda,
                     attention_forward_wide_fits, attention_forward_wide_cuda, nullptr,
                     attention_forward_wide_pays})
      SAT_CUDA_IMPL({"attention_forward_mma_cuda", DeviceKind::cuda, fits_mma,
                     attention_forward_mma_cuda, nullptr, mma_pays})
      SAT_CUDA_IMPL({"attention_forward_bf16x6_cuda", DeviceKind::cuda,
                     attention_forward_bf16x6_fits, attention_forward_bf16x6_cuda})
      SAT_CUDA_IMPL({"attention_forward_features_cuda", DeviceKind::cuda, attention_features_fit,
                     attention_forward_features_cuda})
      SAT_CUDA_IMPL({"attention_forward_plain_cuda", DeviceKind::cuda, fits_plain,
                     attention_forward_plain_cuda})
      {"attention_forward_cpu", DeviceKind::cpu, fits_cpu, attention_forward_cpu}};
  return kList;
}

std::span<const Impl<AttentionBackwardArgs>> attention_backward_impls() noexcept {
  static constexpr Impl<AttentionBackwardArgs> kList[] = {
      SAT_CUDA_IMPL({"attention_backward_hopper_cuda", DeviceKind::cuda,
                     attention_backward_hopper_fits, attention_backward_hopper_cuda,
                     attention_backward_hopper_workspace, attention_backward_hopper_pays})
      SAT_CUDA_IMPL({"attention_backward_wide_cuda", DeviceKind::cuda,
                     attention_backward_wide_fits, attention_backward_wide_cuda, nullptr,
                     attention_backward_wide_pays})
      SAT_CUDA_IMPL({"attention_backward_short_cuda", DeviceKind::cuda, fits_short_backward,
                     attention_backward_short_cuda})
      SAT_CUDA_IMPL({"attention_backward_mma_cuda", DeviceKind::cuda, fits_mma_backward,
                     attention_backward_mma_cuda, nullptr, mma_pays_backward})
      SAT_CUDA_IMPL({"attention_backward_bf16x6_cuda", DeviceKind::cuda,
                     attention_backward_bf16x6_fits, attention_backward_bf16x6_cuda})
      SAT_CUDA_IMPL({"attention_backward_features_cuda", DeviceKind::cuda,
                     attention_backward_features_fit, attention_backward_features_cuda})
      SAT_CUDA_IMPL({"attention_backward_plain_cuda", DeviceKind::cuda, fits_plain_backward,
                     attention_backward_plain_cuda})
      {"attention_backward_cpu", DeviceKind::cpu, fits_cpu_backward, attention_backward_cpu}};
  return kList;
}
// clang-format on

template <>
std::span<const Impl<AttentionArgs>> impls_of() noexcept {
  return attention_forward_impls();
}
template <>
std::span<const Impl<AttentionBackwardArgs>> impls_of() noexcept {
  return attention_backward_impls();
}

AttentionArgs attention_resolved(AttentionArgs a) {
  a.dropout = static_cast<float>(attention_dropout_least(a.dropout)) / 32768.0f;
  a.rng = attention_dropout_rows(a.rng, a.q_rows);
  return a;
}

namespace {

constexpr const char *kForward = "attention_forward", *kBackward = "attention_backward";

const AttentionArgs& forward_of(const AttentionArgs& a) noexcept { return a; }
const AttentionArgs& forward_of(const AttentionBackwardArgs& b) noexcept { return b.forward; }

// What was measured for these arguments, where it fits; else the first of the list that does.
template <class Args>
Plan<Args> plan(const char* op, const Context& ctx, const Args& args, AttentionPass pass,
                std::span<const Impl<Args>> list, const AttentionTable* table) {
  const auto shape = [&] { return text_of(attention_key(forward_of(args), pass)); };
  const AttentionChoice* const choice =
      table == nullptr ? nullptr : table->find(attention_key(forward_of(args), pass));
  for (const Impl<Args>& impl : list) {
    if (choice == nullptr || choice->impl != impl.name || impl.device != ctx.device.kind) continue;
    const Fit fit = impl.fits(ctx, args);
    if (dispatch_is_verbose()) note_dispatch(op, shape() + " (tuned)", impl.name, fit.reason);
    if (fit) return {&impl, impl.workspace == nullptr ? 0 : impl.workspace(ctx, args), {}};
  }
  return plan_of(op, ctx, args, list, shape);
}

bool is_empty(const AttentionBackwardArgs& b) noexcept {
  const bool sums = b.d_bias || b.d_alibi_slopes || b.d_sinks;  // zero without rows
  return b.forward.q_rows == 0 && b.forward.k_rows == 0 && !sums;
}

// The pointers of a call may fit less than those it was planned with.
template <class Args>
void run(const char* op, const Context& ctx, const Plan<Args>& plan, const Args& args) {
  if (const Fit fit = plan.impl->fits(ctx, args); !fit)
    throw Error(
        Errc::unsupported, op,
        fmt::format("planned as {}, which refuses this call: {}", plan.impl->name, fit.reason));
  plan.run(ctx, args);
}

}  // namespace

Plan<AttentionArgs> plan_attention(const Context& ctx, const AttentionArgs& args,
                                   const AttentionTable* measured) {
  return plan(kForward, ctx, args, AttentionPass::forward, attention_forward_impls(), measured);
}

Plan<AttentionBackwardArgs> plan_attention(const Context& ctx, const AttentionBackwardArgs& args,
                                           const AttentionTable* measured) {
  return plan(kBackward, ctx, args, AttentionPass::backward, attention_backward_impls(), measured);
}

void attention_forward(const Context& ctx, const Plan<AttentionArgs>& plan,
                       const AttentionArgs& args) {
  check_attention(kForward, args);
  if (args.q_rows > 0) run(kForward, ctx, plan, attention_resolved(args));
}

void attention_backward(const Context& ctx, const Plan<AttentionBackwardArgs>& plan,
                        const AttentionBackwardArgs& given) {
  check_attention(kBackward, given);
  if (is_empty(given)) return;
  AttentionBackwardArgs args = given;
  args.forward = attention_resolved(given.forward);
  run(kBackward, ctx, plan, args);
}

void attention_forward(const Context& ctx, const AttentionArgs& given) {
  check_attention(kForward, given);
  if (given.q_rows == 0) return;
  const AttentionArgs args = attention_resolved(given);
  plan_attention(ctx, args).run(ctx, args);
}

void attention_backward(const Context& ctx, const AttentionBackwardArgs& given) {
  check_attention(kBackward, given);
  if (is_empty(given)) return;
  AttentionBackwardArgs args = given;
  args.forward = attention_resolved(given.forward);
  if (args.workspace == nullptr) args.workspace_bytes = 0;
  plan_attention(ctx, args).run(ctx, args);
}

}  // namespace saturate::kernels
