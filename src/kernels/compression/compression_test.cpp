// SPDX-License-Identifier: Apache-2.0
#include "kernels/compression/compression.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

constexpr size_t kWords = sizeof(CodedBlock) / 4;

class CompressionOn : public OnTarget {
 protected:
  void SetUp() override {
    OnTarget::SetUp();
    if (!IsSkipped() && size_of(dtype()) == 2) GTEST_SKIP() << "sums are f32 or f64";
  }
  // Room for so many blocks, and blocks in it.
  Guarded room(int64_t blocks) const {
    return Guarded(stream(), DType::i32, blocks * static_cast<int64_t>(kWords));
  }
  static std::vector<CodedBlock> blocks_of(const Guarded& g) {
    const std::vector<char> bytes = g.bytes();
    std::vector<CodedBlock> blocks(bytes.size() / sizeof(CodedBlock));
    std::memcpy(blocks.data(), bytes.data(), bytes.size());
    return blocks;
  }
  Values meaning(const Guarded& codes, int64_t count) const {
    const Guarded y = poison(count);
    decompress(ctx(),
               {.x = codes.as<CodedBlock>(), .y = y.data(), .count = count, .dtype = dtype()});
    return y.values();
  }
  void compress_to(const Guarded& y, const Guarded& x, const Guarded& residual, int64_t count,
                   const Guarded* inputs = nullptr, int64_t input_count = 0) const {
    compress(ctx(), {.x = x.data(),
                     .residual = residual.data(),
                     .inputs = inputs ? inputs->as<CodedBlock>() : nullptr,
                     .input_count = input_count,
                     .y = y.as<CodedBlock>(),
                     .count = count,
                     .blocks = y.count() / static_cast<int64_t>(kWords),
                     .dtype = dtype()});
  }
};

// Counts around a block; one block more than they take.
TEST_P(CompressionOn, WhatDoesNotTravelIsInTheResidual) {
  for (const int64_t n : {1, 3, 255, 256, 257, 5000}) {
    SCOPED_TRACE(n);
    Values x = random(n, 1);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = rounded(std::ldexp(x[i], static_cast<int>(i / 256)), dtype());
    const Values before = random(n, 2);
    const Guarded g_x = array(x), residual = array(before), y = room(coded_blocks(n) + 1);
    compress_to(y, g_x, residual, n);
    const std::vector<CodedBlock> blocks = blocks_of(y);
    const Values kept = residual.values(), sent = meaning(y, n);
    for (int64_t b = 0; b < std::ssize(blocks); ++b) {
      double largest = 0;
      for (int64_t i = b * 256; i < std::min(n, b * 256 + 256); ++i) {
        const auto k = static_cast<size_t>(i);
        const double v = rounded(x[k] + before[k], dtype());
        largest = std::max(largest, std::abs(v));
        // Exact, as a product with the scale is: one rounding, that of the difference.
        EXPECT_EQ(kept[k], rounded(v - sent[k], dtype())) << i;
        EXPECT_LE(std::abs(kept[k]), 0.5001 * static_cast<double>(blocks[b].scale)) << i;
      }
      EXPECT_NEAR(static_cast<double>(blocks[b].scale), largest / 127, largest / 127 * 0x1p-14);
      for (int64_t i = n; i < b * 256 + 256; ++i)
        if (i >= b * 256) {
          EXPECT_EQ(blocks[b].codes[i - b * 256], 0) << "behind the end";
        }
    }
  }
}

TEST_P(CompressionOn, AddsWhatOthersSentInTheirOrder) {
  constexpr int64_t kCount = 700, kBlocks = 3, kInputs = 3;
  const Values x = random(kCount, 1);
  const Guarded g_x = array(x), residual = array(Values(kCount, 0.0)), y = room(kBlocks),
                inputs = room(kInputs * kBlocks);
  Values want = x;
  for (int64_t k = 0; k < kInputs; ++k) {
    const Guarded other = array(random(kCount, 10 + static_cast<uint64_t>(k))),
                  nothing = array(Values(kCount, 0.0)), one = room(kBlocks);
    compress_to(one, other, nothing, kCount);
    const Values sent = meaning(one, kCount);
    for (size_t i = 0; i < want.size(); ++i) want[i] = rounded(want[i] + sent[i], dtype());
    copy_on_device(stream(), inputs.as<CodedBlock>() + k * kBlocks, one.data(),
                   kBlocks * sizeof(CodedBlock));
  }
  compress_to(y, g_x, residual, kCount, &inputs, kInputs);
  Values got = meaning(y, kCount);
  const Values kept = residual.values();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(kept[i], rounded(want[i] - got[i], dtype())) << i;
  }
}

// The same values again and again: what was applied lies within one residual of what was given.
TEST_P(CompressionOn, NothingIsLostOverManyCalls) {
  constexpr int64_t kCount = 512;
  constexpr int kCalls = 200;
  const Values x = random(kCount, 1);
  const Guarded g_x = array(x), residual = array(Values(kCount, 0.0)), y = room(2);
  Values applied(kCount, 0.0);
  for (int call = 0; call < kCalls; ++call) {
    compress_to(y, g_x, residual, kCount);
    const Values sent = meaning(y, kCount);
    for (size_t i = 0; i < applied.size(); ++i) applied[i] += sent[i];
  }
  const Values kept = residual.values();
  double without = 0;
  for (size_t i = 0; i < applied.size(); ++i) {
    EXPECT_NEAR(applied[i] + kept[i], kCalls * x[i], kCalls * wide_unit() * 4) << i;
    without = std::max(without, std::abs(kept[i]));
  }
  EXPECT_LT(without, 0.02);  // not kCalls times that
}

TEST_P(CompressionOn, ABlockThatIsNotFiniteSaysSoAndKeepsItsResidual) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    Values x = random(512, 1);
    x[300] = bad;
    const Values before = random(512, 2);
    const Guarded g_x = array(x), residual = array(before), y = room(2);
    compress_to(y, g_x, residual, 512);
    const Values sent = meaning(y, 512), kept = residual.values();
    for (size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(std::isnan(sent[i]), i >= 256) << i;
      EXPECT_EQ(kept[i] == before[i], i >= 256) << i;
    }
  }
}

TEST_P(CompressionOn, TinyValuesWaitUntilTheyCanTravel) {
  const Guarded x = array(Values(256, 0x1p-125)), residual = array(Values(256, 0.0)), y = room(1);
  compress_to(y, x, residual, 256);
  EXPECT_EQ(meaning(y, 256), Values(256, 0.0));
  EXPECT_EQ(residual.values(), Values(256, 0x1p-125));
}

// What travels from a GPU is what would travel from the CPU.
TEST_P(CompressionOn, EveryDeviceMakesTheSameBits) {
  if (dtype() != DType::f32) GTEST_SKIP() << "GPUs sum in f32";
  constexpr int64_t kCount = 3000, kBlocks = 12;
  const Stream host(Device{});
  const Context cpu{Device{}, host.native()};
  const Values x = random(kCount, 1), before = random(kCount, 2);
  const Guarded here_x = array(x), here = array(before), here_y = room(kBlocks);
  compress_to(here_y, here_x, here, kCount);
  const Guarded there_x(host, DType::f32, x), there(host, DType::f32, before),
      there_y(host, DType::i32, kBlocks * static_cast<int64_t>(kWords));
  compress(cpu, {.x = there_x.data(),
                 .residual = there.data(),
                 .y = there_y.as<CodedBlock>(),
                 .count = kCount,
                 .blocks = kBlocks});
  EXPECT_TRUE(here_y.bytes() == there_y.bytes());
  EXPECT_TRUE(here.bytes() == there.bytes());
}

INSTANTIATE_TEST_SUITE_P(Targets, CompressionOn, all_targets(), target_name);

TEST(Compression, RefusesWhatCannotBe) {
  const Context ctx{Device{}};
  float values[300] = {};
  CodedBlock blocks[2];
  CompressArgs a{.x = values, .residual = values, .y = blocks, .count = 300, .blocks = 1};
  EXPECT_THROW(compress(ctx, a), Error);  // two are needed
  a.blocks = 2;
  a.dtype = DType::bf16;
  EXPECT_THROW(compress(ctx, a), Error);
  a.dtype = DType::f32;
  a.input_count = 1;
  EXPECT_THROW(compress(ctx, a), Error);  // none are given
}

}  // namespace
}  // namespace saturate::kernels
