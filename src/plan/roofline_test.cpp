// SPDX-License-Identifier: Apache-2.0
#include "plan/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace saturate::plan {
namespace {

Machine rates(double tflops, double gbs) {
  Machine m;
  m.compute.tflops = {{DType::f32, tflops}};
  m.compute.attention = 0.5;
  m.compute.bandwidth_gbs = gbs;
  return m;
}

// x and w make z, z makes h, h and w make y, which o is made of; h's columns are summed.
class Floors : public ::testing::Test {
 protected:
  Floors() {
    const auto run = [](const saturate::Run&) {};
    const auto make = [&](const char* label, int64_t rows) {
      return tape.make(label, DType::f32, rows, 10);
    };
    const Value x = tape.external("x", DType::f32, 100, 10, this),
                w = tape.external("w", DType::f32, 10, 10, this), z = make("z", 100),
                h = make("h", 100), sums = make("sums", 1), scratch = make("scratch", 5),
                y = make("y", 100), o = make("o", 100);
    tape.record("linear", {x, w}, {z}, run, {}, {.flops = 20000});
    tape.record("activation", {z}, {h}, run);
    tape.record("linear", {h, w}, {y}, run, {}, {.flops = 20000});
    tape.record("bias_gradient", {h}, {sums, scratch}, run);
    tape.record("attention", {y}, {o}, run, {}, {.flops = 10000});
    tape.keep(o);
    tape.keep(sums);
  }
  // Each within a millionth of what is expected.
  void expect(double tflops, double gbs, const std::vector<double>& expected) {
    const std::vector<double> us = floors_us(rates(tflops, gbs), tape);
    ASSERT_EQ(us.size(), expected.size());
    for (size_t i = 0; i < us.size(); ++i) EXPECT_NEAR(us[i], expected[i], 1e-6) << i;
  }
  ParameterStore store{{}, DType::f32};
  Tape tape{store, TapeMode::inference, nullptr};
};

// 1 GB/s: a microsecond for 1,000 bytes. z never leaves the first group; h leaves it once, and the sums
// of its columns are made where it is.
TEST_F(Floors, CountBytesThatCrossBordersOfGroups) { expect(1e9, 1, {4.4, 4.0, 8.4, 0.04, 8.0}); }

TEST_F(Floors, CountMultiplicationsAtTheirRate) {
  expect(0.02, 1e9, {1.0, 0.0, 1.0, 0.0, 1.0});  // attention at half of the rate
}

// The first product takes 6 us; its bytes and the activation's, 8.4 us, take 2.4 longer.
TEST_F(Floors, GiveOthersOnlyWhatTheyAddToTheirGroup) {
  expect(0.02 / 6, 1, {6.0, 2.4, 8.4, 0.04, 8.0});
}

TEST(Roofline, HoldsTheWholeStep) {
  RunConfig c;
  c.model.preset = "tiny";
  c.data.vocab_size = 64;
  c.model.d_model = c.model.ffn = 64;
  c.model.encoder_layers = c.model.decoder_layers = 1;
  c.batch.target_tokens = 32;
  c.train.precision = "fp32";
  c.model.activation = "gelu_tanh";  // relu has no operation of its own
  const Roofline r = measure_roofline(rates(1, 100), c, 8, {});
  EXPECT_EQ(r.target_tokens, 32);
  double us = 0, floor = 0;
  for (const RooflineRow& row : r.classes) {
    us += row.us, floor += row.floor_us;
    EXPECT_GE(row.floor_us, 0) << row.key;
    EXPECT_GT(row.us, 0) << row.key;
  }
  EXPECT_NEAR(us, r.us, 1e-6 * us);
  EXPECT_NEAR(floor, r.floor_us, 1e-6 * floor);
  EXPECT_TRUE(std::ranges::is_sorted(r.operations, std::greater{}, &RooflineRow::gap_us));
  for (const std::string_view kind : {"products", "attention", "norms", "activations",
                                      "bias gradients", "cross-entropy", "optimizer", "embeddings"})
    EXPECT_TRUE(std::ranges::count(r.classes, kind, &RooflineRow::key) == 1) << kind;
}

}  // namespace
}  // namespace saturate::plan
