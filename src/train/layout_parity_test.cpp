// SPDX-License-Identifier: Apache-2.0
// Every axis of parallelism, alone and with others, computes what one rank computes: losses, each
// gradient, the norm, and every weight after three steps, in f64.
#include <gtest/gtest.h>

#include <cstdlib>

#include "train/layout_harness_test.h"

namespace saturate::train {
namespace {

class LayoutParity : public testing::TestWithParam<const char*> {};

TEST_P(LayoutParity, EqualsOneRank) {
  const LayoutCase c = case_of(GetParam());
  const std::string refusal = refusal_of(c);
  if (!refusal.empty()) GTEST_SKIP() << refusal;
  EXPECT_EQ(mistake_of(c), "") << "again with: LAYOUT_CASE='" << c.text()
                               << "' saturate_train_test --gtest_filter=LayoutCase.*";
}

// MODEL LAYOUT MICRO-BATCHES VARIANT, as LAYOUT_CASE takes them.
constexpr const char* kData[] = {
    "translation dp=2,zero=0 4",
    "gpt dp=4,zero=0 4 unclipped",
    "llama dp=2,zero=1 4 averaged",
    "modern-translation dp=4,zero=1 8 frozen",
    "linear dp=3,zero=1 6",
    "translation dp=4,zero=2 4",
    "gpt dp=2,zero=2 8 averaged",
    "llama dp=4,zero=3 4",
    "modern-translation dp=2,zero=3 4 frozen",
    "linear dp=4,zero=3 8 unclipped",
};
INSTANTIATE_TEST_SUITE_P(Data, LayoutParity, testing::ValuesIn(kData));

// Adapters alone train, beside frozen projections.
constexpr const char* kAdapters[] = {
    "adapted dp=2,zero=0 4",       "adapted dp=4,zero=1 4", "adapted-llama dp=2,zero=2 4 averaged",
    "adapted-llama dp=4,zero=3 4", "adapted dp=1,pp=2 4",   "adapted-llama dp=2,pp=2,zero=1 4",
};
INSTANTIATE_TEST_SUITE_P(Adapters, LayoutParity, testing::ValuesIn(kAdapters));

// Several slices a rank, and buckets with padding.
constexpr const char* kZero[] = {
    "wide-gpt dp=2,zero=1 2 unclipped", "wide-gpt dp=3,zero=1 6 averaged",
    "wide-gpt dp=4,zero=1 8 frozen",    "wide-gpt dp=4,zero=2 8",
    "wide-gpt dp=3,zero=2 3 frozen",    "wide-gpt dp=2,zero=3 4 averaged",
    "wide-gpt dp=4,zero=3 8",
};
INSTANTIATE_TEST_SUITE_P(Zero, LayoutParity, testing::ValuesIn(kZero));

constexpr const char* kTensor[] = {
    "translation dp=1,tp=2 2",    "translation dp=1,tp=4 2 unclipped",
    "gpt dp=1,tp=2 2 frozen",     "gpt dp=1,tp=4 2",
    "llama dp=1,tp=2 2 averaged", "modern-translation dp=1,tp=2 3",
    "linear dp=1,tp=2 2",
};
INSTANTIATE_TEST_SUITE_P(Tensor, LayoutParity, testing::ValuesIn(kTensor));

// Forward products in pieces, beside the transfers of others.
constexpr const char* kOverlap[] = {
    "translation dp=1,tp=2,tp_overlap=2 2",
    "gpt dp=1,tp=4,tp_overlap=2 2",
    "llama dp=1,tp=2,tp_overlap=4 2 averaged",
    "linear dp=1,tp=2,tp_overlap=3 2",
    "modern-translation dp=1,tp=2,tp_overlap=2,recompute=full 2 frozen",
    "gpt dp=1,tp=2,tp_overlap=4,recompute=selective 2",
    "wide-gpt dp=2,tp=2,zero=3,tp_overlap=2 4",
    "llama dp=1,tp=2,cp=2,tp_overlap=2 2",
    "translation dp=1,tp=2,pp=2,tp_overlap=2 4",
};
INSTANTIATE_TEST_SUITE_P(Overlap, LayoutParity, testing::ValuesIn(kOverlap));

// Without dropout no operation knows the place of its rows from its masks.
constexpr const char* kUndropped[] = {
    "translation dp=1,tp=2 2 undropped",
    "llama dp=1,tp=2,tp_overlap=2 2 undropped",
    "gpt dp=1,cp=2 2 undropped",
    "gpt dp=1,tp=2,cp=2,cp_comm_type=all_gather 2 undropped",
    "translation dp=2,pp=2,zero=3 4 undropped",
    "experts dp=2,tp=2,ep=2 4 undropped",
};
INSTANTIATE_TEST_SUITE_P(Undropped, LayoutParity, testing::ValuesIn(kUndropped));

constexpr const char* kContext[] = {
    "translation dp=1,cp=2 2",        "gpt dp=1,cp=2 2",
    "gpt dp=1,cp=4 2 averaged",       "llama dp=1,cp=2 3 frozen",
    "modern-translation dp=1,cp=2 2", "linear dp=1,cp=2 2",
};
INSTANTIATE_TEST_SUITE_P(Context, LayoutParity, testing::ValuesIn(kContext));

// Keys are gathered: asked for, or where the ranks do not divide the heads.
constexpr const char* kGathered[] = {
    "gpt dp=1,cp=2,cp_comm_type=all_gather 2",
    "gpt dp=1,cp=4,cp_comm_type=all_gather 2 averaged",
    "gpt dp=1,cp=8 2",
    "llama dp=1,cp=4 3 frozen",
    "translation dp=1,cp=2,cp_comm_type=all_gather 2",
    "modern-translation dp=1,cp=4 2",
    "llama dp=1,tp=2,cp=2 2",
    "translation dp=1,tp=2,cp=4 2",
    "llama dp=2,cp=2,zero=3,cp_comm_type=all_gather,recompute=full 4",
    "modern-translation dp=1,tp=2,cp=4,zero=2,recompute=selective 2 frozen",
    "gpt dp=1,cp=2,pp=2,cp_comm_type=all_gather 4",
};
INSTANTIATE_TEST_SUITE_P(Gathered, LayoutParity, testing::ValuesIn(kGathered));

constexpr const char* kPipeline[] = {
    "gpt dp=1,pp=2,schedule=gpipe 4",
    "gpt dp=1,pp=2 4 frozen",
    "gpt dp=1,pp=4 4 averaged",
    "llama dp=1,pp=2 3",
    "llama dp=1,pp=3 5 unclipped",
    "linear dp=1,pp=4,schedule=gpipe 2",
    "translation dp=1,pp=2 4",
    "translation dp=1,pp=4 4",
    "modern-translation dp=1,pp=3 4",
    "translation dp=1,pp=2,schedule=gpipe 3",
    "gpt dp=1,pp=2,schedule=interleaved,chunks=2 4",
    "translation dp=1,pp=2,schedule=interleaved,chunks=2 4",
    "gpt dp=1,pp=2,schedule=zero-bubble 4",
    "gpt dp=1,pp=4,schedule=zero-bubble 8",
    "translation dp=1,pp=2,schedule=zero-bubble 4",
};
INSTANTIATE_TEST_SUITE_P(Pipeline, LayoutParity, testing::ValuesIn(kPipeline));

constexpr const char* kRecompute[] = {
    "gpt dp=1,recompute=full 2",           "translation dp=1,recompute=selective 2",
    "llama dp=2,recompute=full 2",         "modern-translation dp=2,zero=3,recompute=full 2",
    "gpt dp=1,tp=2,recompute=selective 2", "gpt dp=1,pp=2,recompute=full 4",
    "gpt dp=1,cp=2,recompute=full 2",      "translation dp=2,zero=1,offload=true 2",
    "wide-gpt dp=3,zero=3,offload=true 6", "gpt dp=1,offload=true 2 averaged",
};
INSTANTIATE_TEST_SUITE_P(Recompute, LayoutParity, testing::ValuesIn(kRecompute));

constexpr const char* kPairs[] = {
    "translation dp=2,tp=2,zero=0 4", "translation dp=2,tp=2,zero=1 4",
    "gpt dp=2,tp=2,zero=2 4",         "gpt dp=2,tp=2,zero=3 4",
    "llama dp=2,cp=2,zero=1 4",       "llama dp=2,cp=2,zero=3 4 frozen",
    "gpt dp=2,pp=2,zero=0 8",         "gpt dp=2,pp=2,zero=1 8 averaged",
    "translation dp=2,pp=2,zero=2 8", "llama dp=2,pp=2,zero=3 8",
    "gpt dp=1,tp=2,cp=2 2",           "translation dp=1,tp=2,cp=2 2",
    "gpt dp=1,tp=2,pp=2 4",           "translation dp=1,tp=2,pp=2 4",
    "gpt dp=1,cp=2,pp=2 4",
};
INSTANTIATE_TEST_SUITE_P(Pairs, LayoutParity, testing::ValuesIn(kPairs));

// What stages share, reduced and gathered in every micro-batch: tables of two stages and of a V, gradients
// of weights in segments of their own, more than one slot, padding.
constexpr const char* kSharedStages[] = {
    "wide-gpt dp=2,pp=2,zero=2 8 unclipped",
    "wide-gpt dp=3,pp=2,zero=3 6 averaged",
    "gpt dp=2,pp=2,zero=3,schedule=interleaved,chunks=2 8",
    "translation dp=2,pp=2,zero=3,schedule=zero-bubble,chunks=2 4",
    "translation dp=2,pp=2,zero=2,schedule=zero-bubble 8 frozen",
    "gpt dp=2,pp=2,zero=2,schedule=gpipe,recompute=full 8",
    "experts dp=2,pp=2,ep=2,zero=3 4",
    "modern-translation dp=2,pp=3,zero=3 4",
    "gpt dp=1,pp=2,zero=3 4",
};
INSTANTIATE_TEST_SUITE_P(SharedStages, LayoutParity, testing::ValuesIn(kSharedStages));

// Hybrid sharding: several copies of the state, alone and with every other axis.
constexpr const char* kCopies[] = {
    "wide-gpt dp=4,dp_shard=2,zero=1 8 averaged",
    "wide-gpt dp=4,dp_shard=2,zero=2 8",
    "wide-gpt dp=6,dp_shard=2,zero=3 6 unclipped",
    "translation dp=6,dp_shard=3,zero=1 6 frozen",
    "modern-translation dp=4,dp_shard=2,zero=3,recompute=full 4",
    "gpt dp=4,tp=2,dp_shard=2,zero=1 4",
    "translation dp=2,tp=2,dp_shard=1,zero=3 4",
    "llama dp=4,cp=2,dp_shard=2,zero=2 4",
    "translation dp=4,pp=2,dp_shard=2,zero=1 8",
    "gpt dp=4,pp=2,dp_shard=2,zero=2,schedule=zero-bubble 8",
    "translation dp=4,pp=2,dp_shard=2,zero=3 8 averaged",
    "experts dp=4,ep=2,dp_shard=2,zero=2 4",
    "dropless dp=4,tp=2,ep=2,dp_shard=2,zero=3 4",
    "switch dp=4,pp=2,ep=2,dp_shard=2,zero=1 8",
};
INSTANTIATE_TEST_SUITE_P(Copies, LayoutParity, testing::ValuesIn(kCopies));

constexpr const char* kTriples[] = {
    "translation dp=2,tp=2,cp=2 4",      "gpt dp=2,tp=2,cp=2,zero=3 4",
    "translation dp=2,tp=2,pp=2 4",      "gpt dp=2,tp=2,pp=2,zero=2 4 frozen",
    "llama dp=2,cp=2,pp=2,zero=1 4",     "gpt dp=1,tp=2,cp=2,pp=2 4",
    "translation dp=2,tp=2,cp=2,pp=2 4", "gpt dp=2,tp=2,cp=2,pp=2,zero=3 4",
};
INSTANTIATE_TEST_SUITE_P(Triples, LayoutParity, testing::ValuesIn(kTriples));

// Experts: counts of a micro-batch whose rows are cut, ranks with others' micro-batches, and both.
constexpr const char* kExperts[] = {"experts dp=2 4",
                                    "experts dp=2,ep=2 4",
                                    "switch dp=4,ep=4 4",
                                    "dropless dp=4,ep=2,zero=0 8",
                                    "switch dp=1,tp=2 2",
                                    "experts dp=1,tp=2,ep=2 2",
                                    "dropless dp=2,tp=2,ep=4 4",
                                    "experts dp=2,tp=2,ep=2 4 frozen",
                                    "experts dp=1,cp=2 2",
                                    "dropless dp=2,ep=2,zero=1,recompute=full 4",
                                    "switch dp=4,ep=2,zero=3 4",
                                    "experts dp=2,pp=2,ep=2 4"};
INSTANTIATE_TEST_SUITE_P(Experts, LayoutParity, testing::ValuesIn(kExperts));

// Placements and lists beside those above: a V, uneven micro-batches, and with dp.
constexpr const char* kSchedules[] = {
    "gpt dp=1,pp=3,schedule=zero-bubble 5",
    "gpt dp=2,pp=2,schedule=zero-bubble,chunks=2 8",
    "llama dp=1,pp=4,schedule=zero-bubble 6",
    "linear dp=1,pp=2,chunks=2 4",
    "translation dp=1,pp=2,chunks=2 4",
    "translation dp=2,pp=2,schedule=zero-bubble,chunks=2 4",
    "modern-translation dp=1,pp=4,schedule=gpipe 4",
};
INSTANTIATE_TEST_SUITE_P(Schedules, LayoutParity, testing::ValuesIn(kSchedules));

// Gradients that travel in 16 bits are rounded once: close to what they were, and not the same.
TEST(LayoutParity, RoundedGradientsStayClose) {
  for (const char* text :
       {"wide-gpt dp=3,zero=2,reduce=bf16 6", "translation dp=2,zero=3,reduce=bf16 2"}) {
    const LayoutCase c = case_of(text);
    ASSERT_EQ(refusal_of(c), "");
    const std::vector<LayoutDistance> apart = distances(reference_of(c), result_of(c));
    EXPECT_EQ(first_beyond(apart, 0.02), "") << text;
    EXPECT_NE(first_beyond(apart, 1e-5), "") << text;
  }
}

// One case by hand.
TEST(LayoutCase, FromTheEnvironment) {
  const char* text = std::getenv("LAYOUT_CASE");
  if (text == nullptr) GTEST_SKIP() << "LAYOUT_CASE names none";
  const LayoutCase c = case_of(text);
  for (const LayoutDistance& d : distances(reference_of(c), result_of(c)))
    if (std::getenv("LAYOUT_ALL") != nullptr || !(d.relative <= kBound))
      std::printf("%-60s %.3g\n", d.what.c_str(), d.relative);
  EXPECT_EQ(mistake_of(c), "");
}

}  // namespace
}  // namespace saturate::train
