// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/dropout.h"
#include "kernels/attention/features.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/hopper/forward.h"
#include "kernels/attention/hopper/windowed.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/mma/features.h"
#include "kernels/attention/tune/tune.h"
#include "kernels/attention/wide/wide.h"
#include "runtime/device.h"

namespace saturate::kernels {
namespace {

constexpr const char* kBackwardHopper = "attention_backward_hopper_cuda";

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
  if (a.head_size != 32 && a.head_size != 64) return {"head size is neither 32 nor 64"};
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (cuda_compute_major(c.device.index) < 8)
    return {"the GPU is older than compute capability 8.0"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  return attention_fits_grid(a);
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
  if (attention_mean_length(a) > 64) return {"sequences are longer than 64 rows in the mean"};
  // A block goes through its sequence alone, in a time that grows with the square of its length:
  // one long sequence would end last, after all the others.
  if (a.max_q > 128 || a.max_k > 128) return {"a sequence may be longer than 128 rows"};
  if (a.kv_heads > 65535) return {"more than 65535 key heads (second grid dimension)"};
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

int cuda_compute_major(int device_index) noexcept {
  static std::array<std::atomic<int>, 64> cache{};  // major + 1; 0: not yet asked
  if (device_index < 0 || device_index >= static_cast<int>(cache.size())) return 0;
  std::atomic<int>& slot = cache[static_cast<size_t>(device_index)];
  if (int known = slot.load(std::memory_order_relaxed)) return known - 1;
  int major = 0;
  try {
    if (device_index < cuda_device_count())
      major = device_info({DeviceKind::cuda, device_index}).compute_major;
  } catch (const std::exception&) {
    return 0;  // the launch itself will report what is wrong with the device
  }
  slot.store(major + 1, std::memory_order_relaxed);
  return major;
}

int64_t attention_backward_workspace_bytes(Device device, const AttentionArgs& a) noexcept {
  const bool built = is_16_bit(a.dtype) && (a.head_size == 64 || a.head_size == 128);
  if (!built || a.sequences == 0 || !attention::fits_windowed(a)) return 0;
  if (!attention_hopper_dropout_fits(a)) return 0;
  if (!device.is_cuda() || cuda_compute_major(device.index) != 9) return 0;
  if (const AttentionTable* const table = attention_table_in_use(device)) {
    const AttentionChoice* const choice = table->find(attention_key(a, AttentionPass::backward));
    if (choice != nullptr)
      return choice->impl == kBackwardHopper ? attention_backward_hopper_workspace(a) : 0;
  }
  // Blocks of 128 keys by 64 or 128 queries: short sequences are for tiles of their own size, which
  // exist at head size 64. The bounds are measured (hopper/LADDER.md).
  const int64_t rows = a.q_rows < a.k_rows ? a.q_rows : a.k_rows;
  const int64_t shortest = a.head_size == 64 ? 80 : 64;
  return rows / a.sequences < shortest ? 0 : attention_backward_hopper_workspace(a);
}

// clang-format cannot read list entries that a build without CUDA leaves out.
// clang-format off
std::span<const Impl<AttentionArgs>> attention_forward_impls() noexcept {
  static constexpr Impl<AttentionArgs> kList[] = {
      SAT_CUDA_IMPL({"attention_forward_hopper_cuda", DeviceKind::cuda,
                     attention_forward_hopper_pays, attention_forward_hopper_cuda})
      SAT_CUDA_IMPL({"attention_forward_wide_cuda", DeviceKind::cuda,
                     attention_forward_wide_pays, attention_forward_wide_cuda})
      SAT_CUDA_IMPL({"attention_forward_mma_cuda", DeviceKind::cuda, fits_mma,
                     attention_forward_mma_cuda})
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
      SAT_CUDA_IMPL({kBackwardHopper, DeviceKind::cuda,
                     attention_backward_hopper_fits, attention_backward_hopper_cuda})
      SAT_CUDA_IMPL({"attention_backward_wide_cuda", DeviceKind::cuda,
                     attention_backward_wide_pays, attention_backward_wide_cuda})
      SAT_CUDA_IMPL({"attention_backward_short_cuda", DeviceKind::cuda, fits_short_backward,
                     attention_backward_short_cuda})
      SAT_CUDA_IMPL({"attention_backward_mma_cuda", DeviceKind::cuda, fits_mma_backward,
                     attention_backward_mma_cuda})
      SAT_CUDA_IMPL({"attention_backward_bf16x6_cuda", DeviceKind::cuda,
                     attention_backward_bf16x6_fits, attention_backward_bf16x6_cuda})
      SAT_CUDA_IMPL({"attention_backward_features_cuda", DeviceKind::cuda,
                     attention_backward_features_fit, attention_backward_features_cuda})
      SAT_CUDA_IMPL({"attention_backward_plain_cuda", DeviceKind::cuda, fits_plain_backward,
                     attention_backward_plain_cuda})
      {"attention_backward_cpu", DeviceKind::cpu, fits_cpu_backward, attention_backward_cpu}};
  return kList;
}

std::span<const Impl<AttentionArgs>> attention_forward_candidates() noexcept {
  static const std::vector<Impl<AttentionArgs>> list = [] {
    const std::span<const Impl<AttentionArgs>> all = attention_forward_impls();
    std::vector<Impl<AttentionArgs>> made(all.begin(), all.end());
#if SATURATE_WITH_CUDA
    for (Impl<AttentionArgs>& impl : made)
      if (impl.launch == attention_forward_hopper_cuda) impl.fits = attention_forward_hopper_fits;
#endif
    return made;
  }();
  return list;
}
// clang-format on

namespace {

// The rate that is drawn: a multiple of 2^-15, so that what is kept is scaled by its very inverse.
AttentionArgs drawn(AttentionArgs a) {
  a.dropout = static_cast<float>(attention_dropout_least(a.dropout)) / 32768.0f;
  return a;
}

}  // namespace

void attention_forward(const Context& ctx, const AttentionArgs& given) {
  constexpr const char* op = "attention_forward";
  check_attention(op, given);
  if (given.q_rows == 0) return;
  const AttentionArgs args = drawn(given);
  if (const auto* const tuned = tuned_impl(op, ctx, args, attention_forward_candidates()))
    return tuned->launch(ctx, args);
  dispatch(op, ctx, args, attention_forward_impls());
}

void attention_backward(const Context& ctx, const AttentionBackwardArgs& given) {
  constexpr const char* op = "attention_backward";
  check_attention(op, given);
  const bool sums = given.d_bias || given.d_alibi_slopes || given.d_sinks;  // zero without rows
  if (given.forward.q_rows == 0 && given.forward.k_rows == 0 && !sums) return;
  AttentionBackwardArgs args = given;
  args.forward = drawn(given.forward);
  if (const auto* const tuned = tuned_impl(op, ctx, args, attention_backward_impls()))
    return tuned->launch(ctx, args);
  dispatch(op, ctx, args, attention_backward_impls());
}

}  // namespace saturate::kernels
