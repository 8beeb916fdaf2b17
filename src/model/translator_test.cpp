// SPDX-License-Identifier: Apache-2.0
// Cached beam search against a search that decodes every prefix anew and keeps whole hypotheses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "kernels/decode/beam_step.h"
#include "model/finite.h"
#include "model/search_reference_test.h"
#include "model/translator.h"

namespace saturate::model {
namespace {

class TranslatorSearch : public ::testing::TestWithParam<Variant> {};

TEST_P(TranslatorSearch, EqualsSearchWithoutCache) {
  const ModelConfig config = tiny(GetParam());
  // Doubles: no two hypotheses are so close that rounding decides between them.
  TestModel m(config, DType::f64, {}, 3);
  const ReferenceDecoder decoder(m);
  const auto sources = make_sources(9, 7);
  size_t different = 0, tokens = 0;
  std::vector<std::vector<int32_t>> greedy;
  for (const int beam : {1, 2, 5}) {
    for (const float penalty : {0.0f, 0.7f, 2.0f}) {
      TranslatorOptions o;
      o.sentences = 4;
      o.source_rows = 24;
      o.max_source = 8;
      o.max_target = 14;
      o.length_factor = 1.5f;
      o.length_offset = 3;
      o.beam = beam;
      o.length_penalty = penalty;
      Translator translator(m.model, m.store, o);
      const auto got = translator.translate(sources);
      ASSERT_EQ(got.size(), sources.size());
      for (size_t i = 0; i < sources.size(); ++i) {
        EXPECT_EQ(got[i], without_end(search(decoder, config, sources[i], o).front()))
            << "source " << i << " beam " << beam << " penalty " << penalty;
        tokens += got[i].size();
      }
      if (greedy.empty()) greedy = got;
      different += got != greedy ? 1 : 0;
      EXPECT_EQ(got, translator.translate(sources)) << "a second call";
    }
  }
  EXPECT_GT(different, 0u) << "a wider beam finds the same: the case shows nothing";
  EXPECT_GT(tokens, sources.size()) << "nothing but ends";
}

INSTANTIATE_TEST_SUITE_P(Models, TranslatorSearch,
                         ::testing::Values(Variant{"post_norm_sinusoidal", [](ModelConfig&) {}},
                                           Variant{"pre_norm_learned",
                                                   [](ModelConfig& c) {
                                                     c.norm_position = NormPosition::pre;
                                                     c.final_norm = true;
                                                     c.positions = PositionKind::learned;
                                                   }},
                                           Variant{"rotary_grouped_gated",
                                                   [](ModelConfig& c) {
                                                     c.heads = 4;
                                                     c.kv_heads = 2;
                                                     c.positions = PositionKind::rotary;
                                                     c.norm = kernels::NormKind::rms_norm;
                                                     c.gated = true;
                                                     c.biases = false;
                                                     c.shared_embeddings = c.tied_output = false;
                                                   }}),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(Translator, SentenceDoesNotDependOnItsBatch) {
  for (const DType type : {DType::f32, DType::f64}) {
    TestModel m(tiny({"", [](ModelConfig&) {}}), type, {}, 4);
    TranslatorOptions o;
    o.sentences = 16;
    o.source_rows = 80;
    o.max_source = 9;
    o.max_target = 20;
    o.beam = 3;
    Translator translator(m.model, m.store, o);
    const auto sources = make_sources(40, 9);
    const auto together = translator.translate(sources);
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(translator.translate(std::span(&sources[i], 1))[0], together[i]) << "source " << i;
    }
  }
}

// Each sentence with wishes of its own, all in one batch, against the search without a cache: every
// hypothesis with its score and those of its tokens.
TEST(Translator, FollowsTheWishesOfEachSentence) {
  const ModelConfig config = tiny({"", [](ModelConfig&) {}});
  TestModel m(config, DType::f64, {}, 3);
  const ReferenceDecoder decoder(m);
  const auto sources = make_sources(10, 7);
  for (const int beam : {1, 4}) {
    const std::vector<SearchOptions> wishes{
        {},
        {.nbest = beam},
        {.nbest = beam, .prefix = {7}, .length_penalty = 0.3f},
        {.nbest = beam, .prefix = {5, 5, 9}, .repetition_penalty = 1.4f},
        {.repetition_penalty = 0.5f},
        {.nbest = beam, .no_repeat_ngram = 2, .min_length = 11},
        {.no_repeat_ngram = 1, .min_length = 5},
        {.max_length = 2},
        {.nbest = beam, .prefix = {4, 6}, .min_length = 3, .max_length = 3},
        {.prefix = std::vector<int32_t>(13, 8)}};
    TranslatorOptions o{.sentences = 4, .source_rows = 24, .max_source = 8, .max_target = 14};
    o.length_factor = 1.5f;
    o.length_offset = 4;
    o.beam = beam;
    o.suppressed = {12};
    Translator translator(m.model, m.store, o);
    std::vector<std::vector<Hypothesis>> got(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(translator.add(sources[i], wishes[i]), static_cast<int64_t>(i));
    }
    EXPECT_EQ(translator.held(), 10);
    EXPECT_EQ(translator.room(), 0);
    while (translator.held() > 0) {
      translator.step([&](int64_t ticket, std::vector<Hypothesis> found) {
        got[static_cast<size_t>(ticket)] = std::move(found);
      });
    }
    EXPECT_EQ(translator.room(), 4);
    for (size_t i = 0; i < sources.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "source " << i << " beam " << beam);
      const std::vector<Listed> want = search(decoder, config, sources[i], o, wishes[i]);
      ASSERT_EQ(got[i].size(), want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        const Hypothesis& h = got[i][k];
        EXPECT_EQ(h.ids, without_end(want[k]));
        EXPECT_NEAR(h.log_probability, want[k].score, 1e-9);
        ASSERT_EQ(h.token_log_probabilities.size(), want[k].steps.size());
        for (size_t j = 0; j < want[k].steps.size(); ++j)
          EXPECT_NEAR(h.token_log_probabilities[j], want[k].steps[j], 1e-9) << j;
      }
    }
  }
}

// Each of the likeliest tokens behind the prefix, with the search that begins with it. Without a length
// penalty what a token costs is the same for all that begins with it.
TEST(Translator, AlternativesAreSearchesFromTheLikeliestTokens) {
  const ModelConfig config = tiny({"", [](ModelConfig&) {}});
  TestModel m(config, DType::f64, {}, 3);
  const ReferenceDecoder decoder(m);
  for (const int width : {1, 3}) {
    constexpr int kAlternatives = 4;
    TranslatorOptions o{.sentences = 4, .source_rows = 24, .max_source = 8, .max_target = 14};
    o.beam = kAlternatives * width;
    o.length_penalty = 0.0f;
    Translator translator(m.model, m.store, o);
    for (const std::vector<int32_t>& prefix : {std::vector<int32_t>{}, {7, 5}}) {
      const auto sources = make_sources(6, 7);
      const SearchOptions wish{
          .nbest = kAlternatives, .prefix = prefix, .groups = kAlternatives, .alternatives = true};
      const auto got = translator.search(sources, wish);
      for (size_t i = 0; i < sources.size(); ++i) {
        std::vector<int32_t> input{static_cast<int32_t>(config.decoder_start_id)};
        input.insert(input.end(), prefix.begin(), prefix.end());
        const std::vector<double> logits = decoder.last_logits(sources[i], input);
        double sum = 0;
        for (const double z : logits) sum += std::exp(z);
        std::vector<size_t> order(logits.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::erase(order, static_cast<size_t>(config.pad_id));
        std::ranges::stable_sort(order, std::greater(), [&](size_t c) { return logits[c]; });
        std::map<double, std::vector<int32_t>, std::greater<>> want;  // by score
        for (size_t k = 0; k < kAlternatives; ++k) {
          SearchOptions rest{.prefix = prefix};
          const double first = logits[order[k]] - std::log(sum);
          if (order[k] == static_cast<size_t>(config.eos_id)) {
            want[first] = prefix;
            continue;
          }
          rest.prefix.push_back(static_cast<int32_t>(order[k]));
          TranslatorOptions narrow = o;
          narrow.beam = width;
          // The end is limited by the length of all, prefix or not.
          narrow.max_target = o.max_target;
          const Listed best = search(decoder, config, sources[i], narrow, rest).front();
          want[first + best.score] = without_end(best);
        }
        ASSERT_EQ(got[i].size(), want.size());
        auto next = want.begin();
        for (const Hypothesis& h : got[i]) {
          EXPECT_EQ(h.ids, next->second) << "source " << i << " width " << width;
          EXPECT_NEAR(h.log_probability, next->first, 1e-9);
          ++next;
        }
      }
    }
  }
}

// What a hypothesis looked at does not follow from how its rows changed places: forced to the same
// tokens, which have slots of their own, it looks at the same.
TEST(Translator, AttentionIsThatOfItsTokens) {
  TestModel m(tiny({"", [](ModelConfig&) {}}), DType::f64, {}, 3);
  std::vector<std::vector<float>> by_head;
  for (const int64_t head : {-1, 0, 1}) {
    TranslatorOptions o{.sentences = 3, .source_rows = 24, .max_source = 8, .max_target = 14};
    o.beam = 4;
    o.attention = true;
    o.attention_head = head;
    Translator translator(m.model, m.store, o);
    const auto sources = make_sources(8, 7);
    const auto got = translator.search(sources, {.nbest = 4});
    size_t histories = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      for (const Hypothesis& h : got[i]) {
        ASSERT_EQ(h.attention.size(), (h.ids.size() + 1) * sources[i].size());
        // The beginning, so that there is room for what follows a prefix.
        const size_t prefix = std::min(h.ids.size(), static_cast<size_t>(o.max_target) - 3);
        const auto forced = translator.search(
            std::span(&sources[i], 1),
            {.prefix = {h.ids.begin(), h.ids.begin() + static_cast<int64_t>(prefix)}});
        for (size_t j = 0; j < (prefix + 1) * sources[i].size(); ++j)
          EXPECT_NEAR(h.attention[j], forced[0][0].attention[j], 1e-6) << "source " << i;
        for (size_t row = 0; row <= h.ids.size(); ++row) {
          const auto from = h.attention.begin() + static_cast<int64_t>(row * sources[i].size());
          EXPECT_NEAR(std::accumulate(from, from + std::ssize(sources[i]), 0.0), 1.0, 1e-6);
        }
        histories += prefix > 1 ? 1 : 0;
      }
    }
    EXPECT_GT(histories, 12u);
    by_head.push_back(got[0][0].attention);
  }
  ASSERT_EQ(by_head[1].size(), by_head[0].size());
  for (size_t j = 0; j < by_head[0].size(); ++j)
    EXPECT_NEAR(by_head[0][j], (by_head[1][j] + by_head[2][j]) / 2, 1e-6);
  TranslatorOptions o;
  o.attention = true;
  o.attention_layer = 2;
  EXPECT_THROW(Translator(m.model, m.store, o), Error);
}

// 4,000 draws of one sentence by the probabilities of its tokens, as ReferenceDecoder has them.
TEST(Translator, DrawsInTheSharesOfTheModel) {
  const ModelConfig config = tiny({"", [](ModelConfig&) {}});
  TestModel m(config, DType::f64, {}, 3);
  const ReferenceDecoder decoder(m);
  TranslatorOptions o{.sentences = 8, .source_rows = 64, .max_source = 8, .max_target = 3};
  o.beam = 50;
  o.sampling = true;
  Translator translator(m.model, m.store, o);
  const std::vector<int32_t> source{5, 9, 2};
  constexpr int kCalls = 80;
  std::map<std::vector<int32_t>, double> times;
  for (int call = 0; call < kCalls; ++call) {
    const SearchOptions wish{.nbest = 50, .groups = 50, .draw = {{.seed = 3, .stream = call}}};
    const auto found = translator.search(std::span(&source, 1), wish);
    for (const Hypothesis& h : found[0]) times[h.ids] += 1;
  }
  // The first token's shares; that of the padding, which is never drawn, goes to the others.
  std::vector<double> share =
      decoder.last_logits(source, {static_cast<int32_t>(config.decoder_start_id)});
  double sum = 0;
  share[static_cast<size_t>(config.pad_id)] = -INFINITY;
  for (double& z : share) sum += z = std::exp(z);
  std::vector<double> drawn(share.size());
  for (const auto& [ids, n] : times)
    drawn[static_cast<size_t>(ids.empty() ? config.eos_id : ids[0])] += n;
  constexpr double kDraws = 50.0 * kCalls;
  for (size_t c = 0; c < share.size(); ++c) {
    const double p = share[c] / sum;
    EXPECT_NEAR(drawn[c], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)) + 1e-9) << c;
  }
  EXPECT_GT(times.size(), 40u);
}

// Sentences that come while others are under way, some of which are given up again: each becomes,
// bit for bit, what it becomes alone. On a GPU with same_bits.
void expect_independence(Device device, DType type) {
  ModelConfig config = tiny({"", [](ModelConfig&) {}});
  config.max_positions = 90;
  TestModel m(config, type, device, 4);
  for (const int beam : {1, 3}) {
    TranslatorOptions o{.sentences = 7, .source_rows = 120, .max_source = 80, .max_target = 60};
    o.length_factor = 0.7f;
    o.length_offset = 5;
    o.beam = beam;
    o.same_bits = true;
    o.sampling = true;
    const auto wish = [beam](size_t i) {
      SearchOptions w{.nbest = beam};
      if (i % 4 == 0) return w;
      w.groups = beam;
      w.alternatives = i % 4 == 1;
      if (i % 4 == 2) w.diversity = 0.8f;
      if (i % 4 == 3) w.draw = {.seed = 5, .stream = static_cast<int32_t>(i), .top_p = 0.95f};
      return w;
    };
    auto sources = make_sources(40, 9);
    const auto longer = make_sources(4, 80);
    for (size_t i = 0; i < longer.size(); ++i) sources[5 + 9 * i] = longer[i];
    Translator alone(m.model, m.store, o), together(m.model, m.store, o);
    std::map<int64_t, std::vector<Hypothesis>> got;
    std::vector<int64_t> tickets;
    const auto step = [&] {
      together.step([&](int64_t ticket, std::vector<Hypothesis> found) {
        EXPECT_TRUE(got.emplace(ticket, std::move(found)).second);
      });
    };
    std::mt19937 random(2);
    std::set<size_t> given_up;
    while (tickets.size() < sources.size() || together.held() > 0) {
      for (uint64_t n = random() % 4; n > 0 && tickets.size() < sources.size(); --n)
        tickets.push_back(together.add(sources[tickets.size()], wish(tickets.size())));
      step();
      const size_t any = random() % (4 * tickets.size() + 4);
      if (any >= tickets.size() || got.contains(tickets[any])) continue;
      together.cancel(tickets[any]);
      together.cancel(tickets[any]);  // a second time, nothing
      given_up.insert(any);
    }
    EXPECT_GT(given_up.size(), 2u);
    for (size_t i = 0; i < sources.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "source " << i << " beam " << beam);
      ASSERT_EQ(got.contains(tickets[i]), !given_up.contains(i));
      if (given_up.contains(i)) continue;
      const auto want = alone.search(std::span(&sources[i], 1), wish(i))[0];
      const auto& found = got[tickets[i]];
      ASSERT_EQ(found.size(), want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_EQ(found[k].ids, want[k].ids);
        EXPECT_EQ(found[k].score, want[k].score);
        EXPECT_EQ(found[k].token_log_probabilities, want[k].token_log_probabilities);
      }
    }
  }
}

TEST(Translator, SentencesComeAndGoOnTheirOwn) {
  for (const DType type : {DType::f32, DType::f64}) expect_independence({}, type);
}

TEST(Translator, SourcesThatWaitEncodedMayBeGivenUp) {
  const ModelConfig config = tiny({"", [](ModelConfig&) {}});
  TestModel m(config, DType::f32, {}, 4);
  Translator t(m.model, m.store, {.sentences = 1, .source_rows = 24, .max_source = 24});
  std::vector<int32_t> source(20, 5);
  source.back() = 2;
  std::set<int64_t> ended;
  const auto step = [&] {
    t.step([&](int64_t ticket, std::vector<Hypothesis>) { ended.insert(ticket); });
  };
  t.add({5, 2}, {.min_length = 30});
  for (int i = 0; i < 4; ++i) {  // there is room for one beside the first
    const int64_t given_up = t.add(source);
    step();
    t.cancel(given_up);
    EXPECT_EQ(t.held(), 1);
  }
  const int64_t last = t.add(source);
  for (int i = 0; i < 200 && t.held() > 0; ++i) step();
  EXPECT_EQ(ended, (std::set<int64_t>{0, last}));
}

TEST(Translator, SentencesComeAndGoOnTheirOwnOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16})
    expect_independence({DeviceKind::cuda, 0}, type);
}

TEST(Translator, FollowsTheWeights) {
  TestModel m(tiny({"", [](ModelConfig&) {}}), DType::f32, {}, 4),
      other(m.config, DType::f32, {}, 9);
  TranslatorOptions o;
  o.max_source = 9;
  o.max_target = 20;
  Translator translator(m.model, m.store, o), fresh(other.model, other.store, o);
  const auto sources = make_sources(5, 9);
  const auto before = translator.translate(sources), want = fresh.translate(sources);
  ASSERT_NE(before, want);
  std::copy_n(other.store.masters().as<float>(), m.store.padded_count(),
              m.store.masters().as<float>());
  EXPECT_EQ(translator.translate(sources), want);
}

TEST(Translator, RefusesScoresThatAreNotFinite) {
  for (const int beam : {1, 4}) {
    TestModel m(tiny({"", [](ModelConfig&) {}}), DType::f32, {}, 4);
    TranslatorOptions o;
    o.max_source = 9;
    o.max_target = 20;
    o.beam = beam;
    Translator translator(m.model, m.store, o);
    const auto sources = make_sources(5, 9);
    EXPECT_NO_THROW(translator.translate(sources));
    for (const float value : {NAN, 1e38f}) {  // the second is finite, its sums are not
      std::fill_n(m.store.masters().as<float>(), m.store.padded_count(), value);
      EXPECT_THROW(translator.translate(sources), NonFiniteScores);
    }
  }
}

TEST(Translator, CudaAgreesWithCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const ModelConfig config = tiny({"", [](ModelConfig&) {}});
  TestModel cpu(config, DType::f32, {}, 4), gpu(config, DType::f32, {DeviceKind::cuda, 0}, 4);
  const auto sources = make_sources(60, 9);
  for (const int beam : {1, 4}) {
    std::vector<std::vector<int32_t>> want;
    for (const bool graph : {false, true}) {
      TranslatorOptions o;
      o.sentences = 16;
      o.source_rows = 128;
      o.max_source = 9;
      o.max_target = 30;
      o.beam = beam;
      o.graph = graph;
      if (want.empty()) want = Translator(cpu.model, cpu.store, o).translate(sources);
      Translator translator(gpu.model, gpu.store, o);
      const auto got = translator.translate(sources);
      // Scores differ by about 1e-6; two hypotheses that close are one in many thousands.
      for (size_t i = 0; i < sources.size(); ++i) {
        EXPECT_EQ(got[i], want[i]) << "source " << i << " beam " << beam << " graph " << graph;
      }
      EXPECT_EQ(translator.translate(sources), got) << "a second call";
    }
  }
}

TEST(Translator, RunsInHalfPrecisionOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::bf16, DType::f16}) {
    TestModel m(tiny({"", [](ModelConfig&) {}}), type, {DeviceKind::cuda, 0}, 4);
    TranslatorOptions o;
    o.max_source = 9;
    o.max_target = 30;
    o.beam = 4;
    Translator translator(m.model, m.store, o);
    const auto sources = make_sources(60, 9);
    const auto got = translator.translate(sources);
    EXPECT_EQ(translator.translate(sources), got);
  }
}

TEST(Translator, NamesTheSourceItCannotTake) {
  TestModel m(tiny({"", [](ModelConfig&) {}}), DType::f32, {}, 4);
  TranslatorOptions o;
  o.max_source = 4;
  Translator translator(m.model, m.store, o);
  const auto message = [&](std::vector<std::vector<int32_t>> sources) {
    try {
      translator.translate(sources);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message({{4, 2}, {4, 4, 4, 4, 2}}).find("source 1 has 5 tokens"), std::string::npos);
  EXPECT_NE(message({{}}).find("source 0 has 0 tokens"), std::string::npos);
  EXPECT_NE(message({{4, 13, 2}}).find("source 0 holds id 13"), std::string::npos);
  EXPECT_TRUE(translator.translate({}).empty());
  const auto wish = [&](const SearchOptions& w) {
    try {
      translator.add({4, 2}, w);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(wish({.nbest = 6}).find("nbest is 6"), std::string::npos);
  EXPECT_NE(wish({.prefix = {4, 2}}).find("prefix of the source holds id 2"), std::string::npos);
  EXPECT_NE(wish({.prefix = std::vector<int32_t>(40, 4)}).find("has 40 tokens"), std::string::npos);
  EXPECT_NE(wish({.repetition_penalty = 0}).find("repetition_penalty 0"), std::string::npos);
  EXPECT_NE(wish({.groups = 6}).find("groups is 6"), std::string::npos);
  EXPECT_NE(wish({.diversity = -1}).find("diversity -1"), std::string::npos);
  EXPECT_NE(wish({.draw = {{}}}).find("sampling is off"), std::string::npos);
  EXPECT_NE(wish({.max_length = -1}).find("max_length -1"), std::string::npos);
  EXPECT_NE(wish({.min_length = 3, .max_length = 2}).find("min_length is 3 and max_length 2"),
            std::string::npos);
  EXPECT_EQ(translator.held(), 0);
  EXPECT_EQ(wish({}), "no error");
  EXPECT_NE(message({{4, 2}}).find("1 sentences are under way"), std::string::npos);
  o.suppressed = {2};
  EXPECT_THROW(Translator(m.model, m.store, o), Error);
  o.suppressed = {};
  o.beam = static_cast<int>(kernels::kMaxBeam) + 1;
  EXPECT_THROW(Translator(m.model, m.store, o), Error);
}

}  // namespace
}  // namespace saturate::model
