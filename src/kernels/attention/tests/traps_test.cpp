// SPDX-License-Identifier: Apache-2.0
// Cases in which attention kernels have been known to fail: each by name, for every implementation.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/testing/attention_expect.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

class AttentionTrap : public ::testing::TestWithParam<testing::Target> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  static Device device() { return {GetParam().kind, 0}; }
  static DType dtype() { return GetParam().dtype; }
  static void expect_right_everywhere(const Problem& p) { expect_all_right(p, device()); }
  static Result by_dispatch(const Problem& p) { return run(p, device(), nullptr, nullptr); }
  // Every query is `x` and every key `-x` in each element: all scores are -scale x^2 D.
  static void oppose(Problem& p, double x) {
    const AttentionArgs& a = p.args.forward;
    for (int64_t r = 0; r < a.q_rows; ++r)
      for (int64_t d = 0; d < a.heads * a.head_size; ++d) p.input[r * a.q_stride + d] = x;
    for (int64_t r = 0; r < a.k_rows; ++r)
      for (int64_t d = 0; d < a.kv_heads * a.head_size; ++d)
        p.input[p.k_at + r * a.k_stride + d] = -x;
  }
};

TEST_P(AttentionTrap, LengthWithRemainder64AndScoresBelowTheSmallestExponential) {
  for (const int32_t length : {64, 192, 320})
    for (const bool causal : {true, false}) {
      Problem p({"trap", {length}, {length}, 1, 1, 64, causal}, dtype());
      p.args.forward.scale = 2.0f;
      oppose(p, 1.0);  // lse = -128 + log(keys) < -88.7: exp(lse) is 0 in fp32
      ASSERT_LT(truth(p).lse[0], -88.7);
      expect_right_everywhere(p);
    }
}

TEST_P(AttentionTrap, EmptySequencesAmongOthers) {
  FeatureSet all;
  all.alignment = CausalAlignment::bottom_right, all.bias = BiasShape::heads;
  all.sinks = all.alibi = true, all.block_size = 16;
  for (const FeatureSet& f : {FeatureSet{}, all})
    for (const bool causal : {false, true}) {
      Shape s{"trap", {0, 0, 17, 0, 4, 0}, {0, 6, 17, 0, 0, 0}, 2, 2, 64, causal};
      s.features = f;
      expect_right_everywhere(Problem(s, dtype()));
    }
}

TEST_P(AttentionTrap, OnlyEmptySequences) {
  FeatureSet f;
  f.bias = BiasShape::heads, f.sinks = f.alibi = true;
  expect_right_everywhere(Problem({"trap", {0, 0}, {0, 0}, 2, 2, 64}, dtype()));
  Shape s{"trap", {0, 0}, {3, 0}, 2, 2, 64};
  s.features = f;
  expect_right_everywhere(Problem(s, dtype()));
  Shape t{"trap", {3, 0}, {0, 0}, 2, 2, 64, true};
  t.features = f;
  expect_right_everywhere(Problem(t, dtype()));
}

// Rows that see no key: zero output, lse of minus infinity, no gradient and no NaN.
TEST_P(AttentionTrap, FullyMaskedRows) {
  Shape s{"trap", {50, 70}, {20, 70}, 2, 2, 64, true};
  s.features.alignment = CausalAlignment::bottom_right;  // the first 30 queries stand before key 0
  const Problem p(s, dtype());
  expect_right_everywhere(p);
  const Result r = by_dispatch(p);
  for (int64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(r.lse[i], -INFINITY);
    for (int64_t d = 0; d < 128; ++d) {
      EXPECT_EQ(r.o[i * p.args.forward.o_stride + d], 0);
      EXPECT_EQ(r.d_input[i * p.args.forward.q_stride + d], 0);
    }
  }
}

TEST_P(AttentionTrap, FullyMaskedByBiasWindowAndBlocks) {
  Shape s{"trap", {33, 70}, {33, 70}, 2, 2, 64};
  s.features.bias = BiasShape::full;
  Problem by_bias(s, dtype());
  for (int64_t i = 0; i < 33; i += 2)  // every second row of the first sequence
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < 70; ++j)
        by_bias.bias[h * by_bias.args.forward.bias_head_stride +
                     i * by_bias.args.forward.bias_row_stride + j] = -INFINITY;
  expect_right_everywhere(by_bias);
  s.features = {};
  s.features.block_size = 32, s.features.sinks = true;
  Problem by_blocks(s, dtype());
  by_blocks.block_mask.assign(by_blocks.block_mask.size(), 0);
  expect_right_everywhere(by_blocks);
  Shape w{"trap", {70}, {20}, 1, 1, 64};
  w.features.window_left = 3;  // queries from 24 on see nothing
  expect_right_everywhere(Problem(w, dtype()));
}

TEST_P(AttentionTrap, PaddingRowsGetZeroGradients) {
  Shape s{"trap", {5, 9}, {11, 2}, 2, 1, 64, false, 0.0f, false, 70, 90};
  s.features.rotary_base = 100.0f;
  for (const bool rotary : {false, true}) {
    s.features.rotary_base = rotary ? 100.0f : 0.0f;
    const Problem p(s, dtype());
    const Result r = by_dispatch(p);
    for (int64_t i = 14; i < 84; ++i)
      for (int64_t d = 0; d < 128; ++d) {
        ASSERT_EQ(r.o[i * p.args.forward.o_stride + d], 0);
        ASSERT_EQ(r.d_input[i * p.args.forward.q_stride + d], 0);
      }
    for (int64_t i = 13; i < 103; ++i)
      for (int64_t d = 0; d < 64; ++d) {
        ASSERT_EQ(r.d_input[p.k_at + i * p.args.forward.k_stride + d], 0);
        ASSERT_EQ(r.d_input[p.v_at + i * p.args.forward.v_stride + d], 0);
      }
    expect_right_everywhere(p);
  }
}

// A bias of 20 would vanish if it were capped at 1 too.
TEST_P(AttentionTrap, CapComesBeforeBias) {
  Shape s{"trap", {40}, {40}, 1, 1, 64};
  s.features.soft_cap = 1.0f, s.features.bias = BiasShape::heads;
  Problem p(s, dtype());
  for (double& b : p.bias) b *= 20;
  for (double& b : p.bias) b = rounded(b, DType::f32);
  const Result want = truth(p);
  double highest = 0;
  for (int64_t i = 0; i < 40; ++i) highest = std::max(highest, want.lse[i]);
  ASSERT_GT(highest, 15);  // capped scores alone give at most 1 + log 40 = 4.7
  expect_right_everywhere(p);
}

TEST_P(AttentionTrap, WindowWithoutBoundEqualsNoWindow) {
  Shape s{"trap", {70, 33}, {70, 50}, 2, 2, 64, true};
  const Result none = by_dispatch(Problem(s, dtype()));
  s.features.window_right = 70;  // beyond every key
  for (const int64_t left :
       {int64_t{70}, int64_t{1} << 20, kUnlimitedWindow - 1, kUnlimitedWindow}) {
    s.features.window_left = left;
    const Result r = by_dispatch(Problem(s, dtype()));
    EXPECT_TRUE(same_bits(r.o, none.o) && same_bits(r.d_input, none.d_input)) << left;
  }
  s.features.window_left = 0;  // not "no bound": each query sees itself alone
  const Problem self(s, dtype());
  expect_right_everywhere(self);
  EXPECT_FALSE(same_bits(by_dispatch(self).o, none.o));
}

TEST_P(AttentionTrap, VeryLargeLogits) {
  for (const float scale : {30.0f, 1000.0f})
    for (const bool sinks : {false, true}) {
      Shape s{"trap", {50, 3}, {70, 9}, 2, 1, 64};
      s.features.sinks = sinks;
      Problem p(s, dtype());
      p.args.forward.scale = scale;  // scores up to about 30 * 20 and 1000 * 20
      const Result r = by_dispatch(p);
      for (int64_t i = 0; i < 53 * p.args.forward.o_stride; ++i)
        if (i % p.args.forward.o_stride < 128) {
          ASSERT_LE(std::fabs(r.o[i]), 1.01) << i;
        }
      expect_right_everywhere(p);
    }
}

TEST_P(AttentionTrap, OddLengthsAgainstEachOther) {
  const std::vector<int32_t> lengths = {1, 3, 113, 239};
  for (const bool causal : {false, true})
    for (const auto alignment : {CausalAlignment::top_left, CausalAlignment::bottom_right}) {
      if (!causal && alignment == CausalAlignment::bottom_right) continue;
      Shape s{"trap", {}, {}, 1, 1, 64, causal};
      s.features.alignment = alignment;
      for (int32_t q : lengths)
        for (int32_t k : lengths) s.q_lengths.push_back(q), s.k_lengths.push_back(k);
      expect_right_everywhere(Problem(s, dtype()));
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionTrap, testing::all_targets(), testing::target_name);

}  // namespace
}  // namespace saturate::kernels
