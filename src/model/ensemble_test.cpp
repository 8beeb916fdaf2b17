// SPDX-License-Identifier: Apache-2.0
// Models that translate together against a search by the mean of what each says of every prefix alone.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "kernels/decode/mean_logits.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "model/search_reference_test.h"
#include "model/shortlist.h"
#include "model/translator.h"
#include "runtime/parallel_for.h"

namespace saturate::model {
namespace {

ModelConfig plain() {
  return tiny({"", [](ModelConfig&) {}});
}

// Another depth, width, number of heads and kind of positions.
ModelConfig other() {
  return tiny({"", [](ModelConfig& c) {
                 c.d_model = 24;
                 c.encoder_layers = 1;
                 c.decoder_layers = 3;
                 c.heads = 3;
                 c.kv_heads = 1;
                 c.ffn = 16;
                 c.max_positions = 30;
                 c.norm_position = NormPosition::pre;
                 c.final_norm = true;
                 c.positions = PositionKind::learned;
                 c.shared_embeddings = c.tied_output = false;
               }});
}

EnsembleModel part(const TestModel& m, double weight = 1) { return {&m.model, &m.store, weight}; }

TranslatorOptions options(int beam) {
  TranslatorOptions o{.sentences = 4, .source_rows = 24, .max_source = 8, .max_target = 14};
  o.length_factor = 1.5f;
  o.length_offset = 4;
  o.beam = beam;
  return o;
}

using Found = std::vector<std::vector<Hypothesis>>;

void expect_same_bits(const Found& got, const Found& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "source " << i);
    ASSERT_EQ(got[i].size(), want[i].size());
    for (size_t k = 0; k < want[i].size(); ++k) {
      EXPECT_EQ(got[i][k].ids, want[i][k].ids);
      EXPECT_EQ(got[i][k].score, want[i][k].score);
      EXPECT_EQ(got[i][k].token_log_probabilities, want[i][k].token_log_probabilities);
      EXPECT_EQ(got[i][k].attention, want[i][k].attention);
    }
  }
}

TEST(Ensemble, EqualsSearchByTheMeanOfLogProbabilities) {
  TestModel a(plain(), DType::f64, {}, 3), b(other(), DType::f64, {}, 5),
      c(plain(), DType::f64, {}, 8);
  const ReferenceDecoder of_a(a), of_b(b), of_c(c);
  const auto sources = make_sources(9, 7);
  size_t different = 0, tokens = 0;
  for (const int beam : {1, 4}) {
    const std::vector<SearchOptions> wishes{
        {},
        {.nbest = beam},
        {.nbest = beam, .prefix = {7}, .length_penalty = 0.3f},
        {.nbest = beam, .prefix = {5, 5, 9}, .repetition_penalty = 1.4f},
        {.nbest = beam, .no_repeat_ngram = 2, .min_length = 11},
        {.max_length = 2}};
    for (const bool three : {false, true}) {
      TranslatorOptions o = options(beam);
      o.suppressed = {12};
      // What they count adds up to anything.
      std::vector<EnsembleModel> models{part(a, 3), part(b, 1)};
      std::vector<WeightedDecoder> reference{{of_a, 0.75}, {of_b, 0.25}};
      if (three) {
        models = {part(b, 0.5), part(a, 0.25), part(c, 0.25)};
        reference.clear();
        reference.push_back({of_b, 0.5}), reference.push_back({of_a, 0.25});
        reference.push_back({of_c, 0.25});
      }
      Translator together(models, o);
      const auto alone = Translator(a.model, a.store, o).search(sources);
      Found got(sources.size());
      for (size_t i = 0; i < sources.size(); ++i)
        together.add(sources[i], wishes[i % wishes.size()]);
      while (together.held() > 0) {
        together.step([&](int64_t ticket, std::vector<Hypothesis> found) {
          got[static_cast<size_t>(ticket)] = std::move(found);
        });
      }
      for (size_t i = 0; i < sources.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << "source " << i << " beam " << beam);
        const auto want = search(reference, a.config, sources[i], o, wishes[i % wishes.size()]);
        ASSERT_EQ(got[i].size(), want.size());
        for (size_t k = 0; k < want.size(); ++k) {
          const Hypothesis& h = got[i][k];
          EXPECT_EQ(h.ids, without_end(want[k]));
          EXPECT_NEAR(h.log_probability, want[k].score, 1e-9);
          ASSERT_EQ(h.token_log_probabilities.size(), want[k].steps.size());
          for (size_t j = 0; j < want[k].steps.size(); ++j)
            EXPECT_NEAR(h.token_log_probabilities[j], want[k].steps[j], 1e-9) << j;
        }
        tokens += got[i][0].ids.size();
        if (i % wishes.size() == 0) different += got[i][0].ids != alone[i][0].ids ? 1 : 0;
      }
    }
  }
  EXPECT_GT(different, 2u) << "one model finds the same: the case shows nothing";
  EXPECT_GT(tokens, 4 * sources.size());
}

// As models are loaded to translate: on the CPU fp32 is packed. Without that OpenBLAS sums in an order that
// follows the number of rows, and not only below four of them where a model is as narrow as these.
void pack(TestModel& m, kernels::PackedType type = kernels::PackedType::f32) {
  if (!m.store.device().is_cuda() && m.store.compute_type() == DType::f32) m.store.pack(type);
}

// Down to the last bit, with every kind of wish.
void expect_itself(Device device, DType type, const std::vector<std::vector<double>>& weights) {
  TestModel m(plain(), type, device, 4);
  pack(m);
  const InOneThread alone;
  const auto sources = make_sources(12, 7);
  for (const int beam : {1, 4}) {
    TranslatorOptions o = options(beam);
    o.sampling = true;
    o.same_bits = true;
    o.attention = true;
    o.suppressed = {12};
    std::vector<SearchOptions> wishes{
        {.nbest = beam},
        {.nbest = beam, .prefix = {5, 9}, .repetition_penalty = 1.4f, .no_repeat_ngram = 3},
        {.nbest = beam, .min_length = 4, .groups = beam, .diversity = 0.7f},
        {.nbest = beam, .groups = beam, .alternatives = true},
        {.nbest = beam, .groups = beam, .draw = {{.seed = 7, .top_p = 0.9f, .top_k = 9}}}};
    if (!device.is_cuda()) wishes.push_back({.nbest = beam, .phrases = {{7, 8}, {4}}});
    for (const SearchOptions& wish : wishes) {
      const Found want = Translator(m.model, m.store, o).search(sources, wish);
      for (const std::vector<double>& w : weights) {
        std::vector<EnsembleModel> models;
        for (const double each : w) models.push_back(part(m, each));
        expect_same_bits(Translator(models, o).search(sources, wish), want);
      }
    }
  }
}

TEST(Ensemble, OfOneModelSeveralTimesIsThatModel) {
  expect_itself({}, DType::f32, {{1, 1}, {1, 1, 1}, {0.3, 0.7}, std::vector<double>(8, 0.1)});
  expect_itself({}, DType::f64, {{1, 1}, {1, 1, 1, 1}});  // thirds would round in doubles
}

TEST(Ensemble, OfOneModelSeveralTimesIsThatModelOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    expect_itself({DeviceKind::cuda, 0}, type, {{1, 1}, {0.3, 0.7}});
}

TEST(Ensemble, CudaAgreesWithCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Device cuda{DeviceKind::cuda, 0};
  TestModel a(plain(), DType::f32, {}, 3), b(other(), DType::f32, {}, 5),
      gpu_a(plain(), DType::f32, cuda, 3), gpu_b(other(), DType::f32, cuda, 5);
  const auto sources = make_sources(40, 7);
  for (const int beam : {1, 4}) {
    const auto want = Translator(std::array{part(a, 2), part(b)}, options(beam)).translate(sources);
    for (const bool graph : {false, true}) {
      TranslatorOptions o = options(beam);
      o.graph = graph;
      EXPECT_EQ(Translator(std::array{part(gpu_a, 2), part(gpu_b)}, o).translate(sources), want);
    }
  }
}

// Sentences that come while others are under way, and alone.
void expect_independence(Device device, DType type,
                         kernels::PackedType packed = kernels::PackedType::f32) {
  TestModel a(plain(), type, device, 3), b(other(), type, device, 5);
  pack(a, packed), pack(b, packed);
  const InOneThread one;
  for (const int beam : {1, 3}) {
    TranslatorOptions o = options(beam);
    o.same_bits = true;
    const std::array models{part(a), part(b, 2)};
    Translator alone(models, o), together(models, o);
    const auto sources = make_sources(30, 8);
    std::map<int64_t, std::vector<Hypothesis>> got;
    std::mt19937 random(2);
    for (size_t given = 0; given < sources.size() || together.held() > 0;) {
      for (uint64_t n = random() % 4; n > 0 && given < sources.size(); --n)
        together.add(sources[given++], {.nbest = beam});
      together.step(
          [&](int64_t ticket, std::vector<Hypothesis> found) { got[ticket] = std::move(found); });
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << name_of(type) << " beam " << beam << " number " << i);
      expect_same_bits({got[static_cast<int64_t>(i)]},
                       alone.search(std::span(&sources[i], 1), {.nbest = beam}));
    }
  }
}

TEST(Ensemble, SentenceDoesNotDependOnItsBatch) {
  for (const auto packed : {kernels::PackedType::f32, kernels::PackedType::s8})
    expect_independence({}, DType::f32, packed);
}
TEST(Ensemble, SentenceDoesNotDependOnItsBatchOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16})
    expect_independence({DeviceKind::cuda, 0}, type);
}

// Of packed weights, each model by its own outputs of the candidates alone.
TEST(Ensemble, TakesAShortlist) {
  TestModel a(plain(), DType::f32, {}, 3), b(other(), DType::f32, {}, 5);
  pack(a), pack(b);
  Shortlist list, all;
  std::vector<int32_t> every(13);
  std::iota(every.begin(), every.end(), 0);
  all.add_always(every);
  for (int32_t id = 0; id < 13; ++id) list.add({id}, std::vector<int32_t>{id, (id * 5 + 1) % 13});
  const auto sources = make_sources(9, 7);
  const std::array models{part(a), part(b)};
  const auto search = [&](const std::optional<Shortlist>& by, std::vector<int32_t> suppressed,
                          std::span<const std::vector<int32_t>> some) {
    TranslatorOptions o = options(3);
    o.suppressed = std::move(suppressed);
    if (by) o.shortlist = std::make_shared<Shortlist>(*by);
    const InOneThread alone;
    return Translator(models, o).search(some, {.nbest = 3});
  };
  const Found free = search({}, {}, sources), cut = search(list, {}, sources);
  expect_same_bits(search(all, {}, sources), free);
  size_t different = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    std::vector<int32_t> forbidden;
    const auto allowed = list.candidates(sources[i]);
    for (int32_t id = 0; id < 13; ++id)
      if (id != 2 && std::ranges::find(allowed, id) == allowed.end()) forbidden.push_back(id);
    const Found want = search({}, forbidden, std::span(&sources[i], 1));
    ASSERT_EQ(cut[i].size(), want[0].size());
    for (size_t k = 0; k < cut[i].size(); ++k) {
      EXPECT_EQ(cut[i][k].ids, want[0][k].ids);
      EXPECT_NEAR(cut[i][k].score, want[0][k].score, 1e-4);
    }
    different += cut[i][0].ids != free[i][0].ids ? 1 : 0;
  }
  EXPECT_GT(different, 2u) << "the shortlist cuts nothing: the case shows nothing";
}

TEST(Ensemble, AttentionIsThatOfTheFirst) {
  TestModel a(plain(), DType::f64, {}, 3), b(other(), DType::f64, {}, 5);
  TranslatorOptions o = options(1);
  o.attention = true;
  const auto sources = make_sources(6, 7);
  const Found both = Translator(std::array{part(a), part(b)}, o).search(sources);
  for (size_t i = 0; i < sources.size(); ++i) {
    const Hypothesis& h = both[i][0];
    const auto rows = std::min(h.ids.size(), size_t{10});
    const auto forced =
        Translator(a.model, a.store, o)
            .search(std::span(&sources[i], 1),
                    {.prefix = {h.ids.begin(), h.ids.begin() + static_cast<int64_t>(rows)}});
    for (size_t j = 0; j < (rows + 1) * sources[i].size(); ++j)
      EXPECT_NEAR(h.attention[j], forced[0][0].attention[j], 1e-6);
  }
}

TEST(Ensemble, NamesWhatDiffers) {
  TestModel a(plain(), DType::f32, {}, 3), wide(plain(), DType::f64, {}, 3);
  const auto message = [&](const std::vector<EnsembleModel>& models) {
    try {
      Translator(models, options(2));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto beside = [&](void (*change)(ModelConfig&)) {
    TestModel b(tiny({"", change}), DType::f32, {}, 5);
    return message({part(a), part(b)});
  };
  EXPECT_EQ(message({part(a), part(a)}), "no error");
  has(message({}), "0 models");
  has(message(std::vector<EnsembleModel>(9, part(a))), "9 models");
  has(message({part(a), part(a, 0)}), "weight of model 2 is 0");
  has(message({part(a), part(a, NAN)}), "weight of model 2 is nan");
  has(message({part(a), part(wide)}), "device or precision");
  has(beside([](ModelConfig& c) { c.vocab_source = 14, c.shared_embeddings = false; }),
      "vocab_source is 13 in model 1 and 14 in model 2");
  has(beside([](ModelConfig& c) { c.vocab_target = 15, c.shared_embeddings = false; }),
      "vocab_target is 13 in model 1 and 15 in model 2");
  has(beside([](ModelConfig& c) { c.eos_id = 1; }), "eos_id is 2 in model 1 and 1 in model 2");
  has(beside([](ModelConfig& c) { c.pad_id = 4; }), "pad_id is 3");
  has(beside([](ModelConfig& c) { c.decoder_start_id = 4; }), "decoder_start_id is 3");
}

}  // namespace
}  // namespace saturate::model
