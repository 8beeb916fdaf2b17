// SPDX-License-Identifier: Apache-2.0
#include "train/line_translator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "model/finite.h"
#include "runtime/parallel_for.h"
#include "train/random_model_test.h"

namespace saturate::train {
namespace {

std::vector<std::string> random_lines(size_t count, size_t longest) {
  std::mt19937 random(9);
  std::vector<std::string> lines(count);
  for (std::string& line : lines) {
    line.resize(random() % longest);
    for (char& c : line) c = static_cast<char>('a' + random() % 26);
  }
  return lines;
}

// Threads of the CPU for a test, and what they were after it.
class Threads {
 public:
  explicit Threads(int threads) : before_(cpu_threads()) { set_cpu_threads(threads); }
  ~Threads() { set_cpu_threads(before_); }

 private:
  int before_;
};

std::string translated(const LoadedModel& m, const TranslateConfig& config, int64_t nbest,
                       const std::vector<std::string>& lines) {
  LineTranslator translator(m, config, {.search = {.nbest = static_cast<int>(nbest)}});
  std::string all;
  const auto sink = [&all](std::span<const Translation> list) {
    for (const Translation& t : list) {
      all +=
          t.text + '|' + std::to_string(t.log_probability) + '|' + std::to_string(t.score) + '\n';
    }
    all += '\n';
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    translator.add(encode_source(m.tokenizers.source, m.config.max_positions, lines[i],
                                 static_cast<int64_t>(i) + 1));
    // Some lines come while others are being translated.
    if (i % 40 == 39) translator.advance(sink);
  }
  while (!translator.idle()) translator.advance(sink);
  EXPECT_EQ(translator.held(), 0);
  return all;
}

TEST(LineTranslator, SameTextForEachNumberOfThreadsAndSizeOfBatch) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  const std::vector<std::string> lines = random_lines(90, 14);
  for (const int64_t beam : {1, 3}) {
    TranslateConfig config;
    config.beam = beam;
    config.max_length_factor = 1;
    config.max_length_offset = 6;
    for (const int64_t nbest : {int64_t{1}, beam}) {
      std::string want;
      for (const int threads : {1, 2, 3, 5}) {
        for (const int64_t batch_tokens : {16, 200, 4096}) {
          const Threads set(threads);
          config.batch_tokens = batch_tokens;
          const std::string got = translated(m, config, nbest, lines);
          if (want.empty()) want = got;
          EXPECT_EQ(got, want) << threads << " threads, beam " << beam << ", batches of "
                               << batch_tokens << " tokens";
        }
      }
      EXPECT_GT(want.size(), 10 * lines.size()) << "nothing was translated";
    }
  }
}

// Each line begins with its prefix, and the sums of tokens are the line's.
TEST(LineTranslator, LinesHavePrefixes) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  const Threads set(2);
  TranslateConfig config;
  config.beam = 2;
  LineTranslator translator(m, config, {.search = {.prefix = {7}, .max_length = 5}});
  for (int i = 0; i < 30; ++i)
    translator.add(encode_source(m.tokenizers.source, 40, "abc", 1), {10 + i});
  int32_t line = 0;
  while (!translator.idle()) {
    translator.advance([&](std::span<const Translation> t) {
      ASSERT_EQ(t.size(), 1u);
      ASSERT_GE(t[0].ids.size(), 2u);
      EXPECT_LE(t[0].ids.size(), 7u);
      EXPECT_EQ(t[0].ids[0], 7);
      EXPECT_EQ(t[0].ids[1], 10 + line++);
      const auto& each = t[0].token_log_probabilities;
      ASSERT_EQ(each.size(), t[0].ids.size() + 1);
      EXPECT_EQ(each[0], 0.0);
      EXPECT_EQ(each[1], 0.0);
      EXPECT_NEAR(std::accumulate(each.begin(), each.end(), 0.0), t[0].log_probability, 1e-5);
    });
  }
  EXPECT_EQ(line, 30);
  translator.add(encode_source(m.tokenizers.source, 40, "abc", 1),
                 {static_cast<int32_t>(m.config.eos_id)});
  EXPECT_THROW(translator.advance([](std::span<const Translation>) {}), Error);
}

TEST(LineTranslator, AnErrorInAThreadEndsTheWork) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  std::fill_n(m.store->masters().as<float>(), m.store->padded_count(), NAN);
  const Threads set(3);
  TranslateConfig config;
  config.beam = 1;
  EXPECT_THROW(translated(m, config, 1, random_lines(60, 14)), model::NonFiniteScores);
}

TEST(LineTranslator, EndsWithBatchesInItsThreads) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  const Threads set(3);
  LineTranslator translator(m, {});
  for (int i = 0; i < 100; ++i) translator.add(encode_source(m.tokenizers.source, 40, "abc", 1));
  int64_t given = 0;
  translator.advance([&given](std::span<const Translation>) { ++given; });
  EXPECT_FALSE(translator.idle());
  EXPECT_EQ(translator.held(), 100 - given);
}

}  // namespace
}  // namespace saturate::train
