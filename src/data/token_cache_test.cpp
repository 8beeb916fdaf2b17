// SPDX-License-Identifier: Apache-2.0
#include "data/token_cache.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstddef>
#include <cstring>

#include "data/testing/sample_corpus.h"
#include "data/token_cache_format.h"

namespace saturate::data {
namespace {

std::vector<int32_t> target_of(const TokenCache& cache, int64_t pair) {
  std::vector<int32_t> ids(static_cast<size_t>(cache.lengths(pair).target));
  cache.read_target(pair, 0, static_cast<int64_t>(ids.size()), ids.data());
  return ids;
}

std::vector<int32_t> source_of(const TokenCache& cache, int64_t pair) {
  std::vector<int32_t> ids(static_cast<size_t>(cache.lengths(pair).source));
  cache.read_source(pair, 0, static_cast<int64_t>(ids.size()), ids.data());
  return ids;
}

TEST(TokenCache, HoldsTheTokensOfEveryPairInOrder) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  const CorpusSpec spec = test_parallel_corpus(dir, 3000);
  const TokenCache cache = test_cache(dir, spec, t);
  ASSERT_EQ(cache.pairs(), 3000);
  const auto corpus = open_corpus(spec);
  SentencePair pair;
  int64_t tokens = 0;
  for (int64_t i = 0; corpus->next(pair); ++i) {
    EXPECT_EQ(source_of(cache, i), t.encode_sentence(pair.source));
    EXPECT_EQ(target_of(cache, i), t.encode_sentence(pair.target));
    tokens += cache.lengths(i).target;
  }
  EXPECT_EQ(cache.stats().target_tokens, tokens);
}

TEST(TokenCache, BytesDoNotDependOnThreads) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  TokenCacheSpec spec{test_parallel_corpus(dir, 3000), t, t, {}, dir.file("1"), 1};
  open_or_build_token_cache(spec);
  spec.path = dir.file("4");
  spec.threads = 4;
  open_or_build_token_cache(spec);
  EXPECT_EQ(testing::read_file(dir.file("1")), testing::read_file(dir.file("4")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.file("")), {}),
            4);  // no leftovers
}

TEST(TokenCache, CountsWhatItLeavesOut) {
  const SampleFolder dir;
  const Tokenizer t = Tokenizer::bytes();
  CorpusSpec corpus;
  corpus.format = CorpusFormat::tsv;
  corpus.paths = {dir.write("c.tsv", "ab\tcd\n\tx\nx\t\nabcdefghij\tx\nx\tabcdefghij\nabcde\tx\n")};
  TokenCacheSpec spec{
      corpus, t, t, {.max_source = 8, .max_target = 8, .max_ratio = 2}, dir.file("tokens"), 1};
  const TokenCache cache = open_or_build_token_cache(spec);
  EXPECT_EQ(cache.stats().counts,
            (FilterCounts{.read = 6, .kept = 1, .empty = 2, .too_long = 2, .ratio = 1}));
  spec.filter.max_source = 2;
  const std::string error = error_of([&] { open_or_build_token_cache(spec); });
  EXPECT_NE(error.find("none of 6 lines can be used"), std::string::npos) << error;
}

TEST(TokenCache, IsMadeAgainWhenAnythingChanges) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  TokenCacheSpec spec{test_parallel_corpus(dir, 50), t, t, {}, dir.file("tokens"), 1};
  const auto origin = [&] {
    CacheOrigin o{};
    open_or_build_token_cache(spec, &o);
    return o;
  };
  EXPECT_EQ(origin(), CacheOrigin::built);
  EXPECT_EQ(origin(), CacheOrigin::reused);
  spec.filter.max_source = 100;
  EXPECT_EQ(origin(), CacheOrigin::built);
  spec.target = Tokenizer::bytes();
  EXPECT_EQ(origin(), CacheOrigin::built);
  spec.corpus = test_parallel_corpus(dir, 60);
  EXPECT_EQ(origin(), CacheOrigin::built);
  EXPECT_EQ(origin(), CacheOrigin::reused);
  dir.write("tokens", "damaged");
  EXPECT_EQ(origin(), CacheOrigin::built);
}

TEST(TokenCache, WideIdsForLargeVocabularies) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  t.save(dir.file("a.model"));
  std::string json = "{";
  for (int32_t i = 0; i < t.vocab_size(); ++i)
    json += "\"" + t.piece(i) + "\": " + std::to_string(i + 70000) + ", ";
  for (int i = 0; i < 70000; ++i)
    json +=
        "\"filler" + std::to_string(i) + "\": " + std::to_string(i) + (i + 1 < 70000 ? ", " : "}");
  const Tokenizer wide = Tokenizer::load(dir.file("a.model"), dir.write("v.json", json));
  const CorpusSpec spec = test_parallel_corpus(dir, 5);
  const TokenCache cache = test_cache(dir, spec, wide);
  EXPECT_GT(target_of(cache, 0)[0], 65535);
}

// Every byte of a small file in turn, and every length: reading gives values or an Error.
TEST(TokenCache, DamagedFilesGiveErrors) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  test_cache(dir, test_parallel_corpus(dir, 6), t);
  const std::string good = testing::read_file(dir.file("tokens"));
  CacheTrailer trailer;
  std::memcpy(&trailer, good.data() + good.size() - sizeof trailer, sizeof trailer);
  const auto use = [&](const std::string& bytes) {
    const std::string path = dir.write("bad", bytes);
    return error_of([&] {
      const TokenCache cache(path, trailer.key);
      for (int64_t i = 0; i < cache.pairs(); ++i) {
        source_of(cache, i);
        target_of(cache, i);
      }
    });
  };
  EXPECT_EQ(use(good), "");
  for (size_t n = 0; n < good.size(); n += 7) EXPECT_NE(use(good.substr(0, n)), "") << n;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    const std::string error = use(bytes);
    if (i >= good.size() - sizeof trailer) {
      EXPECT_NE(error, "") << i;
    }
  }
  // A trailer that lies with a right checksum.
  for (const int64_t lie : {int64_t{-1}, int64_t{0}, int64_t{1} << 40, INT64_MAX}) {
    for (int field = 0; field < 2; ++field) {
      CacheTrailer h = trailer;
      (field ? h.tokens : h.stats.counts.kept) = lie;
      h.checksum = XXH3_64bits(&h, offsetof(CacheTrailer, checksum));
      std::string bytes = good;
      std::memcpy(bytes.data() + bytes.size() - sizeof h, &h, sizeof h);
      EXPECT_NE(use(bytes), "");
    }
  }
}

}  // namespace
}  // namespace saturate::data
