// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation_impl.h"
#include "kernels/host/vector_math.h"

namespace saturate::kernels {

struct Curve {
  float value, slope;
};

// One instruction each, without the care for results below 2^-126 that exp2f() and a division take.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float logistic(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// f(x) and f'(x); the compiler drops the one that is not used.
template <ActivationKind kKind>
__device__ __forceinline__ Curve curve(float x) {
  if constexpr (kKind == ActivationKind::relu) {
    return {fmaxf(x, 0.0f), x > 0.0f ? 1.0f : 0.0f};
  } else if constexpr (kKind == ActivationKind::identity) {
    return {x, 1.0f};
  } else if constexpr (kKind == ActivationKind::silu) {
    const float s = logistic(x);
    return {x * s, s + x * s * (1.0f - s)};
  } else if constexpr (kKind == ActivationKind::gelu_tanh) {
    // x s with s = 1 / (1 + 2^v), v = x (a + b x^2): seven instructions, which kernels that memory should
    // bound have room for.
    constexpr double kLog2E = 1.4426950408889634;
    constexpr auto a = static_cast<float>(-kLog2E * kGeluTwoK),
                   b = static_cast<float>(-kLog2E * kGeluTwoK * kGeluCubic),
                   c = static_cast<float>(kGeluTwoK),
                   d = static_cast<float>(3.0 * kGeluTwoK * kGeluCubic);
    const float square = x * x;
    const float s = reciprocal(1.0f + power_of_2(x * fmaf(b, square, a)));
    return {x * s, fmaf(x * s * (1.0f - s), fmaf(d, square, c), s)};
  } else {
    const float z = 0.707106781f * fabsf(x), e = __expf(-z * z);
    const float tail = 0.5f * e * scaled_erfc(__fdividef(1.0f, 1.0f + 0.5f * z));
    const float cdf = x < 0.0f ? tail : 1.0f - tail;
    return {x * cdf, cdf + x * 0.398942280f * e};
  }
}

}  // namespace saturate::kernels
