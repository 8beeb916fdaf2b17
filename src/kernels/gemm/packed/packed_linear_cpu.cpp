// SPDX-License-Identifier: Apache-2.0
// What all instruction sets share: threads, and rows rounded to eight bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/activation/curve_cpu.h"
#include "kernels/gemm/packed/packed_bf16_value.h"
#include "kernels/gemm/packed/packed_block.h"
#include "kernels/gemm/packed/packed_impl.h"
#include "runtime/long_loops.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels::packed {
namespace {

template <ActivationKind kKind>
void activate(float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = curve<kKind>(y[i]).value;
}

using Activate = void (*)(float*, int64_t);
Activate activate_of(const std::optional<ActivationKind>& kind) {
  if (!kind) return nullptr;
  switch (*kind) {
    case ActivationKind::relu:  // in registers
    case ActivationKind::identity:
      return nullptr;
    case ActivationKind::gelu_tanh:
      return activate<ActivationKind::gelu_tanh>;
    case ActivationKind::gelu_erf:
      return activate<ActivationKind::gelu_erf>;
    case ActivationKind::silu:
      return activate<ActivationKind::silu>;
  }
  return nullptr;
}

int64_t wanted(const PackedLinearArgs& a) { return a.listed == nullptr ? a.rows : a.listed[0]; }
// The i-th of the rows that are wanted.
int64_t row_of(const PackedLinearArgs& a, int64_t i) {
  return a.listed == nullptr ? i : a.listed[1 + i];
}
[[maybe_unused]] PackedLinearArgs all_rows(PackedLinearArgs a) {
  a.listed = nullptr;
  return a;
}

// Threads share the panels, whole groups of eight: 4 Mflop each at least, or where rows are few 512 KiB
// of weights, which take as long to come from memory.
void multiply(const PackedLinearArgs& a, Kernel kernel, const Block& operand, int64_t step_flops) {
  Block whole = operand;
  whole.rows = wanted(a);
  whole.row_of = wanted(a) < a.rows ? a.listed + 1 : nullptr;
  whole.w = a.w.panels;
  whole.n = a.w.n;
  whole.y = a.y;
  whole.ldy = a.ldy;
  whole.bias = a.bias;
  whole.relu = a.activation == ActivationKind::relu;
  whole.activate = activate_of(a.activation);
  constexpr int64_t kGroup = 8, kWorth = 4'000'000, kWorthBytes = int64_t{1} << 19;
  const int64_t panels = (a.w.n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t flops = std::max<int64_t>(1, whole.rows * whole.steps * step_flops * kGroup);
  const int64_t grain = std::min(kWorth / flops, kWorthBytes / (whole.steps * kLine * kGroup));
  parallel_for_long(groups, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    Block part = whole;
    part.first = begin * kGroup;
    part.last = std::min(panels, end * kGroup);
    kernel(part);
  });
}

void linear_f32(const PackedLinearArgs& a, Kernel kernel) {
  Block b;
  b.x = a.x;
  b.x_bytes = a.ldx * static_cast<int64_t>(sizeof(float));
  b.steps = a.w.k;
  multiply(a, kernel, b, 2 * kPanel);
}

int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Elements from row to row of what x is rounded to. Of bytes a tile is 64, and one more line
// keeps rows out of each other's way in the first-level cache.
template <class Out>
int64_t stride_of(int64_t k) {
  return sizeof(Out) == 1 ? up(k, 64) + 64 : up(k, 4);
}

// The largest |x|; of bits, so that infinity and what is no number win.
template <class Out>
float largest(const float* x, int64_t count) {
#if defined(__x86_64__)
  if constexpr (sizeof(Out) == 1) return std::bit_cast<float>(largest_bits_avx512(x, count));
#endif
  int32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    most = std::max(most, bits & 0x7fffffff);
  }
  return std::bit_cast<float>(most);
}

// x * factor to the nearest, ties to even, below 2^22: adding 1.5 * 2^23 leaves the integer in the
// low bits. Product and sum are rounded once, whatever the processor.
inline int32_t nearest(float x, float factor) {
  constexpr float kRound = 12582912.0f;
  return std::bit_cast<int32_t>(std::fma(x, factor, kRound)) - std::bit_cast<int32_t>(kRound);
}

void round_row(const float* x, int64_t count, float factor, int64_t stride, int16_t* q) {
  for (int64_t i = 0; i < count; ++i) {  // what is no number becomes one that its scale undoes
    q[i] = factor == 0.0f ? int16_t{0} : static_cast<int16_t>(nearest(x[i], factor));
  }
  std::fill(q + count, q + stride, int16_t{0});
}
#if defined(__x86_64__)
void round_row(const float* x, int64_t count, float factor, int64_t stride, uint8_t* q) {
  round_row_avx512(x, count, factor, stride, q);
}
#endif

// The q of the wanted rows [begin, end) of x, zeros behind them: as u8, 128 more, with AVX-512 (Out = uint8_t), or
// as s16; and the rows' scales.
template <class Out>
void round_rows(const PackedLinearArgs& a, int64_t begin, int64_t end, Out* out, float* scales) {
  const int64_t stride = stride_of<Out>(a.w.k);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t r = row_of(a, i);
    const float* const x = a.x + r * a.ldx;
    const float most = largest<Out>(x, a.w.k);
    scales[r] = most / 127.0f;
    // Below the least normal number a quotient could pass 127: such rows count as zeros.
    const bool zero = !(scales[r] >= 1.17549435e-38f && std::isfinite(most));
    if (zero && std::isfinite(most)) scales[r] = 0.0f;  // else 0 times it is no number
    round_row(x, a.w.k, zero ? 0.0f : 127.0f / most, stride, out + r * stride);
  }
}

template <class Out>
void linear_s8(const Context& ctx, const PackedLinearArgs& a, Kernel kernel) {
  const int64_t stride = stride_of<Out>(a.w.k);
  Out* const q = static_cast<Out*>(ctx.workspace);
  auto* const scales = reinterpret_cast<float*>(q + a.rows * stride);
  const int64_t grain = std::max<int64_t>(1, 65536 / stride);
  parallel_for(wanted(a), grain,
               [&](int64_t begin, int64_t end) { round_rows<Out>(a, begin, end, q, scales); });
  Block b;
  b.x = q;
  b.x_bytes = stride * static_cast<int64_t>(sizeof(Out));
  b.steps = up(a.w.k, 4) / 4;
  b.row_scale = scales;
  b.column_scale = a.w.scales;
  b.column_offset = a.w.offsets;
  multiply(a, kernel, b, 8 * kPanel);
}

// x as bf16_dot() and bf16_amx() read it: rows of whole tiles, and one more line between them.
struct Halves {
  using Out = uint16_t;
  static int64_t stride(int64_t k) { return up(k, 32) + 32; }
  static void round(const float* x, int64_t k, Out* out) { round_row_bf16(x, k, stride(k), out); }
};
// x as the others read it: values that bf16 holds, as floats, in whole pairs.
struct Wide {
  using Out = float;
  static int64_t stride(int64_t k) { return up(k, 2); }
  static void round(const float* x, int64_t k, Out* out) {
    for (int64_t i = 0; i < k; ++i) out[i] = to_float(Bf16{bf16_bits(x[i])});
    if (k % 2 != 0) out[k] = 0.0f;
  }
};

template <class To>
void linear_bf16(const Context& ctx, const PackedLinearArgs& a, Kernel kernel) {
  auto* const rounded = static_cast<typename To::Out*>(ctx.workspace);
  const int64_t stride = To::stride(a.w.k);
  parallel_for(wanted(a), std::max<int64_t>(1, 65536 / stride), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = row_of(a, i);
      To::round(a.x + r * a.ldx, a.w.k, rounded + r * stride);
    }
  });
  Block b;
  b.x = rounded;
  b.x_bytes = stride * static_cast<int64_t>(sizeof(typename To::Out));
  b.steps = up(a.w.k, 2) / 2;
  multiply(a, kernel, b, 4 * kPanel);
}

}  // namespace

void linear_bf16_plain(const Context& ctx, const PackedLinearArgs& a) {
  linear_bf16<Wide>(ctx, a, bf16_plain);
}
void linear_f32_plain(const Context&, const PackedLinearArgs& a) { linear_f32(a, f32_plain); }
void linear_s8_plain(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<int16_t>(ctx, a, s8_plain);
}

#if defined(__x86_64__)
void linear_f32_avx512(const Context&, const PackedLinearArgs& a) { linear_f32(a, f32_avx512); }
void linear_f32_avx2(const Context&, const PackedLinearArgs& a) { linear_f32(a, f32_avx2); }
void linear_s8_vnni(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<uint8_t>(ctx, a, s8_avx512_vnni);
}
void linear_s8_amx(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<uint8_t>(ctx, all_rows(a), s8_amx);  // tiles take rows that follow each other
}
void linear_s8_avx2(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<int16_t>(ctx, a, s8_avx2);
}
void linear_bf16_amx(const Context& ctx, const PackedLinearArgs& a) {
  linear_bf16<Halves>(ctx, all_rows(a), bf16_amx);
}
void linear_bf16_dot(const Context& ctx, const PackedLinearArgs& a) {
  linear_bf16<Halves>(ctx, a, bf16_dot);
}
void linear_bf16_avx512(const Context& ctx, const PackedLinearArgs& a) {
  linear_bf16<Wide>(ctx, a, bf16_avx512);
}
void linear_bf16_avx2(const Context& ctx, const PackedLinearArgs& a) {
  linear_bf16<Wide>(ctx, a, bf16_avx2);
}
#else  // cpu_level() is plain there
void linear_bf16_amx(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_bf16_dot(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_bf16_avx512(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_bf16_avx2(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_f32_avx512(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_f32_avx2(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_s8_vnni(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_s8_amx(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_s8_avx2(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
#endif

int64_t bf16_scratch_bytes(const Context&, const PackedLinearArgs& a) noexcept {
  return a.rows * std::max<int64_t>(2 * Halves::stride(a.w.k), 4 * Wide::stride(a.w.k));
}

int64_t s8_scratch_bytes(const Context&, const PackedLinearArgs& a) noexcept {
  const int64_t row = std::max(stride_of<uint8_t>(a.w.k), 2 * stride_of<int16_t>(a.w.k));
  return a.rows * (static_cast<int64_t>(sizeof(float)) + row);
}

}  // namespace saturate::kernels::packed
