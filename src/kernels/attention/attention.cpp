// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_impl.h"
#include "runtime/device.h"

namespace saturate::kernels {
namespace {

// The 2^16 elements a row of random numbers has in the contract.
constexpr int64_t kMaxDropoutKeys = int64_t{1} << 16;

[[noreturn]] void refuse(const char* op, const std::string& what) {
  throw Error(Errc::invalid_argument, op, what);
}

void check_stride(const char* op, const char* name, int64_t stride, int64_t heads,
                  int64_t head_size) {
  if (stride < heads * head_size)
    refuse(op, fmt::format("{} is {}, but a row holds {} heads of {} elements: pass at least {}",
                           name, stride, heads, head_size, heads * head_size));
}

void check(const char* op, const AttentionArgs& a) {
  if (a.dtype == DType::i32) refuse(op, "dtype is i32; pass f64, f32, bf16 or f16");
  if (a.sequences < 0 || a.q_rows < 0 || a.k_rows < 0 || a.max_q < 0 || a.max_k < 0)
    refuse(op, fmt::format("sequences {}, q_rows {}, k_rows {}, max_q {} and max_k {} must not be "
                           "negative",
                           a.sequences, a.q_rows, a.k_rows, a.max_q, a.max_k));
  if (a.heads < 1 || a.kv_heads < 1 || a.head_size < 1 || a.heads % a.kv_heads != 0)
    refuse(op,
           fmt::format("heads {}, kv_heads {}, head_size {}: each must be at least 1 and kv_heads "
                       "must divide heads",
                       a.heads, a.kv_heads, a.head_size));
  check_stride(op, "q_stride", a.q_stride, a.heads, a.head_size);
  check_stride(op, "o_stride", a.o_stride, a.heads, a.head_size);
  check_stride(op, "k_stride", a.k_stride, a.kv_heads, a.head_size);
  check_stride(op, "v_stride", a.v_stride, a.kv_heads, a.head_size);
  if (!(a.scale > 0.0f) || !std::isfinite(a.scale))
    refuse(op,
           fmt::format("scale is {}; it must be positive and finite (1/sqrt(head_size) as a rule)",
                       a.scale));
  if (!(a.dropout >= 0.0f && a.dropout < 1.0f))
    refuse(op, fmt::format("dropout is {}; it must lie in [0, 1)", a.dropout));
  if (a.dropout > 0.0f && a.rng.state == nullptr)
    refuse(op, fmt::format("dropout is {} but rng.state is null; pass {{seed, micro-step}}",
                           a.dropout));
  if (a.dropout > 0.0f && a.max_k > kMaxDropoutKeys)
    refuse(op, fmt::format("max_k is {}; with dropout a sequence may have at most {} keys", a.max_k,
                           kMaxDropoutKeys));
  if (a.cu_q == nullptr || a.cu_k == nullptr) refuse(op, "cu_q or cu_k is null");
  if (a.q_rows > 0 && (a.q == nullptr || a.o == nullptr || a.lse == nullptr))
    refuse(op, fmt::format("q, o or lse is null with {} query rows", a.q_rows));
  if (a.k_rows > 0 && (a.k == nullptr || a.v == nullptr))
    refuse(op, fmt::format("k or v is null with {} key rows", a.k_rows));
}

void check(const char* op, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  check(op, a);
  check_stride(op, "d_q_stride", b.d_q_stride, a.heads, a.head_size);
  check_stride(op, "d_k_stride", b.d_k_stride, a.kv_heads, a.head_size);
  check_stride(op, "d_v_stride", b.d_v_stride, a.kv_heads, a.head_size);
  if (a.q_rows > 0 && (b.d_o == nullptr || b.d_q == nullptr || b.delta == nullptr))
    refuse(op, fmt::format("d_o, d_q or delta is null with {} query rows", a.q_rows));
  if (a.k_rows > 0 && (b.d_k == nullptr || b.d_v == nullptr))
    refuse(op, fmt::format("d_k or d_v is null with {} key rows", a.k_rows));
}

Fit fits_cpu(const Context&, const AttentionArgs& a) noexcept {
  if (a.dtype != DType::f32 && a.dtype != DType::f64) return {"dtype is neither f32 nor f64"};
  return {};
}
Fit fits_cpu_backward(const Context& c, const AttentionBackwardArgs& b) noexcept {
  return fits_cpu(c, b.forward);
}

[[maybe_unused]] bool is_16_bit(DType t) noexcept { return t == DType::bf16 || t == DType::f16; }

// The grid's second dimension counts heads, its first (query or key tiles) x (sequences + 1).
[[maybe_unused]] Fit fits_grid(const AttentionArgs& a) noexcept {
  if (a.heads > 65535) return {"more than 65535 heads (second grid dimension)"};
  const int64_t longest = a.max_q > a.max_k ? a.max_q : a.max_k;
  if (longest > INT32_MAX / 2)
    return {"a sequence may be longer than 2^30 rows (32-bit positions)"};
  if ((a.sequences + 1) * (longest / 16 + 1) > INT32_MAX)
    return {"more than 2^31 tiles (grid size)"};
  return {};
}

[[maybe_unused]] Fit fits_plain(const Context&, const AttentionArgs& a) noexcept {
  if (a.dtype == DType::f64) return {"dtype is f64, which only the CPU computes"};
  if (a.head_size > 256) return {"head size is above 256 (shared memory of one tile)"};
  return fits_grid(a);
}
[[maybe_unused]] Fit fits_plain_backward(const Context& c,
                                         const AttentionBackwardArgs& b) noexcept {
  return fits_plain(c, b.forward);
}

// 16-byte copies need every row of every head to start at a multiple of 8 elements.
bool rows_aligned(const void* p, int64_t stride) noexcept {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
}

[[maybe_unused]] Fit fits_mma(const Context& c, const AttentionArgs& a) noexcept {
  if (!is_16_bit(a.dtype)) return {"dtype is neither bf16 nor f16 (tensor-core operands)"};
  if (a.head_size != 32 && a.head_size != 64 && a.head_size != 128)
    return {"head size is none of 32, 64, 128"};
  if (!rows_aligned(a.q, a.q_stride) || !rows_aligned(a.k, a.k_stride) ||
      !rows_aligned(a.v, a.v_stride) || !rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (cuda_compute_major(c.device.index) < 8)
    return {"the GPU is older than compute capability 8.0"};
  return fits_grid(a);
}
[[maybe_unused]] Fit fits_mma_backward(const Context& c, const AttentionBackwardArgs& b) noexcept {
  if (!rows_aligned(b.d_o, b.forward.o_stride) || !rows_aligned(b.d_q, b.d_q_stride) ||
      !rows_aligned(b.d_k, b.d_k_stride) || !rows_aligned(b.d_v, b.d_v_stride))
    return {"a gradient is not aligned to 16 bytes, or its stride is no multiple of 8"};
  return fits_mma(c, b.forward);
}

}  // namespace

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

// clang-format cannot read list entries that a build without CUDA leaves out.
// clang-format off
std::span<const Impl<AttentionArgs>> attention_forward_impls() noexcept {
  static constexpr Impl<AttentionArgs> kList[] = {
      SAT_CUDA_IMPL({"attention_forward_mma_cuda", DeviceKind::cuda, fits_mma,
                     attention_forward_mma_cuda})
      SAT_CUDA_IMPL({"attention_forward_plain_cuda", DeviceKind::cuda, fits_plain,
                     attention_forward_plain_cuda})
      {"attention_forward_cpu", DeviceKind::cpu, fits_cpu, attention_forward_cpu}};
  return kList;
}

std::span<const Impl<AttentionBackwardArgs>> attention_backward_impls() noexcept {
  static constexpr Impl<AttentionBackwardArgs> kList[] = {
      SAT_CUDA_IMPL({"attention_backward_mma_cuda", DeviceKind::cuda, fits_mma_backward,
                     attention_backward_mma_cuda})
      SAT_CUDA_IMPL({"attention_backward_plain_cuda", DeviceKind::cuda, fits_plain_backward,
                     attention_backward_plain_cuda})
      {"attention_backward_cpu", DeviceKind::cpu, fits_cpu_backward, attention_backward_cpu}};
  return kList;
}
// clang-format on

void attention_forward(const Context& ctx, const AttentionArgs& args) {
  constexpr const char* op = "attention_forward";
  check(op, args);
  if (args.q_rows == 0) return;
  dispatch(op, ctx, args, attention_forward_impls());
}

void attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  constexpr const char* op = "attention_backward";
  check(op, args);
  if (args.forward.q_rows == 0 && args.forward.k_rows == 0) return;
  dispatch(op, ctx, args, attention_backward_impls());
}

}  // namespace saturate::kernels
