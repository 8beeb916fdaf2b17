// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/batch_fill.h"
#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

using Words = std::vector<int32_t>;

class BatchTest : public ::testing::Test {
 protected:
  // Words of every batch that a loader gives, up to `limit`.
  std::vector<Words> load(const TokenCache& cache, const PackerOptions& options, int rank,
                          int ranks, size_t limit, PackerState state = {},
                          PackerState* after = nullptr) {
    const int64_t words = BatchLayout(options.shape).words;
    std::vector<Words> memory(3, Words(static_cast<size_t>(words), -77));
    BatchLoader::Setup setup{options, rank, ranks, 2, {}, std::move(state)};
    for (Words& m : memory) setup.slots.push_back(m.data());
    BatchLoader loader(cache, setup);
    std::vector<Words> batches;
    LoadedBatch batch;
    while (batches.size() < limit && loader.next(batch)) {
      batches.emplace_back(batch.words, batch.words + words);
      loader.release();
    }
    if (after != nullptr) *after = loader.state();
    return batches;
  }
  SampleFolder dir_;
  Tokenizer tokenizer_ = test_tokenizer();
};

void expect_sound_side(const Words& w, const SideLayout& side, int64_t rows, int64_t sequences) {
  const int32_t valid = w[side.valid];
  EXPECT_EQ(w[side.cu], 0);
  for (int64_t s = 0; s < sequences; ++s) {
    ASSERT_LE(w[side.cu + s], w[side.cu + s + 1]);
    for (int32_t r = w[side.cu + s]; r < w[side.cu + s + 1]; ++r)
      EXPECT_EQ(w[side.positions + r], r - w[side.cu + s]);
  }
  EXPECT_EQ(w[side.cu + sequences], valid);
  std::vector<char> seen(static_cast<size_t>(valid));
  for (int32_t i = 0; i < valid; ++i) {
    const int32_t row = w[side.order + i];
    ASSERT_TRUE(row >= 0 && row < valid);
    seen[static_cast<size_t>(row)] = 1;
    if (i == 0) continue;
    const int32_t before = w[side.order + i - 1];
    EXPECT_TRUE(w[side.ids + before] < w[side.ids + row] ||
                (w[side.ids + before] == w[side.ids + row] && before < row));
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), valid);
  for (int64_t r = valid; r < rows; ++r) {
    EXPECT_EQ(w[side.ids + r], 0);
    EXPECT_EQ(w[side.positions + r], 0);
  }
}

TEST_F(BatchTest, TranslationBatchesHoldTheSentences) {
  const CorpusSpec spec = test_parallel_corpus(dir_, 200);
  const TokenCache cache = test_cache(dir_, spec, tokenizer_);
  const PackerOptions options{
      .shape = suggest_shape(cache, 1024, 200, 200), .order = PackOrder::sequential, .epochs = 1};
  const BatchLayout l(options.shape);
  std::vector<std::string> expected, got;
  const auto corpus = open_corpus(spec);
  SentencePair pair;
  while (corpus->next(pair)) expected.push_back(pair.source + "|" + pair.target);
  for (const Words& w : load(cache, options, 0, 1, 1000)) {
    expect_sound_side(w, l.source, l.shape.source_rows, l.shape.sequences);
    expect_sound_side(w, l.target, l.shape.target_rows, l.shape.sequences);
    for (int64_t s = 0; s < l.shape.sequences; ++s) {
      const Words source(&w[l.source.ids + w[l.source.cu + s]],
                         &w[l.source.ids + w[l.source.cu + s + 1]]);
      const int32_t begin = w[l.target.cu + s], end = w[l.target.cu + s + 1];
      if (begin == end) continue;
      const Words input(&w[l.target.ids + begin], &w[l.target.ids + end]);
      const Words labels(&w[l.labels + begin], &w[l.labels + end]);
      EXPECT_EQ(source.back(), tokenizer_.eos_id());
      EXPECT_EQ(input.front(), tokenizer_.pad_id());
      EXPECT_EQ(labels.back(), tokenizer_.eos_id());
      EXPECT_TRUE(std::equal(input.begin() + 1, input.end(), labels.begin()));
      got.push_back(tokenizer_.decode(source) + "|" + tokenizer_.decode(labels));
    }
    for (int64_t r = w[l.target.valid]; r < l.shape.target_rows; ++r)
      EXPECT_EQ(w[l.labels + r], -1);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(got.begin(), got.end());
  EXPECT_EQ(got, expected);
}

TEST_F(BatchTest, LanguageModelLabelsAreTheNextTokens) {
  const TokenCache cache =
      test_cache(dir_, test_documents(dir_, 300, CorpusFormat::lines), tokenizer_);
  Words stream(static_cast<size_t>(cache.stats().target_tokens));
  cache.read_stream(0, cache.stats().target_tokens, stream.data());
  for (const auto unit : {PackUnit::sentences, PackUnit::stream}) {
    const PackerOptions options{
        .shape = suggest_shape(cache, 256, 0, 16, unit), .unit = unit, .epochs = 1};
    const BatchLayout l(options.shape);
    int64_t ends = 0;
    for (const Words& w : load(cache, options, 0, 1, 1000)) {
      expect_sound_side(w, l.target, l.shape.target_rows, l.shape.sequences);
      for (int64_t s = 0; s < l.shape.sequences; ++s) {
        const int32_t begin = w[l.target.cu + s], end = w[l.target.cu + s + 1];
        if (begin == end) continue;
        Words piece(&w[l.target.ids + begin], &w[l.target.ids + end]);
        EXPECT_TRUE(std::equal(piece.begin() + 1, piece.end(), &w[l.labels + begin]));
        piece.push_back(w[l.labels + end - 1]);
        EXPECT_NE(std::search(stream.begin(), stream.end(), piece.begin(), piece.end()),
                  stream.end());
        ends += piece.back() == tokenizer_.eos_id();
      }
    }
    if (unit == PackUnit::sentences) {
      EXPECT_EQ(ends, cache.pairs());
    }
  }
}

TEST_F(BatchTest, RanksShareOneGlobalSequence) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 400), tokenizer_);
  const PackerOptions options{.shape = suggest_shape(cache, 512, 200, 200)};
  const auto all = load(cache, options, 0, 1, 12);
  for (int rank = 0; rank < 3; ++rank) {
    PackerState after;
    const auto own = load(cache, options, rank, 3, 4, {}, &after);
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_EQ(own[i], all[i * 3 + static_cast<size_t>(rank)]);
    EXPECT_EQ(after.batches, 12);
  }
}

TEST_F(BatchTest, ResumesOnAnotherNumberOfRanks) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 400), tokenizer_);
  const PackerOptions options{.shape = suggest_shape(cache, 512, 200, 200)};
  const auto all = load(cache, options, 0, 1, 10);
  PackerState after;
  load(cache, options, 1, 2, 3, {}, &after);
  const auto rest = load(cache, options, 0, 1, 4, PackerState::from_json(after.to_json()));
  for (size_t i = 0; i < rest.size(); ++i) EXPECT_EQ(rest[i], all[6 + i]);
}

TEST_F(BatchTest, AFiniteSequenceEndsAlikeOnAllRanks) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 100), tokenizer_);
  const PackerOptions options{.shape = suggest_shape(cache, 512, 200, 200), .epochs = 1};
  const size_t total = load(cache, options, 0, 1, 1000).size();
  for (const int ranks : {2, 3, 4})
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(load(cache, options, rank, ranks, 1000).size(), (total + ranks - 1) / ranks);
}

TEST_F(BatchTest, ErrorsOfWorkersReachTheCaller) {
  const TokenCache cache = test_cache(dir_, test_parallel_corpus(dir_, 100), tokenizer_);
  PackerOptions options{.shape = suggest_shape(cache, 512, 200, 200)};
  options.shape.max_source = 2;
  EXPECT_NE(error_of([&] { load(cache, options, 0, 1, 5); }).find("filter the corpus"),
            std::string::npos);
}

}  // namespace
}  // namespace saturate::data
