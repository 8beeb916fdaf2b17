// SPDX-License-Identifier: Apache-2.0
// Rounding has no slope, so central differences say nothing about fp8_linear and block_linear: their gradients
// are compared with those of linear() in fp32, which lie as near as the bits of mantissa allow.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/fp8/fp8.h"
#include "kernels/optimizer/step_state.h"
#include "ops/activation.h"
#include "ops/block_linear.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/feed_forward.h"
#include "ops/fp8_linear.h"
#include "ops/linear.h"

namespace saturate {
namespace {

constexpr int64_t kRows = 32, kVocab = 16, kWidth = 32, kInner = 64;

// Gradients by name of embedding -> linear -> linear -> logits, the second of two runs.
using kernels::BlockFormat;
struct Rounding {
  const char* name = "";
  bool fp8 = false;
  std::optional<BlockFormat> blocks = {};
  // Of the matrices. With 0.3 logits are of size 17, and a softmax that sharp makes of the four bits' errors
  // other choices.
  float init = 0.3f;
};
std::map<std::string, std::vector<double>> gradients(const Rounding& rounding, bool add_twice) {
  ParameterStore store({}, DType::f32);
  if (rounding.fp8) store.multiply_in_fp8();
  if (rounding.blocks) store.multiply_in_blocks(*rounding.blocks);
  const ParameterId table = store.add({.name = "table",
                                       .rows = kVocab,
                                       .cols = kWidth,
                                       .init = Init::normal,
                                       .init_scale = 0.7f}),
                    in = store.add({.name = "in",
                                    .rows = kInner,
                                    .cols = kWidth,
                                    .init = Init::normal,
                                    .init_scale = rounding.init,
                                    .multiplied = true}),
                    bias = store.add({.name = "bias", .cols = kInner}),
                    out = store.add({.name = "out",
                                     .rows = kWidth,
                                     .cols = kInner,
                                     .init = Init::normal,
                                     .init_scale = rounding.init,
                                     .multiplied = true});
  store.allocate(Purpose::training);
  store.initialise(Stream(store.device()), 5);
  std::vector<int32_t> ids(kRows), positions(kRows), order(kRows), labels(kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    ids[static_cast<size_t>(i)] = i * 7 % kVocab;
    positions[static_cast<size_t>(i)] = i;
    labels[static_cast<size_t>(i)] = i * 5 % kVocab;
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
  });
  const std::vector<int32_t> cu{0, kRows};
  const int32_t valid = kRows;
  const uint64_t rng_state[2] = {11, 3};
  double totals[4] = {};
  Tape tape(store, TapeMode::training, rng_state);
  const Value x = ops::embedding(tape, {.tokens = {.ids = ids.data(),
                                                   .positions = positions.data(),
                                                   .cu = cu.data(),
                                                   .order = order.data(),
                                                   .valid = &valid,
                                                   .rows = kRows,
                                                   .sequences = 1},
                                        .table = tape.parameter(table),
                                        .scale = 1.5f});
  const Value w = tape.parameter(in);
  EXPECT_EQ(ops::multiplies_in_fp8(tape, w), rounding.fp8);
  EXPECT_EQ(ops::block_format_of(tape, w), rounding.blocks);
  EXPECT_FALSE(ops::multiplies_in_fp8(tape, tape.parameter(table)));
  EXPECT_FALSE(ops::block_format_of(tape, tape.parameter(table)));
  const auto loss_of = [&](Value inner) {
    const Value y = ops::linear(tape, inner, tape.parameter(out));
    ops::cross_entropy(
        tape, ops::linear(tape, y, tape.parameter(table)),
        {.labels = labels.data(), .vocab = kVocab, .label_smoothing = 0.0f, .totals = totals});
  };
  loss_of(ops::linear(tape, x, w, tape.parameter(bias)));
  // A second loss of x, so that inside a product x's gradient is added to what is there.
  if (add_twice) loss_of(ops::linear(tape, x, w));
  tape.backward();
  StepState good;
  good.totals[2] = 1;  // tokens
  std::vector<char> arena(tape.plan());
  for (int run = 0; run < 2; ++run) {
    tape.run({}, arena.data(), false);
    for (const ParameterSpec& p : store.specs()) {
      if (kernels::Fp8Site* s = store.fp8_sites(store.find(p.name)); s != nullptr)
        kernels::fp8_roll({}, {.sites = s, .count = kernels::kFp8Roles, .state = &good});
    }
  }
  std::map<std::string, std::vector<double>> all;
  const auto* g = store.gradients().as<float>();
  for (const ParameterSpec& p : store.specs())
    all[p.name] = {g + p.offset, g + p.offset + p.size()};
  return all;
}

struct Bound {
  Rounding rounding;
  double cosine, length;
  double cosine_of_bias, length_of_bias;
};
class RoundedLinear : public ::testing::TestWithParam<Bound> {};
// By independent errors of up to 7% (e5m2) and 4% (e4m3) in six roundings the cosine is 0.993 in fp8. Without the
// term that is added inside the product it is 0.94, with another tensor's scale 0.66. e4m3 in blocks alone: 3%
// each, 0.997. Four bits: 10% each, 0.97. The gradient of the bias is a sum of 32 terms of both signs, smaller
// than they are, so their errors weigh more: 0.98 at 3%, 0.8 at 10%, and it is 1 / cosine as long.
INSTANTIATE_TEST_SUITE_P(
    Formats, RoundedLinear,
    ::testing::Values(Bound{{"fp8", true, {}}, 0.98, 0.05, 0.98, 0.05},
                      Bound{{"mxfp8", false, BlockFormat::mxfp8_e4m3}, 0.99, 0.04, 0.98, 0.05},
                      Bound{{"nvfp4", false, BlockFormat::nvfp4, 0.05f}, 0.95, 0.05, 0.7, 0.43}),
    [](const auto& i) { return std::string(i.param.rounding.name); });

TEST_P(RoundedLinear, GradientsPointWhereThoseOfFp32Do) {
  for (const bool add_twice : {false, true}) {
    const auto exact = gradients({.init = GetParam().rounding.init}, add_twice),
               rounded = gradients(GetParam().rounding, add_twice);
    for (const auto& [name, e] : exact) {
      const std::vector<double>& r = rounded.at(name);
      double ee = 0, rr = 0, er = 0;
      for (size_t i = 0; i < e.size(); ++i) ee += e[i] * e[i], rr += r[i] * r[i], er += e[i] * r[i];
      const Bound& b = GetParam();
      const bool bias = name == "bias";
      EXPECT_GT(er / std::sqrt(ee * rr), bias ? b.cosine_of_bias : b.cosine) << name << add_twice;
      EXPECT_NEAR(std::sqrt(rr / ee), 1.0, bias ? b.length_of_bias : b.length) << name << add_twice;
      EXPECT_NE(e, r) << name << ": nothing was rounded";
    }
  }
}

// Gradients by name of embedding -> feed_forward -> logits, the second of two runs, and the operations of the
// list by name.
struct FeedForwardRun {
  std::map<std::string, std::vector<double>> gradients;
  std::map<std::string, int> operations;
};
FeedForwardRun feed_forward(bool fp8, int64_t width, int64_t inner, kernels::ActivationKind kind) {
  ParameterStore store({}, DType::f32);
  if (fp8) store.multiply_in_fp8();
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols, bool multiplied) {
    return store.add({.name = name,
                      .rows = rows,
                      .cols = cols,
                      .init = Init::normal,
                      .init_scale = 1.5f / std::sqrt(static_cast<float>(cols)),
                      .multiplied = multiplied});
  };
  const ParameterId table = matrix("table", kVocab, width, false),
                    in = matrix("in", inner, width, true),
                    in_bias = store.add({.name = "in_bias", .cols = inner}),
                    out = matrix("out", width, inner, true),
                    out_bias = store.add({.name = "out_bias", .cols = width});
  store.allocate(Purpose::training);
  store.initialise(Stream(store.device()), 5);
  std::vector<int32_t> ids(kRows), positions(kRows), order(kRows), labels(kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    ids[static_cast<size_t>(i)] = i % kVocab;
    positions[static_cast<size_t>(i)] = i;
    labels[static_cast<size_t>(i)] = i * 5 % kVocab;
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
  });
  const std::vector<int32_t> cu{0, kRows};
  const int32_t valid = kRows;
  const uint64_t rng_state[2] = {11, 3};
  double totals[4] = {};
  Tape tape(store, TapeMode::training, rng_state);
  const Value x = ops::embedding(tape, {.tokens = {.ids = ids.data(),
                                                   .positions = positions.data(),
                                                   .cu = cu.data(),
                                                   .order = order.data(),
                                                   .valid = &valid,
                                                   .rows = kRows,
                                                   .sequences = 1},
                                        .table = tape.parameter(table),
                                        .scale = 1.5f});
  const ops::Projection first{tape.parameter(in), tape.parameter(in_bias)},
      second{tape.parameter(out), tape.parameter(out_bias)};
  Value y = fp8 ? ops::feed_forward(tape, x, first, second, kind) : Value{};
  if (!fp8) {
    const Value h = ops::linear(tape, x, first.weight, first.bias);
    y = ops::linear(tape, ops::activation(tape, h, kind, false, 0.0f), second.weight, second.bias);
  }
  ops::cross_entropy(
      tape, ops::linear(tape, y, tape.parameter(table)),
      {.labels = labels.data(), .vocab = kVocab, .label_smoothing = 0.0f, .totals = totals});
  tape.backward();
  FeedForwardRun done;
  for (size_t i = 0; i < tape.operations(); ++i) ++done.operations[tape.operation(i).name];
  StepState good;
  good.totals[2] = 1;
  std::vector<char> arena(tape.plan());
  for (int run = 0; run < 2; ++run) {
    tape.run({}, arena.data(), false);
    for (const ParameterSpec& p : store.specs()) {
      if (kernels::Fp8Site* s = store.fp8_sites(store.find(p.name)); s != nullptr)
        kernels::fp8_roll({}, {.sites = s, .count = kernels::kFp8Roles, .state = &good});
    }
  }
  const auto* g = store.gradients().as<float>();
  for (const ParameterSpec& p : store.specs())
    done.gradients[p.name] = {g + p.offset, g + p.offset + p.size()};
  return done;
}

// Small matrices have weight gradients in 16 bits, large ones of turned codes.
TEST(Fp8FeedForward, GradientsPointWhereThoseOfSingleOperationsDo) {
  for (const auto& [width, inner] : {std::pair<int64_t, int64_t>{32, 48}, {512, 1024}})
    for (const auto kind : {kernels::ActivationKind::relu, kernels::ActivationKind::gelu_tanh}) {
      const FeedForwardRun exact = feed_forward(false, width, inner, kind),
                           rounded = feed_forward(true, width, inner, kind);
      EXPECT_FALSE(rounded.operations.contains("activation"));
      EXPECT_FALSE(rounded.operations.contains("activation_backward"));
      EXPECT_FALSE(rounded.operations.contains("bias_gradient"));
      EXPECT_EQ(rounded.operations.at("fp8_quantize"), 6);
      for (const auto& [name, e] : exact.gradients) {
        const std::vector<double>& r = rounded.gradients.at(name);
        double ee = 0, rr = 0, er = 0;
        for (size_t i = 0; i < e.size(); ++i)
          ee += e[i] * e[i], rr += r[i] * r[i], er += e[i] * r[i];
        // As above; relu also changes sides where rounding moves what it is given past zero.
        EXPECT_GT(er / std::sqrt(ee * rr), 0.97) << name << " " << width;
        EXPECT_NEAR(std::sqrt(rr / ee), 1.0, 0.05) << name << " " << width;
        EXPECT_NE(e, r) << name << ": nothing was rounded";
      }
    }
}

}  // namespace
}  // namespace saturate
