// SPDX-License-Identifier: Apache-2.0
// Whole searches over random logits against a search that keeps its hypotheses as lists.
#include "kernels/decode/beam_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "kernels/decode/beam_place.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

constexpr int32_t kEos = 2, kBanned = 0;

struct Hypothesis {
  std::vector<int32_t> ids;
  std::vector<double> sums;     // the score after each of them and, if it ended, after the end
  double score = 0, taken = 0;  // `taken` by diversity
  bool ended = false;
};

struct Search {
  int64_t beam, vocab, ld;
  std::vector<BeamSentence> sentences;
  std::vector<std::vector<int32_t>> prefixes = {};  // none, or one of each sentence
  std::vector<int32_t> suppressed = {};
  bool draws = false;

  std::vector<int32_t> prefix(size_t s) const {
    return prefixes.empty() ? std::vector<int32_t>() : prefixes[s];
  }
};

Search plain(int64_t beam, int64_t vocab, int64_t ld, const std::vector<int32_t>& limits,
             float penalty) {
  Search s{beam, vocab, ld, {}};
  for (const int32_t limit : limits)
    s.sentences.push_back({.limit = limit, .length_penalty = penalty});
  return s;
}

class BeamStep : public testing::OnTarget {
 protected:
  Guarded ints(const Values& v) const { return Guarded(stream(), DType::i32, v); }

  // Logits of step t depend on the sentence and the token before, not on the row.
  Values logits(const Search& s, int t, int64_t sentence, int32_t before) const {
    Values z = random(s.ld, static_cast<uint64_t>(1 + t + 100 * sentence + 10000 * before));
    for (double& v : z) v = testing::rounded(v, dtype());
    z[kEos] = testing::rounded(z[kEos] + 3.0, dtype());
    z[kBanned] = 9.0;  // the likeliest, and counted in the sum
    for (int64_t c = s.vocab; c < s.ld; ++c) z[static_cast<size_t>(c)] = 50.0;
    return z;
  }

  // Sentence i begins when `between` * i steps have been done, in the first place that is free; after
  // each step the sentence of the last place goes to the first free one before it.
  std::vector<std::vector<Hypothesis>> device_search(const Search& s, int between = 0) const {
    const auto count = std::ssize(s.sentences);
    const int64_t rows = count * s.beam;
    const auto n = static_cast<size_t>(rows);
    int64_t stride = 0;
    for (const BeamSentence& b : s.sentences) stride = std::max<int64_t>(stride, b.limit);
    const int64_t slots = rows * stride;
    Values all_prefixes(1, 0.0);
    for (const auto& p : s.prefixes) all_prefixes.insert(all_prefixes.end(), p.begin(), p.end());
    const auto zeros = [&](int64_t c) { return ints(Values(static_cast<size_t>(c), 0.0)); };
    const Guarded ids = zeros(rows), positions = zeros(rows), finished = ints(Values(n, 1.0)),
                  lengths = zeros(rows), start = zeros(rows), score = wide_array(Values(n, 0.0)),
                  penalties = wide_array(Values(n, 0.0)),
                  slot = Guarded(stream(), DType::i32, slots),
                  tokens = Guarded(stream(), DType::i32, slots), sums = wide_poison(slots),
                  candidate_ids = Guarded(stream(), DType::i32, rows * s.beam),
                  candidates = wide_poison(rows * s.beam), done = zeros(count),
                  out_ids = zeros(rows * stride),
                  out_sums = wide_array(Values(static_cast<size_t>(rows * stride), 0.0)),
                  z = poison(rows * s.ld), memory_starts = zeros(rows),
                  memory_lengths = zeros(rows), prefixes = ints(all_prefixes),
                  suppressed = ints(Values(s.suppressed.begin(), s.suppressed.end()));
    const Buffer sentences(stream().device(), s.sentences.size() * sizeof(BeamSentence));
    const Buffer placements(stream().device(), 2 * s.sentences.size() * sizeof(BeamPlacement));
    const BeamState state{.ids = ids.as<int32_t>(),
                          .positions = positions.as<int32_t>(),
                          .finished = finished.as<int32_t>(),
                          .lengths = lengths.as<int32_t>(),
                          .starts = start.as<int32_t>(),
                          .scores = score.data(),
                          .penalties = penalties.data(),
                          .sentences = sentences.as<BeamSentence>(),
                          .slots = slot.as<int32_t>(),
                          .tokens = tokens.as<int32_t>(),
                          .sums = sums.data()};
    const BeamStepArgs args{.logits = z.data(),
                            .state = state,
                            .suppressed = {suppressed.as<int32_t>(), std::ssize(s.suppressed)},
                            .candidate_scores = candidates.data(),
                            .candidate_ids = candidate_ids.as<int32_t>(),
                            .result = {.done = done.as<int32_t>(),
                                       .tokens = out_ids.as<int32_t>(),
                                       .sums = out_sums.data(),
                                       .stride = stride},
                            .sentences = count,
                            .beam = s.beam,
                            .vocab = s.vocab,
                            .ld = s.ld,
                            .dtype = dtype(),
                            .eos = kEos,
                            .banned = kBanned,
                            .draws = s.draws};
    const auto place = [&](const std::vector<BeamPlacement>& what) {
      if (what.empty()) return;
      copy_to_device(stream(), placements.data(), what.data(), what.size() * sizeof what[0]);
      const Guarded number = ints({static_cast<double>(what.size())});
      beam_place(ctx(), {.placements = placements.as<BeamPlacement>(),
                         .count = number.as<int32_t>(),
                         .prefixes = prefixes.as<int32_t>(),
                         .most = 2 * count,
                         .state = state,
                         .memory_starts = memory_starts.as<int32_t>(),
                         .memory_lengths = memory_lengths.as<int32_t>(),
                         .beam = s.beam,
                         .dtype = dtype(),
                         .start = 1});
      stream().synchronize();
    };
    std::vector<int64_t> at(s.sentences.size(), -1);  // sentence by place
    size_t next = 0;
    int32_t prefix_at = 1;
    for (int t = 0; t < static_cast<int>(count) * (between + 1) + 2 * static_cast<int>(stride);
         ++t) {
      std::vector<BeamPlacement> what;
      for (; next < s.sentences.size() && static_cast<int>(next) * between <= t; ++next) {
        const auto free = std::find(at.begin(), at.end(), -1) - at.begin();
        BeamSentence b = s.sentences[next];
        b.prefix = static_cast<int32_t>(s.prefix(next).size());
        b.result = static_cast<int32_t>(next);
        const auto first = static_cast<int32_t>(static_cast<int64_t>(next) * s.beam * stride);
        what.push_back({.what = BeamPlacement::What::start,
                        .to = static_cast<int32_t>(free),
                        .first_slot = first,
                        .memory_start = 7,
                        .memory_length = 9,
                        .prefix_at = prefix_at,
                        .sentence = b});
        prefix_at += b.prefix;
        at[static_cast<size_t>(free)] = static_cast<int64_t>(next);
      }
      place(what);
      const Values before = ids.values(), where = positions.values();
      Values all;
      for (int64_t r = 0; r < rows; ++r) {
        const auto i = static_cast<size_t>(r);
        const Values row = logits(s, static_cast<int>(where[i]),
                                  std::max<int64_t>(0, at[i / static_cast<size_t>(s.beam)]),
                                  static_cast<int32_t>(before[i]));
        all.insert(all.end(), row.begin(), row.end());
      }
      z.set(all);
      beam_step(ctx(), args);
      if (between == 0) continue;
      const Values ended = done.values();
      for (int64_t& sentence : at) {
        if (sentence >= 0 && ended[static_cast<size_t>(sentence)] != 0.0) sentence = -1;
      }
      const auto free = std::find(at.begin(), at.end(), -1);
      const auto last = std::find_if(at.rbegin(), at.rend(), [](int64_t i) { return i >= 0; });
      if (free == at.end() || last == at.rend() || last.base() - 1 <= free) continue;
      place({{.what = BeamPlacement::What::move,
              .to = static_cast<int32_t>(free - at.begin()),
              .from = static_cast<int32_t>(last.base() - 1 - at.begin())}});
      std::swap(*free, *(last.base() - 1));
    }
    slot.bytes();  // checks the guards
    tokens.bytes();
    const Values number = done.values(), r = out_ids.values(), scores = out_sums.values();
    std::vector<std::vector<Hypothesis>> out(s.sentences.size());
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_GT(number[i], 0.0);
      for (size_t k = 0; k < static_cast<size_t>(number[i]); ++k) {
        const size_t from = (i * static_cast<size_t>(s.beam) + k) * static_cast<size_t>(stride);
        Hypothesis h;
        h.score = scores[from];
        h.ended = true;
        for (size_t j = 1; j < static_cast<size_t>(r[from]); ++j) {
          h.ids.push_back(static_cast<int32_t>(r[from + j]));
          h.sums.push_back(scores[from + j]);
        }
        out[i].push_back(std::move(h));
      }
      std::stable_sort(out[i].begin(), out[i].end(), [&](const auto& x, const auto& y) {
        return worth(s, i, x) > worth(s, i, y);
      });
    }
    return out;
  }

  static double worth(const Search& s, size_t sentence, const Hypothesis& h) {
    const BeamSentence& b = s.sentences[sentence];
    const size_t length = h.ended ? h.ids.size() + 1 : static_cast<size_t>(b.limit);
    return h.score / std::pow(static_cast<double>(length - s.prefix(sentence).size()),
                              static_cast<double>(b.length_penalty));
  }

  // The rules as token_rules.h states them, by looking at everything.
  void rule(const Search& s, size_t sentence, const std::vector<int32_t>& said, Values& z) const {
    const TokenRules& rules = s.sentences[sentence].rules;
    const auto penalty = static_cast<double>(rules.repetition_penalty);
    for (size_t c = 0; c < z.size(); ++c) {
      if (penalty == 1.0 || std::find(said.begin(), said.end(), c) == said.end()) continue;
      z[c] = testing::rounded(z[c] > 0 ? z[c] / penalty : z[c] * penalty, dtype());
    }
    const auto n = static_cast<size_t>(rules.no_repeat_ngram);
    for (size_t c = 0; n > 0 && c < z.size(); ++c) {
      std::vector<int32_t> with = said;
      with.push_back(static_cast<int32_t>(c));
      if (with.size() <= n) continue;
      const auto last =
          std::search(with.begin(), with.end(), with.end() - static_cast<int64_t>(n), with.end());
      if (last != with.end() - static_cast<int64_t>(n)) z[c] = -INFINITY;
    }
    if (said.size() < static_cast<size_t>(rules.least)) z[kEos] = -INFINITY;
    for (const int32_t id : s.suppressed) z[static_cast<size_t>(id)] = -INFINITY;
  }

  // The id that token_draw.h draws, by sorting all of them. z: without what is banned.
  static int32_t drawn(const TokenDraw& d, const Values& z, int32_t position) {
    std::vector<int32_t> order;
    for (size_t c = 0; c < z.size(); ++c) order.push_back(static_cast<int32_t>(c));
    const auto at = [&z](int32_t c) { return z[static_cast<size_t>(c)]; };
    std::stable_sort(order.begin(), order.end(), [&](auto x, auto y) { return at(x) > at(y); });
    if (d.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(d.top_k)));
    std::vector<double> sums;
    double sum = 0;
    for (const int32_t c : order) {
      sum += std::floor(0x1p32 *
                        std::exp((at(c) - at(order[0])) / static_cast<double>(d.temperature)));
      sums.push_back(sum);
    }
    const double share = static_cast<double>(d.top_p) * sum;
    for (size_t i = 0; d.top_p < 1.0f && i < sums.size(); ++i) {
      if (sums[i] < share) continue;
      sum = sums[i];
      break;
    }
    const Random4 r =
        random_block(d.seed, static_cast<uint64_t>(d.stream),
                     kSampleOp + static_cast<uint32_t>(d.sample), static_cast<uint64_t>(position));
    const double target = std::floor(sum * (r.x[0] * 0x1p-32));
    const auto found = std::find_if(sums.begin(), sums.end(), [=](double x) { return x > target; });
    return order[static_cast<size_t>(found - sums.begin())];
  }

  // All that may follow `h`, of which `lost[id]` is what diversity takes from a token.
  std::vector<Hypothesis> extensions(const Search& s, size_t sentence, const Hypothesis& h,
                                     int64_t group, const std::map<int32_t, double>& lost) const {
    const BeamSentence& b = s.sentences[sentence];
    const std::vector<int32_t> prefix = s.prefix(sentence);
    const size_t t = h.ids.size();
    if (h.ended) return {h};
    std::vector<Hypothesis> next;
    if (t < prefix.size()) {
      next.push_back(h);
      next.back().ids.push_back(prefix[t]);
      next.back().sums.push_back(h.score);
      return next;
    }
    Values z = logits(s, static_cast<int>(t), static_cast<int64_t>(sentence),
                      h.ids.empty() ? 1 : h.ids.back());
    z.resize(static_cast<size_t>(s.vocab));
    rule(s, sentence, h.ids, z);
    double sum = 0;
    for (const double v : z) sum += std::exp(v);
    const bool last = t + 1 == static_cast<size_t>(b.limit);
    z[kBanned] = -INFINITY;
    int32_t only = last ? kEos : -1;
    if (!last && b.drawn != 0) {
      TokenDraw d = b.draw;
      d.sample = static_cast<int32_t>(group);
      only = drawn(d, z, static_cast<int32_t>(t));
    }
    for (int32_t c = 0; c < s.vocab; ++c) {
      if ((only >= 0 && c != only) || z[static_cast<size_t>(c)] == -INFINITY) continue;
      Hypothesis e = h;
      e.score += z[static_cast<size_t>(c)] - std::log(sum);
      e.ended = c == kEos;
      const auto loss = lost.find(c);
      if (loss != lost.end() && c != kEos) e.taken += loss->second;
      if (!e.ended) {
        e.ids.push_back(c);
        e.sums.push_back(e.score);
      }
      next.push_back(std::move(e));
    }
    return next;
  }

  // What had ended when the search was over, the best first.
  std::vector<Hypothesis> list_search(const Search& s, size_t sentence) const {
    const BeamSentence& b = s.sentences[sentence];
    const auto groups = static_cast<size_t>(b.groups);
    const size_t width = static_cast<size_t>(s.beam) / groups;
    const auto best_first = [](std::vector<Hypothesis>& list, size_t most) {
      std::stable_sort(list.begin(), list.end(), [](const auto& x, const auto& y) {
        return x.score - x.taken > y.score - y.taken;
      });
      list.resize(std::min(list.size(), most));
    };
    const auto worth_left = [&](const Hypothesis& h) {
      Hypothesis left = h;
      left.score -= left.taken;
      return worth(s, sentence, left);
    };
    std::vector<std::vector<Hypothesis>> beams(groups, std::vector<Hypothesis>(1));
    for (size_t t = 0; t < static_cast<size_t>(b.limit); ++t) {
      if (b.apart != 0 && t == s.prefix(sentence).size()) {
        std::vector<Hypothesis> next = extensions(s, sentence, beams[0][0], 0, {});
        best_first(next, groups);
        for (size_t g = 0; g < groups; ++g) {
          beams[g].clear();
          if (g < next.size()) beams[g].push_back(next[g]);
        }
      } else {
        std::map<int32_t, double> lost;
        for (size_t g = 0; g < groups; ++g) {
          std::vector<Hypothesis> next;
          for (const Hypothesis& h : beams[g]) {
            const auto more = extensions(s, sentence, h, static_cast<int64_t>(g), lost);
            next.insert(next.end(), more.begin(), more.end());
          }
          best_first(next, width);
          beams[g] = std::move(next);
          for (const Hypothesis& h : beams[g])
            if (!h.ended) lost[h.ids.back()] += static_cast<double>(b.diversity);
        }
      }
      bool done = true;
      for (const std::vector<Hypothesis>& beam : beams) {
        double open = -INFINITY;
        for (const auto& h : beam) open = h.ended ? open : std::max(open, worth_left(h));
        const auto known = std::count_if(beam.begin(), beam.end(), [&](const auto& h) {
          return h.ended && worth_left(h) >= open;
        });
        const bool ended = std::all_of(beam.begin(), beam.end(), [](auto& h) { return h.ended; });
        done = done && (ended || known >= (b.wanted + b.groups - 1) / b.groups);
      }
      if (done) break;
    }
    std::vector<Hypothesis> found;
    for (const auto& beam : beams)
      std::copy_if(beam.begin(), beam.end(), std::back_inserter(found),
                   [](auto& h) { return h.ended; });
    std::stable_sort(found.begin(), found.end(), [&](const auto& x, const auto& y) {
      return worth(s, sentence, x) > worth(s, sentence, y);
    });
    return found;
  }

  void expect_equal(const Search& s, const std::vector<std::vector<Hypothesis>>& got,
                    const char* what) const {
    // Sums of 16-bit logits meet often, and equal scores may be told apart by rounding alone: those
    // types search greedily, where only the logits of one row are compared and ties go to the smaller
    // id.
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(std::string(what) + " beam " + std::to_string(s.beam) + " sentence " +
                   std::to_string(i));
      const std::vector<Hypothesis> want = list_search(s, i);
      ASSERT_EQ(got[i].size(), want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_EQ(got[i][k].ids, want[k].ids) << k;
        // Each step adds a log-softmax, of which the largest term is the logarithm of a sum of vocab.
        const double bound = 64 * wide_unit() * (std::fabs(want[k].score) + 10);
        EXPECT_NEAR(got[i][k].score, want[k].score, bound) << k;
        for (size_t j = 0; j < std::min(want[k].sums.size(), got[i][k].sums.size()); ++j)
          EXPECT_NEAR(got[i][k].sums[j], want[k].sums[j], bound) << k << " token " << j;
      }
    }
  }
  bool narrow() const { return dtype() == DType::bf16 || dtype() == DType::f16; }
};
INSTANTIATE_TEST_SUITE_P(Targets, BeamStep, testing::all_targets(), testing::target_name);

TEST_P(BeamStep, EqualsSearchOverLists) {
  for (const Search& s : {plain(1, 2500, 2504, {6, 1, 9}, 1.0f),
                          plain(5, 300, 303, {7, 2, 9}, 0.0f), plain(4, 40, 64, {12, 8}, 1.0f),
                          plain(32, 60, 64, {6, 5}, 2.0f), plain(33, 60, 64, {6, 5}, 1.0f),
                          plain(64, 90, 96, {7, 5}, 0.5f), plain(7, 4, 8, {5}, 0.6f)}) {
    if (narrow() && s.beam > 1) continue;
    expect_equal(s, device_search(s), "together");
  }
}

// Each sentence with wishes of its own, in one batch.
TEST_P(BeamStep, FollowsTheWishesOfEachSentence) {
  for (const int64_t beam : {1, 4}) {
    if (narrow() && beam > 1) continue;
    const auto most = static_cast<int32_t>(beam);
    Search s{beam, 30, 32, {}};
    s.sentences = {{.limit = 9},
                   {.limit = 9, .wanted = most, .length_penalty = 0.5f},
                   {.limit = 8, .wanted = most},
                   {.limit = 12, .rules = {.repetition_penalty = 1.5f}},
                   {.limit = 12, .rules = {.no_repeat_ngram = 1, .least = 9}},
                   {.limit = 14, .wanted = most, .rules = {.no_repeat_ngram = 2, .least = 12}},
                   {.limit = 14, .rules = {.no_repeat_ngram = 3, .least = 13}},
                   {.limit = 12, .rules = {.repetition_penalty = 0.4f, .least = 6}}};
    s.prefixes = {{}, {}, {5, 6}, {7}, {}, {4, 4, 9}, {4, 5, 6, 4, 5}, {}};
    s.suppressed = {11, 3};
    expect_equal(s, device_search(s), "together");
  }
}

// Groups of every kind beside plain searches. Rows that no group has: 2 of 3 x 2 in 8.
TEST_P(BeamStep, GroupsTakeNoPlacesFromEachOther) {
  for (const int64_t beam : {1, 6, 8, 33}) {
    if (narrow() && beam > 1) continue;
    const auto most = static_cast<int32_t>(beam);
    Search s{beam, 50, 56, {}};
    s.draws = true;
    s.sentences = {{.limit = 9, .groups = most, .diversity = 0.7f},
                   {.limit = 9, .wanted = most, .groups = std::min(3, most), .diversity = 1.5f},
                   {.limit = 8, .groups = std::min(3, most)},
                   {.limit = 9, .groups = most, .apart = 1},
                   {.limit = 9, .groups = std::min(2, most), .apart = 1},
                   {.limit = 7, .wanted = most},
                   {.limit = 3, .rules = {.least = 2}, .groups = most, .apart = 1},
                   {.limit = 12, .groups = most, .drawn = 1, .draw = {.seed = 7, .stream = 3}},
                   {.limit = 12,
                    .groups = std::min(4, most),
                    .drawn = 1,
                    .draw = {.seed = 8, .temperature = 0.6f, .top_p = 0.8f, .top_k = 20}}};
    s.prefixes = {{}, {5, 6}, {}, {7, 7}, {}, {}, {}, {9}, {}};
    expect_equal(s, device_search(s), "together");
    expect_equal(s, device_search(s, 2), "one after the other");
  }
}

// In 16 bits as well the tokens are those drawn from the rounded logits.
TEST_P(BeamStep, DrawsWhatTheDefinitionSays) {
  Search s{16, 700, 704, {}};
  s.draws = true;
  s.sentences = {
      {.limit = 9, .groups = 16, .drawn = 1, .draw = {.seed = 1, .temperature = 2.0f}},
      {.limit = 9, .groups = 16, .drawn = 1, .draw = {.seed = 1, .stream = 1, .top_k = 9}},
      {.limit = 9, .groups = 16, .drawn = 1, .draw = {.seed = 1, .top_p = 0.9f}}};
  std::set<std::vector<int32_t>> different;
  const auto got = device_search(s);
  for (size_t i = 0; i < got.size(); ++i) {
    std::set<std::vector<int32_t>> drawn, wanted;
    for (const Hypothesis& h : got[i]) drawn.insert(h.ids), different.insert(h.ids);
    for (const Hypothesis& h : list_search(s, i)) wanted.insert(h.ids);
    // A GPU's weights are a little off, so one of hundreds of draws may fall on the other side.
    size_t other = 0;
    for (const std::vector<int32_t>& ids : drawn) other += wanted.contains(ids) ? 0 : 1;
    EXPECT_LE(other, ctx().device.is_cuda() ? 2u : 0u) << i;
    EXPECT_LE(drawn.size(), wanted.size() + other);
  }
  EXPECT_GT(different.size(), 30u);
}

// Sentences that come later, into places of those that ended, and change places on the way.
TEST_P(BeamStep, SentencesComeAndMove) {
  for (const int64_t beam : {1, 3}) {
    Search s = plain(beam, 50, 56, {6, 3, 9, 5, 8, 2, 7, 9}, 0.7f);
    s.prefixes = {{}, {9}, {}, {8, 8}, {}, {}, {6, 5, 4}, {}};
    if (!narrow() || beam == 1) expect_equal(s, device_search(s, 2), "one after the other");
    // Not close: the same numbers, wherever the rows lie.
    const auto together = device_search(s), apart = device_search(s, 2);
    for (size_t i = 0; i < together.size(); ++i) {
      ASSERT_EQ(apart[i].size(), together[i].size()) << i;
      for (size_t k = 0; k < together[i].size(); ++k) {
        EXPECT_EQ(apart[i][k].ids, together[i][k].ids);
        EXPECT_EQ(apart[i][k].sums, together[i][k].sums);
        EXPECT_EQ(apart[i][k].score, together[i][k].score);
      }
    }
  }
}

TEST(BeamStepRules, RejectsBadArguments) {
  const testing::TestContext t({});
  float x = 0;
  int32_t i = 0;
  BeamSentence b;
  const BeamState state{&i, &i, &i, &i, &i, &x, &x, &b, &i, &i, &x};
  const BeamStepArgs good{.logits = &x,
                          .state = state,
                          .candidate_scores = &x,
                          .candidate_ids = &i,
                          .result = {.done = &i, .tokens = &i, .sums = &x, .stride = 1},
                          .sentences = 1,
                          .vocab = 4,
                          .ld = 4,
                          .eos = 2};
  const auto rejects = [&](auto change) {
    BeamStepArgs bad = good;
    change(bad);
    EXPECT_THROW(beam_step(t.get(), bad), Error);
  };
  rejects([](auto& a) { a.beam = 0; });
  rejects([](auto& a) { a.beam = kMaxBeam + 1; });
  rejects([](auto& a) { a.ld = 3; });
  rejects([](auto& a) { a.eos = 4; });
  rejects([](auto& a) { a.banned = 2; });
  rejects([](auto& a) { a.state.slots = nullptr; });
  rejects([](auto& a) { a.suppressed.count = 1; });
  rejects([](auto& a) { a.dtype = DType::f16; });
  BeamPlacement p;
  const BeamPlaceArgs place{.placements = &p,
                            .count = &i,
                            .prefixes = &i,
                            .most = 1,
                            .state = state,
                            .memory_starts = &i,
                            .memory_lengths = &i};
  const auto refuses = [&](auto change) {
    BeamPlaceArgs bad = place;
    change(bad);
    EXPECT_THROW(beam_place(t.get(), bad), Error);
  };
  refuses([](auto& a) { a.most = -1; });
  refuses([](auto& a) { a.beam = 0; });
  refuses([](auto& a) { a.count = nullptr; });
  refuses([](auto& a) {  // no GPU could read it
    a.placements = reinterpret_cast<const BeamPlacement*>(
        reinterpret_cast<const char*>(a.placements) + sizeof(int32_t));
  });
  refuses([](auto& a) { a.state.sums = nullptr; });
  refuses([](auto& a) { a.dtype = DType::bf16; });
}

}  // namespace
}  // namespace saturate::kernels
