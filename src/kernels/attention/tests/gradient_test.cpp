// SPDX-License-Identifier: Apache-2.0
// The gradients against central differences of the loss sum(o * d_o), in double precision: for the
// reference, which knows nothing of the implementations, and for the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

struct Case {
  const char* name;
  bool causal;
  float dropout;
  FeatureSet features;
};

std::vector<Case> cases() {
  const auto set = [](auto change) {
    FeatureSet f;
    change(f);
    return f;
  };
  using F = FeatureSet;
  return {
      {"plain", false, 0.25f, {}},
      {"causal", true, 0.25f, {}},
      {"bottom_right", true, 0.0f, set([](F& f) { f.alignment = CausalAlignment::bottom_right; })},
      {"window", false, 0.0f, set([](F& f) { f.window_left = 1, f.window_right = 2; })},
      {"soft_cap", false, 0.25f, set([](F& f) { f.soft_cap = 0.7f; })},
      {"bias", false, 0.25f, set([](F& f) { f.bias = BiasShape::full, f.bias_hidden = 0.2; })},
      {"bias_of_heads", true, 0.0f, set([](F& f) { f.bias = BiasShape::heads; })},
      {"bias_of_keys", false, 0.0f, set([](F& f) { f.bias = BiasShape::keys; })},
      {"alibi", false, 0.25f, set([](F& f) { f.alibi = true; })},
      {"sinks", false, 0.25f, set([](F& f) { f.sinks = true; })},
      {"rotary", false, 0.0f, set([](F& f) { f.rotary_base = 50.0f; })},
      {"value_size", false, 0.0f, set([](F& f) { f.v_head_size = 3; })},
      {"block_mask", false, 0.0f, set([](F& f) { f.block_size = 2, f.block_per_head = true; })},
      {"all", true, 0.25f, set([](F& f) {
         f.alignment = CausalAlignment::bottom_right, f.window_left = 3, f.soft_cap = 0.7f;
         f.bias = BiasShape::full, f.alibi = f.sinks = true, f.rotary_base = 50.0f;
         f.v_head_size = 9, f.block_size = 3;
       })},
  };
}

class AttentionGradient : public ::testing::TestWithParam<Case> {
 protected:
  // Derivatives of loss(problem) by the elements of `inputs` against the gradients `want`.
  template <class Loss>
  static void expect_derivatives(const char* what, Problem& p, Values& inputs, const Values& want,
                                 const Loss& loss) {
    int checked = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (std::isnan(want[i]) || std::isinf(inputs[i])) continue;  // a gap, or a hidden key
      constexpr double kStep = 1e-5;  // error: step^2 (1e-10) and epsilon / step (2e-11)
      const double keep = inputs[i];
      inputs[i] = keep + kStep;
      const double up = loss(p);
      inputs[i] = keep - kStep;
      const double down = loss(p);
      inputs[i] = keep;
      EXPECT_NEAR(want[i], (up - down) / (2 * kStep), 5e-9) << what << " element " << i;
      ++checked;
    }
    EXPECT_EQ(checked == 0, inputs.empty());
  }

  template <class Forward>
  static void expect_gradients(const Result& r, const Forward& forward) {
    Problem p = problem();
    const auto loss = [&](const Problem& x) {
      const Result y = forward(x);
      double sum = 0;
      for (size_t i = 0; i < x.d_o.size(); ++i)
        if (!std::isnan(y.o[i])) sum += y.o[i] * x.d_o[i];
      return sum;
    };
    expect_derivatives("input", p, p.input, r.d_input, loss);
    expect_derivatives("bias", p, p.bias, r.d_bias, loss);
    if (p.shape.features.alibi || p.shape.features.sinks)
      expect_derivatives("slopes and sinks", p, p.per_head, r.d_per_head, loss);
  }

  static Problem problem() {
    const Case& c = GetParam();
    Shape s{"gradient", {3, 5, 0}, {4, 5, 2}, 2, 1, 6, c.causal, c.dropout};
    s.features = c.features;
    s.features.bias_in_dtype = true;  // a step would be lost in fp32
    return Problem(s, DType::f64);
  }
};

TEST_P(AttentionGradient, OfTheReferenceEqualsCentralDifferences) {
  expect_gradients(truth(problem()), [](const Problem& p) { return truth(p); });
}
TEST_P(AttentionGradient, OfTheCpuEqualsCentralDifferences) {
  const auto on_cpu = [](const Problem& p) { return run(p, Device{}, nullptr, nullptr); };
  expect_gradients(on_cpu(problem()), on_cpu);
}
INSTANTIATE_TEST_SUITE_P(Features, AttentionGradient, ::testing::ValuesIn(cases()),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace saturate::kernels
