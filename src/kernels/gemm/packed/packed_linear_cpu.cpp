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

// The largest |x|; of bits, so that infinity and what is no number win.
float largest_of(const float* x, int64_t count) {
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

// What a row of x becomes for a product of int8: round() writes the q of x * factor and zeros behind them, in stride()
// bytes, and returns what the row's sums will lack. A factor of 0 makes zeros of what is no number too.
struct Words {  // s8_plain()
  static int64_t stride(int64_t k) { return 2 * up(k, 4); }
  static float largest(const float* x, int64_t k) { return largest_of(x, k); }
  static int32_t round(const float* x, int64_t k, float factor, char* to) {
    auto* const q = reinterpret_cast<int16_t*>(to);
    for (int64_t i = 0; i < k; ++i) {
      q[i] = factor == 0.0f ? int16_t{0} : static_cast<int16_t>(nearest(x[i], factor));
    }
    std::fill(q + k, q + up(k, 4), int16_t{0});
    return 0;
  }
};
#if defined(__x86_64__)
// A line between rows keeps them out of each other's way in the first-level cache.
struct Signs {  // s8_avx2()
  static int64_t stride(int64_t k) { return 2 * up(k, 32) + 64; }
  static float largest(const float* x, int64_t k) { return largest_of(x, k); }
  static int32_t round(const float* x, int64_t k, float factor, char* to) {
    if (factor != 0.0f) return round_row_signs(x, k, factor, to);
    std::memset(to, 0, static_cast<size_t>(stride(k)));
    return 0;
  }
};
struct Shifted {  // s8_avx512_vnni() and s8_amx(), whose tiles are 64 bytes
  static int64_t stride(int64_t k) { return up(k, 64) + 64; }
  static float largest(const float* x, int64_t k) {
    return std::bit_cast<float>(largest_bits_avx512(x, k));
  }
  static int32_t round(const float* x, int64_t k, float factor, char* to) {
    round_row_avx512(x, k, factor, stride(k), reinterpret_cast<uint8_t*>(to));
    return 0;
  }
};
#endif

// What `To` makes of the wanted rows [begin, end) of x, and by row their scales and what their sums lack.
template <class To>
void round_rows(const PackedLinearArgs& a, int64_t begin, int64_t end, char* out, float* scales,
                int32_t* lacks) {
  const int64_t stride = To::stride(a.w.k);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t r = row_of(a, i);
    const float* const x = a.x + r * a.ldx;
    const float most = To::largest(x, a.w.k);
    scales[r] = most / 127.0f;
    // Below the least normal number a quotient could pass 127: such rows count as zeros.
    const bool zero = !(scales[r] >= 1.17549435e-38f && std::isfinite(most));
    if (zero && std::isfinite(most)) scales[r] = 0.0f;  // else 0 times it is no number
    lacks[r] = To::round(x, a.w.k, zero ? 0.0f : 127.0f / most, out + r * stride);
  }
}

// `if_positive` runs where no row lacks anything.
template <class To>
void linear_s8(const Context& ctx, const PackedLinearArgs& a, Kernel kernel, Kernel if_positive) {
  const int64_t stride = To::stride(a.w.k);
  auto* const q = static_cast<char*>(ctx.workspace);
  auto* const scales = reinterpret_cast<float*>(q + a.rows * stride);
  auto* const lacks = reinterpret_cast<int32_t*>(scales + a.rows);
  const int64_t grain = std::max<int64_t>(1, 65536 / stride);
  parallel_for(wanted(a), grain, [&](int64_t begin, int64_t end) {
    round_rows<To>(a, begin, end, q, scales, lacks);
  });
  bool positive = true;
  for (int64_t i = 0; i < wanted(a); ++i) positive &= lacks[row_of(a, i)] == 0;
  Block b;
  b.x = q;
  b.x_bytes = stride;
  b.steps = up(a.w.k, 4) / 4;
  b.row_scale = scales;
  b.row_offset = lacks;
  b.column_scale = a.w.scales;
  b.column_offset = a.w.offsets;
  multiply(a, positive ? if_positive : kernel, b, 8 * kPanel);
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
  linear_s8<Words>(ctx, a, s8_plain, s8_plain);
}

#if defined(__x86_64__)
void linear_f32_avx512(const Context&, const PackedLinearArgs& a) { linear_f32(a, f32_avx512); }
void linear_f32_avx2(const Context&, const PackedLinearArgs& a) { linear_f32(a, f32_avx2); }
void linear_s8_vnni(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<Shifted>(ctx, a, s8_avx512_vnni, s8_avx512_vnni);
}
void linear_s8_amx(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<Shifted>(ctx, all_rows(a), s8_amx, s8_amx);  // tiles take rows that follow each other
}
void linear_s8_avx2(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<Signs>(ctx, a, s8_avx2, s8_avx2_positive);
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
  int64_t row = Words::stride(a.w.k);
#if defined(__x86_64__)
  row = std::max({row, Signs::stride(a.w.k), Shifted::stride(a.w.k)});
#endif
  return a.rows * (static_cast<int64_t>(sizeof(float) + sizeof(int32_t)) + row);
}

}  // namespace saturate::kernels::packed
