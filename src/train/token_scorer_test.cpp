// SPDX-License-Identifier: Apache-2.0
#include "train/token_scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "model/finite.h"
#include "model/generator.h"
#include "train/random_model_test.h"
#include "train/scorer.h"

namespace saturate::train {
namespace {

// fp32 logarithms of about 5, from sums in another order.
constexpr double kTolerance = 5 * 0x1p-18;
constexpr int64_t kLongest = 200;

std::vector<int32_t> random_ids(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(2 + random() % 256);
  return ids;
}

double sum_of(const std::vector<TokenScore>& scores) {
  double sum = 0;
  for (const TokenScore& s : scores) sum += s.log_probability;
  return sum;
}

// Texts of fewer rows than a product of logits has, of as many, and of several times as many.
TEST(TokenScorer, AddsUpToTheScoreOfTheText) {
  const LoadedModel m = random_model(model::ModelKind::decoder_only, kLongest);
  TokenScorer scorer(m);
  for (const size_t length : {2, 64, 65, 66, 130, 200}) {
    const std::vector<int32_t> ids = random_ids(length, static_cast<unsigned>(length));
    const auto scores = scorer.score(ids, 1, 0);
    ASSERT_EQ(scores.size(), length - 1);
    const std::vector<ScoredText> text = {{{}, ids}};
    EXPECT_NEAR(sum_of(scores), score_texts(m, 4096, text)[0].log_probability,
                kTolerance * static_cast<double>(length))
        << length;
  }
}

TEST(TokenScorer, DependsOnWhatStandsBeforeAlone) {
  const LoadedModel m = random_model(model::ModelKind::decoder_only, kLongest);
  TokenScorer scorer(m);
  const std::vector<int32_t> ids = random_ids(150, 3);
  const auto whole = scorer.score(ids, 1, 2);
  for (const size_t length : {2, 40, 128}) {
    const auto begin = scorer.score(std::span(ids).first(length), 1, 2);
    for (size_t i = 0; i < begin.size(); ++i) {
      EXPECT_EQ(begin[i].log_probability, whole[i].log_probability) << length << ' ' << i;
      EXPECT_EQ(begin[i].likeliest, whole[i].likeliest);
    }
  }
  const auto end = scorer.score(ids, 120, 2);
  ASSERT_EQ(end.size(), 30u);
  for (size_t i = 0; i < end.size(); ++i)
    EXPECT_EQ(end[i].log_probability, whole[119 + i].log_probability);
  EXPECT_TRUE(scorer.score(ids, ids.size(), 2).empty());
}

TEST(TokenScorer, TheLikeliestAreInOrderAndAllTogetherAreCertain) {
  const LoadedModel m = random_model(model::ModelKind::decoder_only, kLongest);
  const std::vector<int32_t> ids = random_ids(12, 5);
  for (const TokenScore& s : TokenScorer(m).score(ids, 1, 1 << 20)) {
    ASSERT_EQ(std::ssize(s.likeliest), m.config.vocab_target);
    EXPECT_TRUE(std::ranges::is_sorted(s.likeliest, [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    }));
    double total = 0;
    for (const auto& [id, log_probability] : s.likeliest) total += std::exp(log_probability);
    EXPECT_NEAR(total, 1, 1e-5);
  }
}

// A greedy continuation is made of the likeliest tokens, under each of several adapters.
TEST(TokenScorer, AgreesWithWhatIsGenerated) {
  const model::Lora lora = two_adapters();
  const LoadedModel m = random_model(model::ModelKind::decoder_only, kLongest, lora);
  const ParameterId b = m.store->find(lora.linears[0].b_name(1));
  std::vector<float> values(static_cast<size_t>(m.store->spec(b).size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? 2.0f : -1.0f;
  m.store->set(Stream{Device{}}, b, values.data());
  model::Generator generator(*m.transformer, *m.store, {.sequences = 1, .max_length = kLongest});
  TokenScorer scorer(m);
  std::vector<double> sums;
  for (const int32_t adapter : {-1, 0, 1}) {
    const std::vector<int32_t> prompt = random_ids(9, 7);
    model::SamplingOptions sampling{.temperature = 0, .max_tokens = 30, .stop_at_eos = false};
    sampling.adapter = adapter;
    sampling.log_probabilities = true;
    model::Continuation made;
    generator.add(prompt, sampling);
    while (generator.held() > 0)
      generator.step({}, [&](int64_t, model::Continuation c) { made = std::move(c); });
    ASSERT_EQ(made.ids.size(), 30u);
    std::vector<int32_t> ids = prompt;
    ids.insert(ids.end(), made.ids.begin(), made.ids.end());
    const auto scores = scorer.score(ids, prompt.size(), 1, adapter);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].likeliest[0].first, made.ids[i]) << adapter << ' ' << i;
      EXPECT_EQ(scores[i].likeliest[0].second, scores[i].log_probability);
      EXPECT_NEAR(scores[i].log_probability, made.log_probabilities[i], kTolerance);
    }
    sums.push_back(sum_of(scorer.score(random_ids(40, 9), 1, 0, adapter)));
  }
  EXPECT_EQ(sums[0], sums[1]) << "the first adapter adds nothing";
  EXPECT_GT(std::abs(sums[2] - sums[0]), 0.01);
}

TEST(TokenScorer, RefusesWhatItCannotScore) {
  EXPECT_THROW(TokenScorer(random_model(model::ModelKind::encoder_decoder)), Error);
  const LoadedModel m = random_model(model::ModelKind::decoder_only, kLongest);
  TokenScorer scorer(m);
  try {
    static_cast<void>(scorer.score(random_ids(201, 1), 1, 0));
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("201 tokens and the model takes 200"), std::string::npos);
  }
  m.store->masters().as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(static_cast<void>(scorer.score(random_ids(20, 1), 1, 0)), model::NonFiniteScores);
}

}  // namespace
}  // namespace saturate::train
