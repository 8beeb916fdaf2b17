// SPDX-License-Identifier: Apache-2.0
// Activation functions of one number. Include from *_cpu.cpp, where they vectorise.
#pragma once
#include "kernels/activation/activation_impl.h"
#include "kernels/host/vector_math.h"

namespace saturate::kernels {

template <class T>
struct Curve {
  T value, slope;
};

// f(x) and f'(x); the compiler drops the one that a loop does not use.
template <ActivationKind kKind, class T>
inline Curve<T> curve(T x) {
  if constexpr (kKind == ActivationKind::relu) {
    return {x > T(0) ? x : T(0), x > T(0) ? T(1) : T(0)};
  } else if constexpr (kKind == ActivationKind::identity) {
    return {x, T(1)};
  } else if constexpr (kKind == ActivationKind::silu) {
    const T s = sigmoid(x);
    return {x * s, s + x * s * (T(1) - s)};
  } else if constexpr (kKind == ActivationKind::gelu_tanh) {
    constexpr T kTwoK = static_cast<T>(kGeluTwoK), kCubic = static_cast<T>(kGeluCubic);
    const T s = sigmoid(kTwoK * (x + kCubic * x * x * x));
    return {x * s, s + x * s * (T(1) - s) * kTwoK * (T(1) + T(3) * kCubic * x * x)};
  } else {
    const Normal<T> n = normal_distribution(x);
    return {x * n.cdf, n.cdf + x * n.pdf};
  }
}

}  // namespace saturate::kernels
