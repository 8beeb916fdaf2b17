// SPDX-License-Identifier: Apache-2.0
// What all instruction sets share: threads, and rows rounded to eight bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/activation/curve_cpu.h"
#include "kernels/gemm/packed/packed_block.h"
#include "kernels/gemm/packed/packed_impl.h"
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

// Threads share the panels: at least 4 Mflop each, and whole groups of eight panels.
void multiply(const PackedLinearArgs& a, Kernel kernel, const Block& operand, int64_t step_flops) {
  Block whole = operand;
  whole.rows = a.rows;
  whole.w = a.w.panels;
  whole.n = a.w.n;
  whole.y = a.y;
  whole.ldy = a.ldy;
  whole.bias = a.bias;
  whole.relu = a.activation == ActivationKind::relu;
  whole.activate = activate_of(a.activation);
  constexpr int64_t kGroup = 8, kWorth = 4'000'000;
  const int64_t panels = (a.w.n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t flops = std::max<int64_t>(1, a.rows * whole.steps * step_flops * kGroup);
  parallel_for(groups, std::max<int64_t>(1, kWorth / flops), [&](int64_t begin, int64_t end) {
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

int64_t padded_k(int64_t k) { return (k + 3) / 4 * 4; }

template <class Out>
void linear_s8(const Context& ctx, const PackedLinearArgs& a, Kernel kernel) {
  const int64_t stride = padded_k(a.w.k);
  auto* const scales = static_cast<float*>(ctx.workspace);
  Out* const q = reinterpret_cast<Out*>(scales + a.rows);
  const int64_t grain = std::max<int64_t>(1, 65536 / stride);
  parallel_for(a.rows, grain, [&](int64_t begin, int64_t end) {
    quantise_rows<Out>(a, begin, end, stride, q, scales);
  });
  Block b;
  b.x = q;
  b.x_bytes = stride * static_cast<int64_t>(sizeof(Out));
  b.steps = stride / 4;
  b.row_scale = scales;
  b.column_scale = a.w.scales;
  b.column_offset = a.w.offsets;
  multiply(a, kernel, b, 8 * kPanel);
}

// The largest |x|; of bits, so that infinity and what is no number win.
float largest(const float* x, int64_t count) {
  int32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    most = std::max(most, bits & 0x7fffffff);
  }
  return std::bit_cast<float>(most);
}

// To the nearest, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
inline int32_t nearest(float x) {
  constexpr float kRound = 12582912.0f;
  return std::bit_cast<int32_t>(x + kRound) - std::bit_cast<int32_t>(kRound);
}

}  // namespace

template <class Out>
void quantise_rows(const PackedLinearArgs& a, int64_t begin, int64_t end, int64_t stride, Out* out,
                   float* scales) {
  constexpr int32_t kZero = sizeof(Out) == 1 ? 128 : 0;
  for (int64_t r = begin; r < end; ++r) {
    const float* const x = a.x + r * a.ldx;
    Out* const q = out + r * stride;
    const float most = largest(x, a.w.k);
    scales[r] = most / 127.0f;
    // Below the least normal number a quotient could pass 127: such rows count as zeros.
    const bool zero = !(scales[r] >= 1.17549435e-38f && std::isfinite(most));
    if (zero && std::isfinite(most)) scales[r] = 0.0f;  // else 0 times it is no number
    const float factor = zero ? 0.0f : 127.0f / most;
    for (int64_t i = 0; i < a.w.k; ++i) {
      q[i] = static_cast<Out>((zero ? 0 : nearest(x[i] * factor)) + kZero);
    }
    for (int64_t i = a.w.k; i < stride; ++i) q[i] = static_cast<Out>(kZero);
  }
}
template void quantise_rows(const PackedLinearArgs&, int64_t, int64_t, int64_t, uint8_t*, float*);
template void quantise_rows(const PackedLinearArgs&, int64_t, int64_t, int64_t, int16_t*, float*);

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
void linear_s8_avx2(const Context& ctx, const PackedLinearArgs& a) {
  linear_s8<int16_t>(ctx, a, s8_avx2);
}
#else  // cpu_level() is plain there
void linear_f32_avx512(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_f32_avx2(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_s8_vnni(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
void linear_s8_avx2(const Context&, const PackedLinearArgs&) { SAT_ASSERT(false); }
#endif

int64_t s8_scratch_bytes(const Context&, const PackedLinearArgs& a) noexcept {
  return a.rows * (static_cast<int64_t>(sizeof(float)) + 2 * padded_k(a.w.k));
}

}  // namespace saturate::kernels::packed
