// SPDX-License-Identifier: Apache-2.0
// Functions that the compiler can vectorise in float, because they neither branch nor call libm;
// the double versions are libm's. Include from *_cpu.cpp. Error bounds are checked by
// vector_math_test.cpp.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/philox.h"

namespace saturate::kernels {

// e^x with a relative error below 2^-22. Zero below -87.3 (no subnormals), infinity above 88.3.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; a polynomial of degree 6 (own minimax fit, 1.9e-9) gives
// e^r.
inline float vector_exp(float x) {
  const float low = x < -87.3f ? -87.3f : x;  // NaN passes both comparisons
  const float c = low > 88.7f ? 88.7f : low;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = c * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r =
      (c - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts: n * high is exact
  float p = 1.383678987622261e-3f;
  p = p * r + 8.374856784939766e-3f;
  p = p * r + 4.166822880506516e-2f;
  p = p * r + 1.6666419804096222e-1f;
  p = p * r + 4.9999991059303284e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);  // 2^n
  return x < -87.3f ? 0.0f : p * power;
}
inline double vector_exp(double x) { return std::exp(x); }

template <class T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + vector_exp(-x));
}

// erfc(z) e^(z^2) for z >= 0 from t = 1 / (1 + z / 2): t P(t), the form of Abramowitz and
// Stegun 7.1.26 with an own minimax fit of degree 8 (4.3e-8 relative on [0, 10]). For CPU and GPU.
SAT_HD float scaled_erfc(float t) {
  float p = -0.05906896648179569f;
  p = p * t + 0.2845749906601723f;
  p = p * t - 0.48719994834553687f;
  p = p * t + 0.2780672100479056f;
  p = p * t - 0.02662569636808378f;
  p = p * t + 0.20268688096566212f;
  p = p * t + 0.24310375988209684f;
  p = p * t + 0.2823753089130245f;
  p = p * t + 0.2820864178427683f;
  return p * t;
}

template <class T>
struct Normal {
  T cdf, pdf;
};

// The standard normal distribution and its density, absolute error below 2^-22 in float.
inline Normal<float> normal_distribution(float x) {
  const float z = (x < 0 ? -x : x) * 0.707106781f;
  const float e = vector_exp(-z * z);
  const float tail = 0.5f * e * scaled_erfc(1.0f / (1.0f + 0.5f * z));
  return {x < 0 ? tail : 1.0f - tail, e * 0.398942280f};
}
inline Normal<double> normal_distribution(double x) {
  return {0.5 * std::erfc(-x * 0.70710678118654752440),
          0.39894228040143267794 * std::exp(-0.5 * x * x)};
}

// Sum of f(i) for i in [0, n), in 16 lanes and then by halves: the order does not depend on the
// processor, and the loop vectorises.
template <class T, class F>
inline T lane_sum(int64_t n, const F& f) {
  constexpr int kLanes = 16;
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
  }
  for (; i < n; ++i) lanes[i % kLanes] += f(i);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace saturate::kernels
