// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/activation.h"

#include <cmath>

#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

constexpr ActivationKind kKinds[] = {ActivationKind::relu, ActivationKind::gelu_tanh,
                                     ActivationKind::gelu_erf, ActivationKind::silu,
                                     ActivationKind::identity};

double value(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::relu:
      return std::max(x, 0.0);
    case ActivationKind::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ActivationKind::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case ActivationKind::silu:
      return x / (1 + std::exp(-x));
    case ActivationKind::identity:
      return x;
  }
  return 0;
}

// By central differences of the definition: error step^2 / 6 times a third derivative below 3, and
// rounding of 2^-52 / step, both below 1e-9.
double slope(ActivationKind kind, double x) {
  if (kind == ActivationKind::relu) return x > 0 ? 1 : 0;
  constexpr double kStep = 1e-5;
  return (value(kind, x + kStep) - value(kind, x - kStep)) / (2 * kStep);
}

struct Case {
  int64_t rows, cols;
  bool gated;
  float dropout;
};
constexpr Case kCases[] = {{1, 1, false, 0.0f},    {3, 7, false, 0.1f},    {3, 7, true, 0.1f},
                           {5, 513, false, 0.0f},  {5, 513, true, 0.25f},  {4, 8, true, 0.0f},
                           {30, 1032, true, 0.1f}, {30, 1032, false, 0.1f}};

class ActivationOn : public OnTarget {
 protected:
  // Numbers of a usual size, and far out where exponentials overflow.
  Values inputs(int64_t n) const {
    Values x = random(n, 1);
    for (int64_t i = 0; i < n; ++i) x[i] = rounded(x[i] * (i % 7 == 0 ? 30.0 : 2.0), dtype());
    return x;
  }
  // Relative to the larger of |x| and 1: f and f' are products of x with numbers of size 1, a few
  // operations each, whose exponentials err by some units (2^-22 on the CPU, 2 + 1.2 |t| ulp on the
  // GPU where e^t matters, |t| < 17).
  double arithmetic() const { return 24 * wide_unit(); }
};

TEST_P(ActivationOn, ForwardMatchesTheDefinition) {
  for (const ActivationKind kind : kKinds)
    for (const Case& c : kCases) {
      SCOPED_TRACE(::testing::Message() << "kind " << static_cast<int>(kind) << ", " << c.rows
                                        << " x " << c.cols << (c.gated ? " gated" : ""));
      const int64_t n = c.rows * c.cols, width = c.gated ? 2 * c.cols : c.cols;
      const Values x = inputs(c.rows * width);
      const TestRng rng(stream(), c.dropout);
      const Guarded g_x = array(x), y = poison(n);
      const ActivationArgs args{.kind = kind,
                                .gated = c.gated,
                                .x = g_x.data(),
                                .y = y.data(),
                                .rows = c.rows,
                                .cols = c.cols,
                                .dtype = dtype(),
                                .dropout = c.dropout,
                                .rng = rng.ref()};
      activation_forward(ctx(), args);
      Values want(n), slack(n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i / c.cols * width + i % c.cols;
        const double factor = (c.gated ? x[at + c.cols] : 1.0) * rng.factor(i);
        want[i] = value(kind, x[at]) * factor;
        slack[i] = arithmetic() * std::fabs(factor) * (std::fabs(x[at]) + 1);
      }
      // f16 rounds below 2^-14 to multiples of 2^-24.
      if (dtype() == DType::f16)
        for (double& s : slack) s += 0x1p-25;
      expect_close("y", y.values(), want, unit() / 2, slack);
      const std::vector<char> first = y.bytes();
      activation_forward(ctx(), args);
      EXPECT_EQ(first, y.bytes()) << "two runs differ";
    }
}

TEST_P(ActivationOn, BackwardMatchesCentralDifferences) {
  for (const ActivationKind kind : kKinds)
    for (const Case& c : kCases) {
      SCOPED_TRACE(::testing::Message() << "kind " << static_cast<int>(kind) << ", " << c.rows
                                        << " x " << c.cols << (c.gated ? " gated" : ""));
      const int64_t n = c.rows * c.cols, width = c.gated ? 2 * c.cols : c.cols;
      const Values x = inputs(c.rows * width), d_y = random(n, 2);
      const TestRng rng(stream(), c.dropout);
      const Guarded g_x = array(x), g_d_y = array(d_y), d_x = poison(c.rows * width);
      activation_backward(ctx(), {.forward = {.kind = kind,
                                              .gated = c.gated,
                                              .x = g_x.data(),
                                              .y = nullptr,
                                              .rows = c.rows,
                                              .cols = c.cols,
                                              .dtype = dtype(),
                                              .dropout = c.dropout,
                                              .rng = rng.ref()},
                                  .d_y = g_d_y.data(),
                                  .d_x = d_x.data()});
      Values want(c.rows * width), slack(c.rows * width);
      const double differences = 1e-8, tiny = dtype() == DType::f16 ? 0x1p-25 : 0.0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i / c.cols * width + i % c.cols;
        const double g = d_y[i] * rng.factor(i), up = c.gated ? x[at + c.cols] : 1.0;
        const double size = std::fabs(x[at]) + 1;
        want[at] = g * up * slope(kind, x[at]);
        slack[at] = (arithmetic() + differences) * std::fabs(g * up) * size + tiny;
        if (!c.gated) continue;
        want[at + c.cols] = g * value(kind, x[at]);
        slack[at + c.cols] = arithmetic() * std::fabs(g) * size + tiny;
      }
      expect_close("d_x", d_x.values(), want, unit() / 2, slack);
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, ActivationOn, all_targets(), target_name);

}  // namespace
}  // namespace saturate::kernels
