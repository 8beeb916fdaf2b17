// SPDX-License-Identifier: Apache-2.0
#include "train/layout_compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace saturate::train {
namespace {

RunConfig small() {
  RunConfig c;
  for (const char* s : {"model.preset=tiny", "model.d_model=16", "model.heads=2", "model.ffn=32",
                        "data.vocab_size=64", "batch.target_tokens=32", "train.device=cpu"})
    set_key(c, s);
  return c;
}

TEST(LayoutCompare, EqualLayoutsAgreeAndAreToldSo) {
  const LayoutComparison c = compare_layouts(small(), "dp=1", "dp=2", 8, 2);
  EXPECT_TRUE(c.agree());
  EXPECT_EQ(c.loss_a.size(), 2u);
  EXPECT_GT(c.values.size(), 20u);
  const std::string text = to_text(c);
  EXPECT_TRUE(text.starts_with("A  dp=1\nB  dp=2")) << text;
  EXPECT_NE(text.find("2 steps of 2 micro-batches of 32 rows; ranks of one process, f64"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("A and B agree"), std::string::npos);
}

// Roundings that twenty steps of AdamW amplify are within the bounds, and what a forgotten or averaged
// sum does (a half and more) is far beyond each of them.
TEST(LayoutCompare, BoundsInFp32FollowFromRounding) {
  RunConfig config = small();
  set_key(config, "train.precision=fp32");
  for (const char* layout : {"dp=2", "tp=2", "dp=1,cp=2,cp_comm_type=all_gather"}) {
    const LayoutComparison c = compare_layouts(config, "dp=1", layout, 8, 20);
    EXPECT_TRUE(c.agree()) << to_text(c);
    for (const ComparedValue& v : c.values) EXPECT_LT(v.bound, 0.1) << v.what;
  }
}

TEST(LayoutCompare, TheFirstThatDiffersIsNamed) {
  LayoutComparison c;
  c.loss_a = c.loss_b = {1.0};
  c.values = {{"loss of step 1", 1e-12, 1e-11},
              {"gradient of encoder.layers.0.self.qkv.weight", 1e-13, 1e-11},
              {"gradient of encoder.layers.0.norm.weight", 0.5, 1e-11},
              {"weights of encoder.layers.0.norm.weight", std::nan(""), 1e-11}};
  EXPECT_FALSE(c.agree());
  EXPECT_NE(
      to_text(c).find("A and B differ: 2 of 4 losses and tensors beyond their bounds, first the "
                      "gradient of encoder.layers.0.norm.weight\n"),
      std::string::npos)
      << to_text(c);
}

TEST(LayoutCompare, WhatOneCpuHasNoRanksForIsRefused) {
  EXPECT_THROW(compare_layouts(small(), "dp=1", "dp=2,tp=3", 8, 1), Error);
}

}  // namespace
}  // namespace saturate::train
