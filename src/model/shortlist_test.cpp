// SPDX-License-Identifier: Apache-2.0
// Translations from a shortlist against searches to which all other tokens are forbidden.
#include "model/shortlist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "base/error.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "model/decode_reference_test.h"
#include "model/translator.h"
#include "runtime/parallel_for.h"

namespace saturate::model {
namespace {

using Ids = Shortlist::Ids;
using kernels::PackedType;

constexpr int32_t kVocab = 61;

ModelConfig tiny() {
  ModelConfig c;
  c.d_model = 16;
  c.encoder_layers = c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 8;
  c.ffn = 24;
  c.vocab_source = c.vocab_target = kVocab;
  c.max_positions = 40;
  c.pad_id = 3;
  c.eos_id = 2;
  c.decoder_start_id = 3;
  c.output_bias = true;
  return c;
}

Ids random_ids(std::mt19937& random, size_t count) {
  Ids ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(4 + random() % (kVocab - 4));
  return ids;
}

std::vector<Ids> make_sources(size_t count) {
  std::mt19937 random(5);
  std::vector<Ids> sources;
  for (size_t i = 0; i < count; ++i) {
    sources.push_back(random_ids(random, random() % 8));
    sources.back().push_back(2);
  }
  return sources;
}

// Five tokens for each of the source; single ones for pairs of neighbours.
Shortlist some() {
  std::mt19937 random(7);
  Shortlist list;
  list.add_always(Ids{1, 2, 9});
  for (int32_t id = 0; id < kVocab; ++id) {
    list.add({id}, random_ids(random, 5));
    list.add({id, (id + 1) % kVocab}, random_ids(random, 1));
  }
  return list;
}

Shortlist all_tokens() {
  Shortlist list;
  Ids ids(kVocab);
  std::iota(ids.begin(), ids.end(), 0);
  list.add_always(ids);
  return list;
}

TranslatorOptions options(int beam, std::optional<Shortlist> list = {}) {
  TranslatorOptions o;
  o.sentences = 4;
  o.source_rows = 24;
  o.max_source = 9;
  o.max_target = 14;
  o.length_factor = 1.5f;
  o.length_offset = 3;
  o.beam = beam;
  if (list) o.shortlist = std::make_shared<Shortlist>(std::move(*list));
  return o;
}

struct PackedModel : TestModel {
  explicit PackedModel(PackedType type) : TestModel(tiny(), DType::f32, {}, 3) { store.pack(type); }
  std::vector<std::vector<Hypothesis>> search(const TranslatorOptions& o,
                                              std::span<const Ids> sources,
                                              const SearchOptions& wish = {}) {
    const InOneThread alone;
    return Translator(model, store, o).search(sources, wish);
  }
};

void expect_same_bits(const std::vector<std::vector<Hypothesis>>& a,
                      const std::vector<std::vector<Hypothesis>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size()) << "source " << i;
    for (size_t k = 0; k < a[i].size(); ++k) {
      EXPECT_EQ(a[i][k].ids, b[i][k].ids) << "source " << i;
      EXPECT_EQ(a[i][k].token_log_probabilities, b[i][k].token_log_probabilities);
    }
  }
}

TEST(Shortlist, GivesWhatTheSourceBrings) {
  Shortlist list;
  list.add_always(Ids{7, 2});
  list.add({4}, Ids{30, 10, 30});
  list.add({4, 5}, Ids{20});
  list.add({5}, Ids{});
  list.add({4}, Ids{11});
  EXPECT_EQ(list.size(), 3);
  EXPECT_EQ(list.candidates(Ids{6, 4, 6}), (Ids{2, 7, 10, 11, 30}));
  EXPECT_EQ(list.candidates(Ids{4, 5}), (Ids{2, 7, 10, 11, 20, 30}));
  EXPECT_EQ(list.candidates(Ids{5, 4}), (Ids{2, 7, 10, 11, 30}));
  EXPECT_EQ(list.candidates({}), (Ids{2, 7}));
  list.take_source_tokens();
  EXPECT_EQ(list.candidates(Ids{6, 5, 6}), (Ids{2, 5, 6, 7}));
}

TEST(Shortlist, OfAllTokensChangesNoBit) {
  const auto sources = make_sources(9);
  SearchOptions ruled{.nbest = 3, .prefix = {8}, .repetition_penalty = 1.5f, .no_repeat_ngram = 2};
  ruled.min_length = 3;
  for (const PackedType type : {PackedType::f32, PackedType::bf16, PackedType::s8}) {
    PackedModel m(type);
    for (const int beam : {1, 3}) {
      expect_same_bits(m.search(options(beam, all_tokens()), sources),
                       m.search(options(beam), sources));
    }
    expect_same_bits(m.search(options(3, all_tokens()), sources, ruled),
                     m.search(options(3), sources, ruled));
  }
}

TEST(Shortlist, EqualsSearchWithoutTheOtherTokensInDoubles) {
  PackedModel m(PackedType::f32);
  TestModel reference(tiny(), DType::f64, {}, 3);
  const auto sources = make_sources(12);
  const Shortlist list = some();
  const SearchOptions wish{.nbest = 2, .prefix = {50}, .no_repeat_ngram = 3};
  size_t different = 0, all = 0;
  const InOneThread alone;
  const auto plain = m.search(options(3), sources, wish);
  const auto found = m.search(options(3, list), sources, wish);
  for (size_t i = 0; i < sources.size(); ++i) {
    Ids allowed = list.candidates(sources[i]);
    allowed.push_back(50);
    TranslatorOptions o = options(3);
    for (int32_t id = 0; id < kVocab; ++id) {
      if (std::ranges::find(allowed, id) == allowed.end()) o.suppressed.push_back(id);
    }
    const auto expected =
        Translator(reference.model, reference.store, o).search(std::span(&sources[i], 1), wish);
    ASSERT_EQ(found[i].size(), expected[0].size());
    for (size_t k = 0; k < found[i].size(); ++k) {
      EXPECT_EQ(found[i][k].ids, expected[0][k].ids) << "source " << i;
      EXPECT_NEAR(found[i][k].score, expected[0][k].score, 2e-5);
      for (const int32_t id : found[i][k].ids)
        EXPECT_NE(std::ranges::find(allowed, id), allowed.end());
    }
    different += found[i].front().ids != plain[i].front().ids ? 1 : 0;
    all += found[i].front().ids.size();
  }
  EXPECT_GT(different, 3u) << "the shortlist cuts nothing: the case shows nothing";
  EXPECT_GT(all, 2 * sources.size());
}

TEST(Shortlist, SentenceDoesNotDependOnItsBatch) {
  for (const PackedType type : {PackedType::f32, PackedType::s8}) {
    PackedModel m(type);
    const auto sources = make_sources(11);
    const auto together = m.search(options(3, some()), sources);
    TranslatorOptions one = options(3, some());
    one.sentences = 1;
    expect_same_bits(together, m.search(one, sources));
    const std::vector<Ids> reversed(sources.rbegin(), sources.rend());
    auto other = m.search(options(3, some()), reversed);
    std::ranges::reverse(other);
    expect_same_bits(together, other);
  }
}

TEST(Shortlist, DrawsFromItsTokensAlone) {
  PackedModel m(PackedType::f32);
  const auto sources = make_sources(6);
  const Shortlist list = some();
  TranslatorOptions o = options(2, list);
  o.sampling = true;
  SearchOptions wish{.nbest = 2};
  wish.groups = 2;
  wish.draw = kernels::TokenDraw{.seed = 9, .temperature = 2.0f};
  const auto found = m.search(o, sources, wish);
  for (size_t i = 0; i < sources.size(); ++i) {
    const Ids allowed = list.candidates(sources[i]);
    for (const Hypothesis& h : found[i]) {
      for (const int32_t id : h.ids)
        EXPECT_TRUE(std::ranges::binary_search(allowed, id)) << "source " << i << " id " << id;
    }
  }
}

TEST(Shortlist, NeedsPackedWeights) {
  TestModel m(tiny(), DType::f64, {}, 3);
  EXPECT_THROW(Translator(m.model, m.store, options(2, some())), Error);
}

}  // namespace
}  // namespace saturate::model
