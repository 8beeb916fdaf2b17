// SPDX-License-Identifier: Apache-2.0
#include "train/line_translator.h"

#include <gtest/gtest.h>

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
  LineTranslator translator(m, config, nbest);
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
    if (i % 40 == 39) translator.translate_batch(sink);
  }
  while (!translator.idle()) translator.translate_batch(sink);
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
    for (const int64_t nbest : {int64_t{0}, beam}) {
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

TEST(LineTranslator, AnErrorInAThreadEndsTheWork) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  std::fill_n(m.store->masters().as<float>(), m.store->padded_count(), NAN);
  const Threads set(3);
  TranslateConfig config;
  config.beam = 1;
  EXPECT_THROW(translated(m, config, 0, random_lines(60, 14)), model::NonFiniteScores);
}

TEST(LineTranslator, EndsWithBatchesInItsThreads) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  const Threads set(3);
  LineTranslator translator(m, {});
  for (int i = 0; i < 100; ++i) translator.add(encode_source(m.tokenizers.source, 40, "abc", 1));
  int64_t given = 0;
  translator.translate_batch([&given](std::span<const Translation>) { ++given; });
  EXPECT_FALSE(translator.idle());
  EXPECT_EQ(translator.held(), 100 - given);
}

}  // namespace
}  // namespace saturate::train
