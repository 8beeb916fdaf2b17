// SPDX-License-Identifier: Apache-2.0
#include "data/packer.h"

#include <gtest/gtest.h>

#include <map>

#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

using Items = std::vector<PackedItem>;

class PackerTest : public ::testing::Test {
 protected:
  SampleFolder dir_;
  Tokenizer tokenizer_ = test_tokenizer();
};

TEST_F(PackerTest, FillsBothBudgetsAndTakesEverySentenceOnceAnEpoch) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 6000), tokenizer_);
  PackerOptions options{.shape = suggest_shape(cache, 2048, 200, 200), .seed = 4};
  Packer packer(cache, options);
  Items items;
  std::map<std::pair<int64_t, int64_t>, int> seen;
  int64_t source = 0, target = 0;
  constexpr int kBatches = 300;
  for (int b = 0; b < kBatches; ++b) {
    ASSERT_TRUE(packer.next(items));
    int64_t s = 0, t = 0;
    for (const PackedItem& item : items) {
      s += item.source;
      t += item.target;
      ++seen[{item.epoch, item.index}];
    }
    EXPECT_LE(s, options.shape.source_rows);
    EXPECT_LE(t, options.shape.target_rows);
    EXPECT_LE(static_cast<int64_t>(items.size()), options.shape.sequences);
    source += s;
    target += t;
  }
  EXPECT_GE(static_cast<double>(target),
            0.98 * kBatches * static_cast<double>(options.shape.target_rows));
  EXPECT_GE(static_cast<double>(source),
            0.98 * kBatches * static_cast<double>(options.shape.source_rows));
  const PackerState state = packer.state();
  ASSERT_GE(state.epoch, 2);
  std::map<int64_t, int64_t> per_epoch;
  for (const auto& [key, times] : seen) {
    EXPECT_EQ(times, 1);
    ++per_epoch[key.first];
  }
  EXPECT_EQ(per_epoch[0], 6000);
  EXPECT_EQ(per_epoch[1], 6000);
}

TEST_F(PackerTest, PaddedBatchesHoldWhatPaddingLeavesRoomFor) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 3000), tokenizer_);
  const PackerOptions options{
      .shape = suggest_shape(cache, 2048, 200, 200), .padding = Padding::to_longest, .epochs = 1};
  Packer packer(cache, options);
  Items items;
  int64_t sentences = 0;
  while (packer.next(items)) {
    int64_t source = 0, target = 0;
    for (const PackedItem& item : items) {
      source = std::max(source, item.source);
      target = std::max(target, item.target);
    }
    const auto count = static_cast<int64_t>(items.size());
    EXPECT_LE(count * source, options.shape.source_rows);
    EXPECT_LE(count * target, options.shape.target_rows);
    sentences += count;
  }
  EXPECT_EQ(sentences, 3000);
}

TEST_F(PackerTest, PaddingOfTheShapeLeavesBatchesAsTheyAre) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 3000), tokenizer_);
  const PackerOptions options{.shape = suggest_shape(cache, 1000, 100, 100), .epochs = 1};
  PackerOptions padded = options;
  padded.shape.source_rows += padded.source_padding = 24;
  padded.shape.target_rows += padded.target_padding = 56;
  Packer one(cache, options), other(cache, padded);
  for (Items a, b; one.next(a);) {
    ASSERT_TRUE(other.next(b));
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(one.state(), other.state());
}

TEST_F(PackerTest, GoesOnFromItsStateExactly) {
  for (const bool documents : {false, true}) {
    const CorpusSpec corpus = documents ? test_documents(dir_, 500, CorpusFormat::lines)
                                        : test_parallel_corpus(dir_, 500);
    const TokenCache cache = test_cache(dir_, corpus, tokenizer_);
    const PackerOptions options{.shape = documents ? suggest_shape(cache, 256, 0, 16)
                                                   : suggest_shape(cache, 256, 200, 200)};
    Packer whole(cache, options);
    Items a, b;
    for (int i = 0; i < 150; ++i) {  // over an epoch's end
      const PackerState state = PackerState::from_json(whole.state().to_json());
      Packer resumed(cache, options, state);
      EXPECT_EQ(resumed.state(), whole.state());
      ASSERT_TRUE(resumed.next(b));
      ASSERT_TRUE(whole.next(a));
      ASSERT_EQ(a, b);
    }
    EXPECT_EQ(whole.state().batches, 150);
    EXPECT_GE(whole.state().epoch, 1);
  }
}

TEST_F(PackerTest, OrderDependsOnTheSeedAlone) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 500), tokenizer_);
  const auto first = [&](uint64_t seed) {
    Packer packer(cache, {.shape = suggest_shape(cache, 512, 200, 200), .seed = seed});
    Items items;
    packer.next(items);
    return items;
  };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

TEST_F(PackerTest, OnePassInOrderThenEnds) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 100), tokenizer_);
  Packer packer(
      cache,
      {.shape = suggest_shape(cache, 512, 200, 200), .order = PackOrder::sequential, .epochs = 1});
  Items items;
  std::vector<int> seen(100);
  while (packer.next(items))
    for (const PackedItem& item : items) ++seen[static_cast<size_t>(item.index)];
  EXPECT_EQ(seen, std::vector<int>(100, 1));
  EXPECT_FALSE(packer.next(items));
}

TEST_F(PackerTest, CutsDocumentsToPiecesWithoutGaps) {
  const TokenCache cache =
      test_cache(dir_, test_documents(dir_, 300, CorpusFormat::lines), tokenizer_);
  const BatchShape shape = suggest_shape(cache, 512, 0, 16);
  Packer packer(cache, {.shape = shape, .epochs = 1});
  Items items;
  std::map<int64_t, std::map<int64_t, int64_t>> pieces;  // document -> first -> rows
  int64_t rows = 0, batches = 0;
  while (packer.next(items)) {
    ++batches;
    for (const PackedItem& item : items) {
      pieces[item.index][item.first] = item.target;
      rows += item.target;
    }
  }
  EXPECT_EQ(pieces.size(), static_cast<size_t>(cache.pairs()));
  for (const auto& [document, parts] : pieces) {
    int64_t next = 0;
    for (const auto& [first, length] : parts) {
      EXPECT_EQ(first, next);
      EXPECT_LE(length, 16);
      next += length;
    }
    EXPECT_EQ(next, cache.lengths(document).target - 1);
  }
  EXPECT_GE(static_cast<double>(rows),
            0.98 * static_cast<double>((batches - 1) * shape.target_rows));
}

TEST_F(PackerTest, StreamFillsEveryRow) {
  const TokenCache cache =
      test_cache(dir_, test_documents(dir_, 300, CorpusFormat::stream), tokenizer_);
  const BatchShape shape = suggest_shape(cache, 100, 0, 32, PackUnit::stream);
  EXPECT_EQ(shape.target_rows, 128);
  EXPECT_EQ(shape.sequences, 4);
  Packer packer(cache, {.shape = shape, .unit = PackUnit::stream});
  Items items;
  for (int b = 0; b < 50; ++b) {
    ASSERT_TRUE(packer.next(items));
    EXPECT_EQ(items.size(), 4u);
  }
}

TEST_F(PackerTest, RefusesWhatCannotWork) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 100), tokenizer_);
  const BatchShape good = suggest_shape(cache, 512, 200, 200);
  EXPECT_NE(error_of([&] { suggest_shape(cache, 100, 200, 200); }).find("cannot hold"),
            std::string::npos);
  BatchShape shape = good;
  shape.max_target = 3;
  Items items;
  EXPECT_NE(
      error_of([&] { Packer(cache, {.shape = shape}).next(items); }).find("filter the corpus"),
      std::string::npos);
  shape = good;
  shape.source_rows = 0;
  EXPECT_NE(error_of([&] { Packer(cache, {.shape = shape}); }).find("needs source rows"),
            std::string::npos);
  for (const char* text : {"", "{}", "[]", R"({"batches":0,"epoch":0,"position":101,"carried":[]})",
                           R"({"batches":0,"epoch":-1,"position":0,"carried":[]})",
                           R"({"batches":"x","epoch":0,"position":0,"carried":[]})",
                           R"({"batches":0,"epoch":0,"position":0,"carried":[[0,100,0]]})",
                           R"({"batches":0,"epoch":0,"position":0,"carried":[[0]]})",
                           R"({"batches":0,"epoch":0,"position":0,"carried":[[0,0,-1]]})"})
    EXPECT_NE(error_of([&] { Packer(cache, {.shape = good}, PackerState::from_json(text)); }), "")
        << text;
}

}  // namespace
}  // namespace saturate::data
