// SPDX-License-Identifier: Apache-2.0
// Rounding has no slope, so central differences say nothing about fp8_linear: its gradients are compared
// with those of linear() in fp32, which lie as near as three and two bits of mantissa allow.
#include "ops/fp8_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/fp8/fp8.h"
#include "kernels/optimizer/step_state.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear.h"

namespace saturate {
namespace {

constexpr int64_t kRows = 32, kVocab = 16, kWidth = 32, kInner = 48;

// Gradients by name of embedding -> linear -> linear -> logits, the second of two runs.
std::map<std::string, std::vector<double>> gradients(bool fp8, bool add_twice) {
  ParameterStore store({}, DType::f32);
  if (fp8) store.multiply_in_fp8();
  const ParameterId table = store.add({.name = "table",
                                       .rows = kVocab,
                                       .cols = kWidth,
                                       .init = Init::normal,
                                       .init_scale = 0.7f}),
                    in = store.add({.name = "in",
                                    .rows = kInner,
                                    .cols = kWidth,
                                    .init = Init::normal,
                                    .init_scale = 0.3f,
                                    .multiplied = true}),
                    bias = store.add({.name = "bias", .cols = kInner}),
                    out = store.add({.name = "out",
                                     .rows = kWidth,
                                     .cols = kInner,
                                     .init = Init::normal,
                                     .init_scale = 0.3f,
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
  EXPECT_EQ(ops::multiplies_in_fp8(tape, w), fp8);
  EXPECT_FALSE(ops::multiplies_in_fp8(tape, tape.parameter(table)));
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

TEST(Fp8Linear, GradientsPointWhereThoseOfFp32Do) {
  for (const bool add_twice : {false, true}) {
    const auto exact = gradients(false, add_twice), rounded = gradients(true, add_twice);
    for (const auto& [name, e] : exact) {
      const std::vector<double>& r = rounded.at(name);
      double ee = 0, rr = 0, er = 0;
      for (size_t i = 0; i < e.size(); ++i) ee += e[i] * e[i], rr += r[i] * r[i], er += e[i] * r[i];
      // By independent errors of up to 7% (e5m2) and 4% (e4m3) in six roundings the cosine is 0.993; sums with
      // terms of both signs, as the bias has, lie lower. Without the term that is added inside the product it
      // is 0.94, with another tensor's scale 0.66.
      EXPECT_GT(er / std::sqrt(ee * rr), 0.98) << name;
      EXPECT_NEAR(std::sqrt(rr / ee), 1.0, 0.05) << name;
      EXPECT_NE(e, r) << name << ": nothing was rounded";
    }
  }
}

}  // namespace
}  // namespace saturate
