// SPDX-License-Identifier: Apache-2.0
// A cache that is read while it is made gives what the whole one gives, whatever the timing.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "data/batch_loader.h"
#include "data/epoch_order.h"
#include "data/packer.h"
#include "data/permutation.h"
#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

constexpr int64_t kPairs = 12000, kHeadTokens = 30000;

// A corpus that arrives through a FIFO, so that the test decides how much of it is there.
class GrowingCache : public ::testing::Test {
 protected:
  GrowingCache() : tokenizer_(test_tokenizer()) {
    for (int64_t i = 0; i < kPairs; ++i) {
      const Random4 r = philox4x32(5, static_cast<uint64_t>(i), 0);
      rows_.push_back(test_sentence(static_cast<uint64_t>(i), 1 + r.x[0] % 9) + "\t" +
                      test_sentence(static_cast<uint64_t>(i) + 7, 1 + r.x[1] % 9) + "\n");
    }
    std::string all;
    for (const std::string& row : rows_) all += row;
    dir_.write("all.tsv", all);
    EXPECT_EQ(::mkfifo(dir_.file("fifo.tsv").c_str(), 0600), 0);
  }
  TokenCacheSpec spec(const char* file, const char* cache) const {
    TokenCacheSpec s{{}, tokenizer_, tokenizer_, {}, dir_.file(cache), 2};
    s.corpus.format = CorpusFormat::tsv;
    s.corpus.paths = {dir_.file(file)};
    s.head_tokens = kHeadTokens;
    return s;
  }
  TokenCache whole() const { return open_or_build_token_cache(spec("all.tsv", "whole")); }
  // Writes rows [first, last) into the open FIFO.
  void give(int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) fifo_ << rows_[static_cast<size_t>(i)];
    fifo_ << std::flush;
  }
  // A cache that has its head, and some more, but no end.
  TokenCache started(int64_t rows = 5000, const Interrupt& interrupt = {}) {
    std::thread writer([&] {
      fifo_.open(dir_.file("fifo.tsv"));
      give(0, rows);
    });
    TokenCacheSpec s = spec("fifo.tsv", "growing");
    s.interrupt = interrupt;
    TokenCache cache = open_or_start_token_cache(s);
    writer.join();
    return cache;
  }

  SampleFolder dir_;
  Tokenizer tokenizer_;
  std::vector<std::string> rows_;
  std::ofstream fifo_;
};

PackerOptions options_of(const TokenCache& cache, int64_t epochs = 2) {
  return {.shape = suggest_shape(cache, 512, 64, 64), .seed = 3, .epochs = epochs};
}

std::vector<std::vector<PackedItem>> all_batches(const TokenCache& cache) {
  std::vector<std::vector<PackedItem>> batches;
  Packer packer(cache, options_of(cache));
  for (std::vector<PackedItem> items; packer.next(items);) batches.push_back(items);
  return batches;
}

TEST_F(GrowingCache, IsReadWhileItIsMade) {
  const TokenCache reference = whole();
  const TokenCache cache = started();
  EXPECT_EQ(cache.whole(), nullptr);
  EXPECT_TRUE(cache.continues_after_head());
  EXPECT_TRUE(reference.continues_after_head());
  const int64_t head = cache.head().counts.kept;
  EXPECT_EQ(head, reference.head().counts.kept);
  EXPECT_EQ(cache.head().target_tokens, reference.head().target_tokens);
  EXPECT_EQ(cache.head().longest_source, reference.head().longest_source);
  EXPECT_GE(cache.head().source_tokens + cache.head().target_tokens, kHeadTokens);
  const auto same = [&](int64_t pair) {
    const PairLengths lengths = reference.lengths(pair);
    ASSERT_EQ(cache.lengths(pair).source, lengths.source);
    ASSERT_EQ(cache.lengths(pair).target, lengths.target);
    std::vector<int32_t> a(static_cast<size_t>(lengths.target)), b(a);
    reference.read_target(pair, 0, lengths.target, a.data());
    cache.read_target(pair, 0, lengths.target, b.data());
    ASSERT_EQ(a, b);
  };
  for (int64_t i = 0; i < head; i += 97) same(i);
  give(5000, kPairs);
  fifo_.close();
  EXPECT_EQ(cache.await_pairs(kPairs + 1), kPairs);
  EXPECT_EQ(cache.stats().counts, reference.stats().counts);
  for (int64_t i = 0; i < kPairs; i += 97) same(i);
}

TEST_F(GrowingCache, BatchesDoNotDependOnHowMuchIsThere) {
  const auto expected = all_batches(whole());
  const TokenCache cache = started(4500);
  std::thread writer([&] {
    for (int64_t at = 4500; at < kPairs; at += 500) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      give(at, std::min(at + 500, kPairs));
    }
    fifo_.close();
  });
  const auto batches = all_batches(cache);
  writer.join();
  EXPECT_EQ(batches, expected);
  EXPECT_EQ(options_of(cache), options_of(whole()));
}

TEST_F(GrowingCache, AResumedPackerWaitsForItsPlace) {
  const TokenCache reference = whole();
  Packer first(reference, options_of(reference));
  std::vector<PackedItem> items, expected;
  while (first.state().position <= 4500) ASSERT_TRUE(first.next(items));
  const PackerState state = first.state();
  ASSERT_EQ(state.epoch, 0);
  ASSERT_TRUE(first.next(expected));
  const TokenCache cache = started(4500);
  std::thread writer([&] {
    give(4500, kPairs);
    fifo_.close();
  });
  Packer second(cache, options_of(cache), PackerState::from_json(state.to_json()));
  ASSERT_TRUE(second.next(items));
  writer.join();
  EXPECT_EQ(items, expected);
}

TEST_F(GrowingCache, ABadLineAfterTheHeadReachesTheReader) {
  const TokenCache cache = started();
  fifo_ << "no tab\n" << std::flush;
  fifo_.close();
  const PackerOptions options = options_of(cache);
  std::vector<int32_t> words(static_cast<size_t>(BatchLayout(options.shape).words));
  BatchLoader::Setup setup;
  setup.packing = options;
  setup.slots = {words.data()};
  BatchLoader loader(cache, setup);
  const std::string error = error_of([&] {
    for (LoadedBatch batch; loader.next(batch);) loader.release();
  });
  EXPECT_NE(error.find("fifo.tsv:5001: the line has 1 field"), std::string::npos) << error;
  EXPECT_NE(error_of([&] { cache.whole(); }).find("fifo.tsv:5001"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("growing")));
}

TEST_F(GrowingCache, InterruptsAndTheEndOfALoaderEndTheWaiting) {
  std::atomic<int> signal{0};
  const TokenCache cache = started(5000, Interrupt(signal));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    signal = 2;
  });
  EXPECT_THROW(cache.await_pairs(kPairs), Interrupted);
  later.join();
  signal = 0;
  const PackerOptions options = options_of(cache);
  std::vector<int32_t> words(static_cast<size_t>(BatchLayout(options.shape).words));
  BatchLoader::Setup setup;
  setup.packing = options;
  setup.state.position = cache.head().counts.kept;  // the block that waits for more
  setup.slots = {words.data()};
  BatchLoader loader(cache, setup);  // its destructor must come through
  fifo_.close();
}

TEST_F(GrowingCache, LeavesNothingWhenItIsNotFinished) {
  { const TokenCache cache = open_or_start_token_cache(spec("all.tsv", "left")); }
  EXPECT_FALSE(std::filesystem::exists(dir_.file("left.tmp")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("left.index.tmp")));
}

TEST_F(GrowingCache, AnEpochGivesEveryPairOnceAndTheFirstOneInBlocks) {
  const TokenCache cache = whole();
  const EpochOrder order(cache, PackOrder::shuffled, PackUnit::sentences, 64, 9);
  const int64_t head = order.first_block();
  ASSERT_LT(2 * head, kPairs);
  for (const int64_t epoch : {0, 1}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < kPairs; ++i) seen.insert(order.at(epoch, i));
    EXPECT_EQ(std::ssize(seen), kPairs);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), kPairs - 1);
    EXPECT_EQ(order.at(epoch, kPairs), -1);
  }
  for (int64_t i = 0; i < head; ++i) {
    EXPECT_LT(order.at(0, i), head);
    EXPECT_GE(order.at(0, head + i), head);
    EXPECT_LT(order.at(0, head + i), 2 * head);
  }
  int alike = 0;
  for (int64_t i = 0; i < head; ++i) alike += order.at(0, head + i) == order.at(0, i) + head;
  EXPECT_LT(alike, head / 100 + 5);  // about one in a random order
}

TEST_F(GrowingCache, ACorpusThatIsAllHeadIsShuffledWhole) {
  TokenCacheSpec s = spec("all.tsv", "small");
  s.head_tokens = TokenCache::kHeadTokens;
  const TokenCache cache = open_or_build_token_cache(s);
  EXPECT_FALSE(cache.continues_after_head());
  EXPECT_EQ(cache.head().counts, cache.stats().counts);
  const EpochOrder order(cache, PackOrder::shuffled, PackUnit::sentences, 64, 9);
  for (int64_t i = 0; i < kPairs; i += 11) {
    EXPECT_EQ(order.at(0, i), Permutation(kPairs, 9, 0)(i));
    EXPECT_EQ(order.at(3, i), Permutation(kPairs, 9, 3)(i));
  }
}

}  // namespace
}  // namespace saturate::data
