// SPDX-License-Identifier: Apache-2.0
// Translations that must hold phrases, against a search in doubles that keeps its hypotheses as lists and
// decodes every prefix anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "model/decode_reference_test.h"
#include "model/translator.h"
#include "runtime/parallel_for.h"

namespace saturate::model {
namespace {

using Ids = std::vector<int32_t>;
using Phrases = std::vector<Ids>;

ModelConfig tiny() {
  ModelConfig c;
  c.d_model = 16;
  c.encoder_layers = c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 8;
  c.ffn = 24;
  c.vocab_source = c.vocab_target = 19;
  c.max_positions = 40;
  c.pad_id = 3;
  c.eos_id = 2;
  c.decoder_start_id = 3;
  return c;
}

TranslatorOptions options(int beam, int64_t most = 16) {
  TranslatorOptions o;
  o.sentences = 4;
  o.source_rows = 24;
  o.max_source = 9;
  o.max_target = most;
  o.length_factor = 1.0f;
  o.length_offset = 4;
  o.beam = beam;
  return o;
}

std::vector<Ids> make_sources(size_t count) {
  std::mt19937 random(5);
  std::vector<Ids> sources(count);
  for (Ids& s : sources) {
    s.resize(2 + random() % 6);
    for (int32_t& id : s) id = static_cast<int32_t>(4 + random() % 15);
    s.back() = 2;
  }
  return sources;
}

bool holds(const Ids& ids, const Ids& phrase) { return !std::ranges::search(ids, phrase).empty(); }

bool holds_all(const Ids& ids, const Phrases& phrases) {
  return std::ranges::all_of(phrases, [&](const Ids& p) { return holds(ids, p); });
}

// The fewest tokens by carrying on one phrase and then adding the others whole.
int64_t owed(const Ids& said, const Phrases& phrases) {
  int64_t all = 0, most = 0;
  for (const Ids& p : phrases) {
    if (holds(said, p)) continue;
    all += std::ssize(p);
    for (int64_t n = 1; n < std::ssize(p) && n <= std::ssize(said); ++n) {
      if (std::equal(p.begin(), p.begin() + n, said.end() - n)) most = std::max(most, n);
    }
  }
  return all - most;
}

struct Listed {
  Ids ids;
  double score = 0;
  bool ended = false;
};

// As beam_step.h says it, in words of lists.
std::vector<Listed> search(const ReferenceDecoder& decoder, const ModelConfig& c, const Ids& source,
                           const TranslatorOptions& o, const SearchOptions& w) {
  int64_t limit =
      std::min<int64_t>(o.max_target, std::ssize(w.prefix) + std::ssize(source) + o.length_offset);
  limit = std::max(limit, std::ssize(w.prefix) + owed({}, w.phrases) + 1);
  const auto eos = static_cast<int32_t>(c.eos_id);
  const auto prefix = static_cast<double>(w.prefix.size());
  const auto worth = [&](const Listed& h) {
    return h.score / (static_cast<double>(h.ids.size()) + (h.ended ? 1 : 0) - prefix);
  };
  const size_t kept =
      std::min<size_t>(static_cast<size_t>(w.nbest), static_cast<size_t>(std::max(1, o.beam / 2)));
  std::vector<Listed> beam = {{.ids = w.prefix}};
  const auto is_open = [](const Listed& h) { return !h.ended; };
  while (std::ranges::any_of(beam, is_open)) {
    std::vector<Listed> ended;
    std::map<int64_t, std::vector<Listed>> next;  // by what they owe
    for (const Listed& h : beam) {
      if (h.ended) {
        ended.push_back(h);
        continue;
      }
      Ids input{static_cast<int32_t>(c.decoder_start_id)};
      input.insert(input.end(), h.ids.begin(), h.ids.end());
      const std::vector<double> z = decoder.last_logits(source, input);
      double sum = 0;
      for (const double v : z) sum += std::exp(v);
      std::vector<Listed> own;
      for (int32_t id = 0; id < c.vocab_target; ++id) {
        if (id == c.pad_id) continue;
        Listed e = h;
        e.score += z[static_cast<size_t>(id)] - std::log(sum);
        e.ended = id == eos;
        if (!e.ended) e.ids.push_back(id);
        const int64_t left = owed(e.ids, w.phrases);
        const bool fits = e.ended ? left == 0 : std::ssize(e.ids) + left + 1 <= limit;
        if (fits) own.push_back(e);
      }
      std::ranges::stable_sort(own, std::greater(), &Listed::score);
      for (size_t i = 0; i < own.size(); ++i) {
        // Of those that carry no phrase on the best `beam` alone, and none when they may not fit.
        const bool carries = std::ranges::any_of(w.phrases, [&](const Ids& p) {
          if (holds(h.ids, p) || own[i].ended) return false;
          return owed(own[i].ids, {p}) < owed(h.ids, {p});
        });
        int64_t whole = 0;  // tokens of phrases that are not there
        for (const Ids& p : w.phrases) whole += holds(h.ids, p) ? 0 : std::ssize(p);
        const bool is_tight = limit - (std::ssize(h.ids) + 2) < whole;
        if ((i < static_cast<size_t>(o.beam) && !is_tight) || carries || (is_tight && own[i].ended))
          next[owed(own[i].ids, w.phrases)].push_back(own[i]);
      }
    }
    std::ranges::stable_sort(ended, std::greater(), worth);
    std::vector<Listed> chosen = ended;
    chosen.resize(std::min(kept, ended.size()));
    for (auto& [left, list] : next) std::ranges::stable_sort(list, std::greater(), &Listed::score);
    for (size_t rank = 0; rank < 400; ++rank) {
      for (const auto& [left, list] : next) {
        if (rank < list.size() && std::ssize(chosen) < o.beam) chosen.push_back(list[rank]);
      }
    }
    for (size_t i = kept; i < ended.size() && std::ssize(chosen) < o.beam; ++i)
      chosen.push_back(ended[i]);
    beam = chosen;
    double best_open = -INFINITY;
    for (const Listed& h : beam) {
      if (!h.ended && owed(h.ids, w.phrases) == 0) best_open = std::max(best_open, worth(h));
    }
    const auto known = std::ranges::count_if(
        beam, [&](const Listed& h) { return h.ended && worth(h) >= best_open; });
    if (known >= static_cast<int64_t>(kept)) break;
  }
  std::erase_if(beam, is_open);
  std::ranges::stable_sort(beam, std::greater(), worth);
  return beam;
}

// Some of one token, some that overlap or begin alike.
std::vector<Phrases> wishes() {
  return {{{7}}, {{5, 6}, {12}}, {{9, 9, 4}}, {{4, 5}, {5, 6}, {4, 8}}, {{8, 7, 8, 7, 10}}};
}

TEST(PhrasesOfTranslations, EqualSearchInDoubles) {
  const InOneThread alone;
  TestModel m(tiny(), DType::f64, {}, 3);
  const ReferenceDecoder decoder(m);
  const auto sources = make_sources(6);
  size_t changed = 0, lists = 0;
  for (const int beam : {1, 2, 6}) {
    Translator translator(m.model, m.store, options(beam));
    for (const Phrases& phrases : wishes()) {
      SearchOptions wish{.nbest = std::max(1, beam / 2), .phrases = phrases};
      if (phrases.size() == 2) wish.prefix = {6, 12};
      const auto found = translator.search(sources, wish);
      const auto free = translator.search(sources, {.prefix = wish.prefix});
      for (size_t i = 0; i < sources.size(); ++i) {
        const auto expected = search(decoder, m.config, sources[i], options(beam), wish);
        ASSERT_EQ(found[i].size(), expected.size()) << "source " << i << " beam " << beam;
        for (size_t k = 0; k < expected.size(); ++k) {
          EXPECT_EQ(found[i][k].ids, expected[k].ids) << "source " << i << " beam " << beam;
          EXPECT_NEAR(found[i][k].log_probability, expected[k].score, 1e-9);
          EXPECT_TRUE(holds_all(found[i][k].ids, phrases));
        }
        changed += holds_all(free[i].front().ids, phrases) ? 0 : 1;
        lists += expected.size() > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(changed, 30u) << "the phrases come by themselves: the case shows nothing";
  EXPECT_GT(lists, 10u);
}

TEST(PhrasesOfTranslations, ArriveWhenThereIsNoRoomForAnythingElse) {
  const InOneThread alone;
  TestModel m(tiny(), DType::f64, {}, 3);
  const auto sources = make_sources(4);
  const Phrases phrases = {{4, 5, 6, 7}, {6, 7, 8}, {9}};  // 8 tokens
  for (const int beam : {1, 3}) {
    Translator translator(m.model, m.store, options(beam, 9));
    for (const auto& found : translator.search(sources, {.phrases = phrases})) {
      EXPECT_TRUE(holds_all(found.front().ids, phrases));
    }
    EXPECT_THROW(translator.search(sources, {.phrases = {{4, 5, 6, 7}, {6, 7, 8}, {9, 10}}}),
                 Error);
    SearchOptions short_one{.max_length = 5, .phrases = phrases};
    EXPECT_THROW(translator.search(sources, short_one), Error);
  }
}

TEST(PhrasesOfTranslations, SentenceDoesNotDependOnItsBatch) {
  const InOneThread alone;
  TestModel m(tiny(), DType::f32, {}, 3);
  m.store.pack(kernels::PackedType::f32);
  const auto sources = make_sources(12);
  const auto wished = [&](size_t i) {
    const std::vector<Phrases> all = wishes();
    SearchOptions w;
    if (i % 3 != 0) w.phrases = all[i % all.size()];
    return w;
  };
  const auto run = [&](int64_t side_by_side, bool shortlist) {
    TranslatorOptions o = options(3);
    o.sentences = side_by_side;
    if (shortlist) {
      Shortlist list;
      list.add_always(Ids{4, 6, 8, 11});
      o.shortlist = std::make_shared<Shortlist>(list);
    }
    Translator translator(m.model, m.store, o);
    std::map<int64_t, std::vector<Hypothesis>> found;
    for (size_t i = 0; i < sources.size(); ++i) translator.add(sources[i], wished(i));
    while (translator.held() > 0) {
      translator.step([&](int64_t ticket, std::vector<Hypothesis> h) { found[ticket] = h; });
    }
    return found;
  };
  for (const bool shortlist : {false, true}) {
    const auto together = run(4, shortlist), one_by_one = run(1, shortlist);
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto& a = together.at(static_cast<int64_t>(i));
      const auto& b = one_by_one.at(static_cast<int64_t>(i));
      ASSERT_EQ(a.size(), b.size());
      for (size_t k = 0; k < a.size(); ++k) {
        EXPECT_EQ(a[k].ids, b[k].ids);
        EXPECT_EQ(a[k].token_log_probabilities, b[k].token_log_probabilities);
        EXPECT_TRUE(holds_all(a[k].ids, wished(i).phrases)) << "source " << i;
      }
    }
  }
}

TEST(PhrasesOfTranslations, RefuseWhatTheyCannotBe) {
  TestModel m(tiny(), DType::f64, {}, 3);
  TranslatorOptions o = options(4);
  o.suppressed = {9};
  Translator translator(m.model, m.store, o);
  const auto refused = [&](const SearchOptions& wish, const std::string& part) {
    try {
      translator.add({5, 2}, wish);
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused({.phrases = {{4}, {}}}, "phrase 2 of the source has no token");
  for (const int32_t id : {2, 3, 9, 19, -1}) refused({.phrases = {{4, id}}}, "holds id");
  refused({.no_repeat_ngram = 2, .phrases = {{4}}}, "forbidden n-grams");
  refused({.groups = 2, .phrases = {{4}}}, "groups");
  EXPECT_EQ(translator.held(), 0);
}

}  // namespace
}  // namespace saturate::model
