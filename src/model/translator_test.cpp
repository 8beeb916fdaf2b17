// SPDX-License-Identifier: Apache-2.0
// Cached beam search against a search that decodes every prefix anew and keeps whole hypotheses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "kernels/decode/beam_step.h"
#include "model/decode_reference_test.h"
#include "model/finite.h"
#include "model/translator.h"

namespace saturate::model {
namespace {

struct Variant {
  const char* name;
  void (*change)(ModelConfig&);
};

ModelConfig tiny(const Variant& v) {
  ModelConfig c;
  c.d_model = 16;
  c.encoder_layers = c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 8;
  c.ffn = 24;
  c.vocab_source = c.vocab_target = 13;
  c.max_positions = 40;
  c.pad_id = 3;
  c.eos_id = 2;
  c.decoder_start_id = 3;
  v.change(c);
  return c;
}

std::vector<std::vector<int32_t>> make_sources(size_t count, size_t longest) {
  std::mt19937 random(5);
  std::vector<std::vector<int32_t>> sources(count);
  for (auto& s : sources) {
    s.resize(1 + random() % longest);
    for (int32_t& id : s) id = static_cast<int32_t>(4 + random() % 9);
    s.back() = 2;
  }
  return sources;
}

struct Hypothesis {
  std::vector<int32_t> ids;
  double score = 0;
  bool ended = false;
};

// The search as beam_step.h states it.
std::vector<int32_t> search(ReferenceDecoder& decoder, const ModelConfig& c,
                            const std::vector<int32_t>& source, const TranslatorOptions& o) {
  const double factor = o.length_factor, penalty = o.length_penalty;
  const auto limit = static_cast<size_t>(std::min<double>(
      static_cast<double>(std::min(o.max_target, c.max_positions)),
      factor * static_cast<double>(source.size()) + static_cast<double>(o.length_offset)));
  const auto worth = [&](const Hypothesis& h) {
    return h.score / std::pow(static_cast<double>(h.ended ? h.ids.size() : limit), penalty);
  };
  std::vector<Hypothesis> beam(1);
  for (size_t t = 0; t < limit; ++t) {
    std::vector<Hypothesis> next;
    for (const Hypothesis& h : beam) {
      if (h.ended) {
        next.push_back(h);
        continue;
      }
      std::vector<int32_t> input{static_cast<int32_t>(c.decoder_start_id)};
      input.insert(input.end(), h.ids.begin(), h.ids.end());
      const std::vector<double> logits = decoder.last_logits(source, input);
      double sum = 0;
      for (const double z : logits) sum += std::exp(z);
      for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
        if (id == c.pad_id || (t + 1 == limit && id != c.eos_id)) continue;
        Hypothesis e = h;
        e.ids.push_back(id);
        e.score += logits[static_cast<size_t>(id)] - std::log(sum);
        e.ended = id == c.eos_id;
        next.push_back(e);
      }
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    next.resize(std::min(next.size(), static_cast<size_t>(o.beam)));
    beam = next;
    double best_open = -INFINITY, best_ended = -INFINITY;
    for (const auto& h : beam)
      (h.ended ? best_ended : best_open) = std::max(h.ended ? best_ended : best_open, worth(h));
    if (best_ended >= best_open) break;
  }
  const Hypothesis* best = nullptr;
  for (const auto& h : beam) {
    if (h.ended && (best == nullptr || worth(h) > worth(*best))) best = &h;
  }
  return {best->ids.begin(), best->ids.end() - 1};
}

class TranslatorSearch : public ::testing::TestWithParam<Variant> {};

TEST_P(TranslatorSearch, EqualsSearchWithoutCache) {
  const ModelConfig config = tiny(GetParam());
  // Doubles: no two hypotheses are so close that rounding decides between them.
  TestModel m(config, DType::f64, {}, 3);
  ReferenceDecoder decoder(m);
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
        EXPECT_EQ(got[i], search(decoder, config, sources[i], o))
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

// Which shape translates a source is no matter of its result (CPU).
TEST(Translator, PlansByLengthTranslateTheSame) {
  ModelConfig config = tiny({"", [](ModelConfig&) {}});
  config.max_positions = 400;
  TestModel m(config, DType::f64, {}, 4);
  TranslatorOptions o;
  o.sentences = 16;
  o.source_rows = 320;
  o.max_source = 400;
  o.max_target = 400;
  o.length_factor = 0.5f;
  o.length_offset = 3;
  o.beam = 3;
  auto sources = make_sources(24, 60);
  const auto longer = make_sources(6, 390);
  sources.insert(sources.begin() + 7, longer.begin(), longer.end());
  Translator one(m.model, m.store, o);
  o.plan_by_length = true;
  Translator by_length(m.model, m.store, o);
  const auto want = one.translate(sources);
  EXPECT_EQ(by_length.translate(sources), want);
  for (size_t i = 0; i < sources.size(); i += 5) {
    EXPECT_EQ(by_length.translate(std::span(&sources[i], 1))[0], want[i]) << "source " << i;
  }
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
  o.beam = static_cast<int>(kernels::kMaxBeam) + 1;
  EXPECT_THROW(Translator(m.model, m.store, o), Error);
}

}  // namespace
}  // namespace saturate::model
