// SPDX-License-Identifier: Apache-2.0
#include "train/parallel_setup.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/hf_weights.h"
#include "train/model_setup.h"

namespace saturate::train {
namespace {

RunConfig with(const char* layout) {
  RunConfig c;
  set_parallel(c, layout);
  return c;
}

std::string refusal(const char* layout, int ranks) {
  model::ModelConfig model = model::model_preset("base");
  model.kv_heads = 2;
  try {
    check_layout(with(layout), model, ranks);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ParallelSetup, DataParallelTakesTheRanksThatOtherAxesLeave) {
  const parallel::MeshExtents e = mesh_extents(with("tp=2,pp=3,ep=2").parallel, 12);
  EXPECT_EQ(e.tp, 2);
  EXPECT_EQ(e.cp, 1);
  EXPECT_EQ(e.dp, 2);
  EXPECT_EQ(e.pp, 3);
  EXPECT_EQ(e.ep, 2);
  EXPECT_EQ(mesh_extents({}, 5).dp, 5);
  EXPECT_EQ(row_multiple(with("tp=2,cp=4,pp=2").parallel), 64);
}

TEST(ParallelSetup, TheLayoutIsToldAsItsFlagTakesIt) {
  EXPECT_EQ(layout_text(with("zero=0").parallel, 1), "dp=1");
  const std::string text = layout_text(
      with("tp=2,pp=2,chunks=2,schedule=interleaved,zero=3,recompute=full").parallel, 8);
  EXPECT_EQ(text, "dp=2,tp=2,pp=2,zero=3,schedule=interleaved,chunks=2,recompute=full");
  EXPECT_EQ(layout_text(with(text.c_str()).parallel, 8), text);
}

TEST(ParallelSetup, RefusalsNameValueRuleAndWayOut) {
  EXPECT_EQ(refusal("", 4), "");
  EXPECT_EQ(refusal("dp=4", 4), "");
  EXPECT_EQ(refusal("dp=3", 4),
            "[parallel] parallel.dp = 3 x parallel.tp = 1 x parallel.cp = 1 x parallel.pp = 1 are "
            "3 ranks, "
            "and this run has 4; "
            "start it on 3 (torchrun --nproc-per-node, mpirun -n, srun -n), or change these keys");
}

TEST(ParallelSetup, ABaseInFourBitsIsNotCut) {
  const auto refusal_of = [](const char* layout) {
    RunConfig c = with(layout);
    c.lora.rank = 4;
    c.lora.quantize_base = "nf4";
    model::ModelConfig model = model::model_preset("base");
    model.vocab_source = model.vocab_target = 1000;
    model.lora = adapters_of(c, model::hf_tensor_mapping(model), "base");
    try {
      check_layout(c, model, 2);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal_of("dp=2,zero=3"), "");
  EXPECT_NE(refusal_of("pp=2").find("lora.quantize_base = nf4"), std::string::npos);
  EXPECT_NE(refusal_of("tp=2").find("use dp"), std::string::npos);
}

TEST(ParallelSetup, MuonWantsWholeMatrices) {
  const auto muon = [](const char* layout, int ranks, const char* moments = "fp32") {
    RunConfig c = with(layout);
    c.optimizer.kind = "muon";
    c.optimizer.moments = moments;
    try {
      check_layout(c, model::model_preset("base"), ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(muon("", 1), "");
  EXPECT_EQ(muon("zero=0", 2), "");
  EXPECT_EQ(muon("zero=0,pp=2", 2), "");
  EXPECT_EQ(muon("", 2),
            "[parallel] optimizer.kind = muon works on whole matrices in fp32, and parallel.zero = "
            "auto shares them out; add parallel.zero = 0");
  EXPECT_NE(muon("tp=2,zero=0", 2).find("parallel.tp = 2 cuts them"), std::string::npos);
  EXPECT_NE(muon("zero=0,offload=true", 1).find("parallel.offload = true"), std::string::npos);
  EXPECT_NE(muon("", 1, "8bit").find("optimizer.moments = 8bit is AdamW's"), std::string::npos);
}

TEST(ParallelSetup, AdafactorMayShareElementsOfMatrices) {
  const auto refused = [](const char* layout, int ranks) {
    RunConfig c = with(layout);
    c.optimizer.kind = "adafactor";
    try {
      check_layout(c, model::model_preset("base"), ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const char* layout : {"", "zero=2", "zero=3", "zero=1,pp=2"})
    EXPECT_EQ(refused(layout, 4), "") << layout;
  EXPECT_EQ(
      refused("tp=2", 2),
      "[parallel] optimizer.kind = adafactor works on whole matrices in fp32, and parallel.tp "
      "= 2 cuts them; use dp, or pp");
}

class RoundedOperands : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Precisions, RoundedOperands, ::testing::Values("fp8", "mxfp8", "nvfp4"));
TEST_P(RoundedOperands, WantWholeMatricesThatTrain) {
  RunConfig c = with("tp=2");
  c.train.precision = GetParam();
  model::ModelConfig m = model::model_preset("base");
  const auto refused = [&](int ranks) {
    try {
      check_layout(c, m, ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(2).find("parallel.tp = 2 cuts them"), std::string::npos);
  EXPECT_NE(refused(2).find(GetParam()), std::string::npos);
  c.parallel = with("zero=3,pp=2").parallel;
  EXPECT_EQ(refused(4), "");
  m.lora.rank = 8;
  m.lora.linears.resize(1);
  EXPECT_NE(refused(4).find("lora.rank"), std::string::npos);
}

TEST(ParallelSetup, CopiesAreRefusedWhereTheySaveNothing) {
  EXPECT_EQ(refusal("dp_shard=2", 4), "");
  EXPECT_EQ(layout_text(with("dp_shard=2,zero=2").parallel, 4), "dp=4,zero=2,dp_shard=2");
  EXPECT_EQ(
      refusal("dp_shard=3", 4),
      "[parallel] parallel.dp_shard = 3 must divide the 4 ranks of dp; choose a divisor of 4");
  EXPECT_EQ(refusal("dp_shard=2,zero=0", 4),
            "[parallel] parallel.dp_shard = 2 with parallel.zero = 0: nothing is shared out; leave "
            "out dp_shard, or take zero = 1, 2 or 3 and dp_shard = 2 or more");
  EXPECT_EQ(refusal("dp_shard=1,zero=3", 4).substr(0, 59),
            "[parallel] parallel.dp_shard = 1 with parallel.zero = 3: no");
}

TEST(ParallelSetup, SumsInEightBitsAreForCopies) {
  for (const char* right :
       {"zero=0", "dp_shard=2", "dp_shard=2,zero=3", "tp=2,dp_shard=1,zero=1"}) {
    const std::string layout = std::string(right) + ",reduce_between=int8";
    EXPECT_EQ(refusal(layout.c_str(), 4), "") << right;
    EXPECT_TRUE(layout_text(with(layout.c_str()).parallel, 4).ends_with(",reduce_between=int8"));
  }
  EXPECT_EQ(
      refusal("zero=3,reduce_between=int8", 4),
      "[parallel] parallel.reduce_between = int8 is for sums over several copies of the "
      "state, and with parallel.zero = 3, dp_shard = 0 the 4 ranks of dp share one; add "
      "parallel.dp_shard = the ranks of a host, or parallel.zero = 0 where each host has one");
  EXPECT_NE(refusal("dp_shard=4,reduce_between=int8", 4), "");
  EXPECT_EQ(refusal("reduce_between=int8", 1),
            "[parallel] parallel.reduce_between = int8 is for sums over several copies of the "
            "state, and with parallel.zero = auto, dp_shard = 0 the one rank of dp has one; set it "
            "to fp32");
  const ParallelOptions coded = resolve_parallel(with("zero=0,reduce_between=int8").parallel, 2);
  EXPECT_NO_THROW(check_sums(coded, DType::bf16));
  EXPECT_NO_THROW(check_sums({}, DType::f16));
  EXPECT_THROW(check_sums(coded, DType::f16), Error);
}

}  // namespace
}  // namespace saturate::train
