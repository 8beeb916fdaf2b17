// SPDX-License-Identifier: Apache-2.0
#include "train/scorer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "train/random_model_test.h"

namespace saturate::train {
namespace {

std::vector<std::vector<int32_t>> random_texts(size_t count, size_t longest, int32_t eos) {
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> texts(count);
  for (auto& t : texts) {
    t.resize(1 + random() % longest);
    for (int32_t& id : t) id = static_cast<int32_t>(2 + random() % 256);
    t.back() = eos;
  }
  return texts;
}

// fp32 sums of up to 40 logarithms of about 5, each from sums in another order.
constexpr double kTolerance = 40 * 5 * 0x1p-20;

TEST(Scorer, GivesWhatBeamSearchSummedUp) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  const auto sources = random_texts(12, 30, static_cast<int32_t>(m.config.eos_id));
  model::TranslatorOptions o{
      .sentences = 8, .source_rows = 128, .max_source = 30, .max_target = 36};
  o.length_factor = 1;
  o.length_offset = 6;
  o.beam = 4;
  o.length_penalty = 0.7f;
  model::Translator translator(*m.transformer, *m.store, o);
  const auto best = translator.translate(sources);
  const auto found = translator.search(sources);
  std::vector<ScoredText> texts;
  std::vector<const model::Hypothesis*> all;
  for (size_t i = 0; i < sources.size(); ++i) {
    ASSERT_GE(found[i].size(), 1u);
    EXPECT_LE(found[i].size(), 4u);
    EXPECT_EQ(found[i][0].ids, best[i]);
    for (size_t k = 0; k < found[i].size(); ++k) {
      const model::Hypothesis& h = found[i][k];
      EXPECT_NEAR(h.score, h.log_probability / std::pow(double(h.ids.size() + 1), 0.7), 1e-6);
      if (k > 0) {
        EXPECT_LE(h.score, found[i][k - 1].score + 1e-6);
      }
      for (size_t j = 0; j < k; ++j) EXPECT_NE(h.ids, found[i][j].ids);
      texts.push_back({sources[i], h.ids});
      texts.back().target.push_back(static_cast<int32_t>(m.config.eos_id));
      all.push_back(&h);
    }
  }
  EXPECT_GT(all.size(), 2 * sources.size()) << "hardly any lists: the case shows little";
  for (const int64_t batch : {48, 4096}) {
    const std::vector<TextScore> scores = score_texts(m, batch, texts);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(scores[i].log_probability, all[i]->log_probability, kTolerance) << i;
      EXPECT_EQ(scores[i].tokens, std::ssize(texts[i].target));
    }
  }
}

// The chance of a text is the product of the chances of its tokens after those before.
TEST(Scorer, LanguageModelGivesTheFirstToken) {
  const LoadedModel m = random_model(model::ModelKind::decoder_only);
  const auto eos = static_cast<int32_t>(m.config.eos_id);
  std::vector<ScoredText> texts;
  for (auto& t : random_texts(9, 35, eos)) texts.push_back({{}, t});
  texts.push_back({{}, {eos}});  // a blank line: nothing to predict
  const std::vector<TextScore> scores = score_texts(m, 4096, texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(scores[i].tokens, std::ssize(texts[i].target) - 1);
    EXPECT_EQ(score_texts(m, 16, std::span(&texts[i], 1))[0].log_probability,
              scores[i].log_probability);
  }
  EXPECT_EQ(scores.back().log_probability, 0);
  double total = 0;  // over every id that could follow
  std::vector<ScoredText> pairs;
  for (int32_t id = 0; id < m.config.vocab_target; ++id) pairs.push_back({{}, {17, id}});
  for (const TextScore& s : score_texts(m, 512, pairs)) total += std::exp(s.log_probability);
  EXPECT_NEAR(total, 1, 1e-5);
  // Longer than the model takes: pieces of 40, each with its first token given.
  std::vector<int32_t> long_ids(100, 65);
  for (size_t i = 0; i < long_ids.size(); ++i) long_ids[i] += static_cast<int32_t>(i % 7);
  const std::vector<ScoredText> whole = {{{}, long_ids}};
  double pieces = 0;
  for (const auto& [from, to] : {std::pair{0, 41}, std::pair{40, 81}, std::pair{80, 100}}) {
    const std::vector<ScoredText> piece = {{{}, {long_ids.begin() + from, long_ids.begin() + to}}};
    pieces += score_texts(m, 4096, piece)[0].log_probability;
  }
  const TextScore score = score_texts(m, 4096, whole)[0];
  EXPECT_EQ(score.tokens, 99);
  EXPECT_NEAR(score.log_probability, pieces, kTolerance);
}

TEST(Scorer, NamesTheLineThatIsTooLong) {
  const LoadedModel m = random_model(model::ModelKind::encoder_decoder);
  const std::vector<ScoredText> texts = {{{5, 0}, {5, 0}}, {{5, 0}, std::vector<int32_t>(41, 5)}};
  try {
    score_texts(m, 4096, texts);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("target of line 2 has 41 tokens"), std::string::npos);
  }
  EXPECT_TRUE(score_texts(m, 4096, {}).empty());
}

}  // namespace
}  // namespace saturate::train
