// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/sample_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

class SampleStep : public testing::OnTarget {
 protected:
  // Every row draws from the same logits with numbers of its own; returns what the rows drew. A row
  // that draws nothing must end in the way of `end_of_empty`.
  std::vector<int> draw(const Values& z, int64_t rows, SampleSequence c, int64_t vocab = 0,
                        double end_of_empty = 1) const {
    const auto ld = static_cast<int64_t>(z.size());
    Values all;
    for (int64_t r = 0; r < rows; ++r) all.insert(all.end(), z.begin(), z.end());
    const auto n = static_cast<size_t>(rows);
    Values starts(n);
    std::vector<SampleSequence> sequences;
    for (size_t r = 0; r < n; ++r) {
      starts[r] = static_cast<double>(2 * r);
      c.stream = c.result = static_cast<int32_t>(r);
      c.limit = 9;
      sequences.push_back(c);
    }
    const Guarded logits = array(all), ids = ints(Values(n, 1.0)), positions = ints(Values(n, 0.0)),
                  finished = ints(Values(n, 0.0)), start = ints(starts),
                  tokens = ints(Values(2 * n, 1.0)), result = ints(Values(3 * n, 0.0)),
                  scores = Guarded(stream(), DType::f32, Values(3 * n, 0.0));
    const Buffer wishes(stream().device(), n * sizeof c);
    copy_to_device(stream(), wishes.data(), sequences.data(), wishes.bytes());
    stream().synchronize();
    sample_step(ctx(), {.logits = logits.data(),
                        .state = {.ids = ids.as<int32_t>(),
                                  .positions = positions.as<int32_t>(),
                                  .finished = finished.as<int32_t>(),
                                  .starts = start.as<int32_t>(),
                                  .sequences = wishes.as<SampleSequence>(),
                                  .tokens = tokens.as<int32_t>()},
                        .result = {.tokens = result.as<int32_t>(),
                                   .log_probabilities = scores.as<float>(),
                                   .stride = 3},
                        .rows = rows,
                        .vocab = vocab > 0 ? vocab : ld,
                        .ld = ld,
                        .dtype = dtype()});
    const Values r = result.values(), next = ids.values(), at = positions.values(),
                 said = tokens.values(), share = scores.values();
    std::vector<int> drawn;
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(at[i], 1.0);
      const bool any = r[3 * i] == 1.0;
      if (any) {
        EXPECT_EQ(next[i], r[3 * i + 2]);
        EXPECT_EQ(said[2 * i + 1], r[3 * i + 2]);
        if (c.wants_scores != 0) {
          const double want = log_share(z, static_cast<size_t>(r[3 * i + 2]));
          EXPECT_NEAR(share[3 * i + 2], want, 64 * epsilon_of(DType::f32) * (1 + std::fabs(want)));
        }
      }
      if (!any) {
        EXPECT_EQ(r[3 * i + 1], end_of_empty);
      }
      drawn.push_back(any ? static_cast<int>(r[3 * i + 2]) : -1);
    }
    return drawn;
  }
  static double log_share(const Values& z, size_t id) {
    double sum = 0;
    for (const double v : z) sum += std::isnan(v) ? 0.0 : std::exp(v);
    return z[id] - std::log(sum);
  }
  Guarded ints(const Values& v) const { return Guarded(stream(), DType::i32, v); }

  // The tokens that may be drawn and their shares, by plain sorting.
  static std::map<int, double> shares(const Values& z, double temperature, size_t top_k,
                                      double top_p, double min_p = 0) {
    std::vector<int> order(z.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return z[static_cast<size_t>(a)] > z[static_cast<size_t>(b)];
    });
    if (top_k > 0) order.resize(std::min(order.size(), top_k));
    std::vector<double> p;
    for (const int id : order) p.push_back(std::exp(z[static_cast<size_t>(id)] / temperature));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    std::map<int, double> kept;
    double sum = 0, share = 0;
    for (size_t i = 0; i < p.size() && (i == 0 || sum < top_p * total); ++i) {
      if (p[i] < min_p * p[0]) break;
      sum += p[i];
      kept[order[i]] = p[i];
    }
    for (auto& [id, v] : kept) share += v;
    for (auto& [id, v] : kept) v /= share;
    return kept;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SampleStep, testing::all_targets(), testing::target_name);

// Rows of an odd length lie at every distance from 16 bytes.
TEST_P(SampleStep, FindsTheLargestWhereverItLies) {
  constexpr int kVocab = 20003;
  const Values some = random(kVocab + 8, 3);  // columns behind the vocabulary are larger still
  for (const int where : {0, 1, 6, 7, 8, 9, 4095, 12345, kVocab - 9, kVocab - 2, kVocab - 1}) {
    Values z = some;
    for (int c = kVocab; c < kVocab + 8; ++c) z[static_cast<size_t>(c)] = 99.0;
    z[static_cast<size_t>(where)] = 30.0;
    for (const float temperature : {0.0f, 0.5f}) {
      const SampleSequence wish{.seed = 5, .temperature = temperature};
      for (const int id : draw(z, 9, wish, kVocab)) EXPECT_EQ(id, where) << temperature;
    }
  }
}

TEST_P(SampleStep, DrawsInTheRightShares) {
  const Values z = random(40, 3);
  constexpr int64_t kRows = 20000;
  struct Cut {
    float temperature, top_p;
    int32_t top_k;
    float min_p = 0.0f;
  };
  for (const Cut cut : {Cut{1.0f, 1.0f, 0}, Cut{0.7f, 1.0f, 5}, Cut{1.5f, 0.6f, 0},
                        Cut{1.0f, 0.8f, 10}, Cut{1.0f, 1.0f, 100}, Cut{1.0f, 1.0f, 0, 0.2f},
                        Cut{1.5f, 0.9f, 30, 0.1f}, Cut{1.0f, 1.0f, 0, 1.0f}}) {
    const auto want =
        shares(z, static_cast<double>(cut.temperature), static_cast<size_t>(cut.top_k),
               static_cast<double>(cut.top_p), static_cast<double>(cut.min_p));
    std::map<int, int> counts;
    for (const int id : draw(z, kRows,
                             {.seed = 11,
                             .temperature = cut.temperature,
                             .top_p = cut.top_p,
                             .top_k = cut.top_k,
                             .min_p = cut.min_p})) {
      ASSERT_TRUE(want.contains(id)) << id;
      ++counts[id];
    }
    double chi_square = 0;
    for (const auto& [id, p] : want) {
      const double expected = p * static_cast<double>(kRows);
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    // Mean n - 1, standard deviation sqrt(2 (n - 1)); five of those are passed once in a million.
    const double freedom = static_cast<double>(want.size()) - 1;
    EXPECT_LE(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 1) << want.size();
  }
}

TEST_P(SampleStep, TakesTheLikeliestWithoutTemperature) {
  Values z = random(5003, 4);
  z[17] = z[4001] = 9.0;
  z[3] = NAN;
  EXPECT_EQ(draw(z, 3, {.temperature = 0.0f, .wants_scores = 1}), (std::vector<int>{17, 17, 17}));
  draw(z, 50, {.seed = 3, .wants_scores = 1});
  EXPECT_EQ(draw(z, 3, {.top_k = 1}), (std::vector<int>{17, 17, 17}));
  EXPECT_EQ(draw(z, 3, {.top_p = 1e-6f}), (std::vector<int>{17, 17, 17}));
  // The columns behind the vocabulary never count.
  z[5000] = 100.0;
  EXPECT_EQ(draw(z, 1, {.top_k = 1}, 4999), (std::vector<int>{17}));
  // Equal logits: the smaller ids are the top ones.
  const Values flat(300, 0.5);
  for (const int id : draw(flat, 500, {.seed = 5, .top_k = 7})) EXPECT_LT(id, 7);
}

TEST_P(SampleStep, EndsRowsWithoutNumbers) {
  EXPECT_EQ(draw(Values(40, NAN), 2, {}, 0, 2), (std::vector<int>{-1, -1}));
  EXPECT_EQ(draw(Values(40, -INFINITY), 2, {}, 0, 2), (std::vector<int>{-1, -1}));
  Values z(40, 0.0);
  z[8] = INFINITY;
  EXPECT_EQ(draw(z, 2, {}, 0, 2), (std::vector<int>{-1, -1}));
  EXPECT_EQ(draw(z, 2, {.temperature = 0.0f}, 0, 2), (std::vector<int>{-1, -1}));
}

TEST_P(SampleStep, KeepsToTheCutOfALargeVocabulary) {
  const Values z = random(3000, 9);
  const SampleSequence c{.seed = 3, .temperature = 0.8f, .top_p = 0.9f, .top_k = 900};
  const auto drawn = draw(z, 400, c);
  const auto allowed = shares(z, 0.8, 900, 0.9);
  for (const int id : drawn) EXPECT_TRUE(allowed.contains(id)) << id;
  EXPECT_EQ(drawn, draw(z, 400, c));
}

// The GPU counts for 6,144 ids after the other: ids at both sides of each border, in the prompt, in
// what was said since, once and several times, and in both. All columns are looked at.
TEST_P(SampleStep, PenalisesIdsAllOverTheVocabulary) {
  constexpr int64_t kVocab = 20003, kPrompt = 6;
  const std::vector<int32_t> held{0,     6143,  6144, 12287, 20002, 6144,    // the prompt
                                  12288, 20002, 6143, 12288, 18431, 12288};  // and what was said
  Values z = random(kVocab, 21);
  for (double& v : z) v = testing::rounded(4 * v, dtype());
  for (const TokenRules& rules :
       {TokenRules{.repetition_penalty = 1.3f},
        TokenRules{.presence_penalty = 0.5f, .frequency_penalty = 0.25f},
        TokenRules{.repetition_penalty = 1.3f, .frequency_penalty = -0.5f}}) {
    Values tokens(held.begin(), held.end());
    tokens.push_back(0);
    const auto last = static_cast<double>(held.size() - 1);
    const Guarded logits = array(z), ids = ints({tokens[held.size() - 1]}), at = ints({last}),
                  finished = ints({0}), start = ints({0}), said = ints(tokens),
                  result = ints({0, 0, 0, 0, 0, 0, 0, 0, 0}),
                  scores = Guarded(stream(), DType::f32, Values(9, 0.0));
    const SampleSequence wish{.temperature = 0.0f,
                              .prompt = kPrompt,
                              .limit = static_cast<int32_t>(held.size()) + 1,
                              .rules = rules};
    const Buffer wishes(stream().device(), sizeof wish);
    copy_to_device(stream(), wishes.data(), &wish, sizeof wish);
    sample_step(ctx(), {.logits = logits.data(),
                        .state = {.ids = ids.as<int32_t>(),
                                  .positions = at.as<int32_t>(),
                                  .finished = finished.as<int32_t>(),
                                  .starts = start.as<int32_t>(),
                                  .sequences = wishes.as<SampleSequence>(),
                                  .tokens = said.as<int32_t>()},
                        .result = {.tokens = result.as<int32_t>(),
                                   .log_probabilities = scores.as<float>(),
                                   .stride = 9},
                        .rows = 1,
                        .vocab = kVocab,
                        .ld = kVocab,
                        .dtype = dtype()});
    const Values left = logits.values();
    const auto penalty = static_cast<double>(rules.repetition_penalty);
    for (int32_t c = 0; c < kVocab; ++c) {
      double want = z[static_cast<size_t>(c)];
      if (std::find(held.begin(), held.end(), c) != held.end())
        want = testing::rounded(want > 0 ? want / penalty : want * penalty, dtype());
      const auto times = std::count(held.begin() + kPrompt, held.end(), c);
      if (times > 0)
        want -= static_cast<double>(rules.presence_penalty) +
                static_cast<double>(times) * static_cast<double>(rules.frequency_penalty);
      EXPECT_NEAR(left[static_cast<size_t>(c)], want,
                  2 * epsilon_of(dtype()) * (1 + std::fabs(want)))
          << c;
    }
  }
}

// Biases and allowed tokens of each sequence, by the number of its result, where the host wrote them.
TEST_P(SampleStep, ChoosesAmongTheTokensOfEachSequence) {
  constexpr int64_t kVocab = 20003, kWords = (kVocab + 31) / 32, kRows = 4, kBiases = 3;
  const Values z = random(kVocab, 31);
  Values all;
  for (int64_t r = 0; r < kRows; ++r) all.insert(all.end(), z.begin(), z.end());
  const HostBuffer words(stream().device(), kRows * kWords * sizeof(uint32_t));
  const HostBuffer biases(stream().device(), kRows * kBiases * sizeof(TokenBias));
  std::fill_n(words.as<uint32_t>(), kRows * kWords, 0u);
  std::fill_n(biases.as<TokenBias>(), kRows * kBiases, TokenBias{5, 1000.0f});  // nobody's
  const auto allowed = [&](int64_t row, int32_t id) {
    return id % (row + 2) == 1 || id == kVocab - 1;
  };
  std::vector<SampleSequence> wishes(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    SampleSequence& c = wishes[static_cast<size_t>(r)];
    c.temperature = 0.0f;
    c.limit = 9;
    c.wants_scores = 1;
    c.result = static_cast<int32_t>(kRows - 1 - r);
    c.chooses = r % 2 == 1 ? 1 : 0;
    c.biases = r < 2 ? kBiases - 1 : 0;
    for (int32_t id = 0; id < kVocab; ++id)
      if (allowed(r, id)) words.as<uint32_t>()[c.result * kWords + id / 32] |= 1u << (id % 32);
    TokenBias* const own = biases.as<TokenBias>() + c.result * kBiases;
    own[0] = {static_cast<int32_t>(300 + r), 40.0f};
    own[1] = {kVocab - 1, -7.5f};
  }
  const auto n = static_cast<size_t>(kRows);
  const Guarded logits = array(all), ids = ints(Values(n, 1.0)), at = ints(Values(n, 0.0)),
                finished = ints(Values(n, 0.0)), start = ints({0, 2, 4, 6}),
                tokens = ints(Values(2 * n, 1.0)), result = ints(Values(3 * n, 0.0)),
                scores = Guarded(stream(), DType::f32, Values(3 * n, 0.0));
  const Buffer sequences(stream().device(), wishes.size() * sizeof(SampleSequence));
  copy_to_device(stream(), sequences.data(), wishes.data(), sequences.bytes());
  stream().synchronize();
  sample_step(ctx(), {.logits = logits.data(),
                      .state = {.ids = ids.as<int32_t>(),
                                .positions = at.as<int32_t>(),
                                .finished = finished.as<int32_t>(),
                                .starts = start.as<int32_t>(),
                                .sequences = sequences.as<SampleSequence>(),
                                .tokens = tokens.as<int32_t>()},
                      .result = {.tokens = result.as<int32_t>(),
                                 .log_probabilities = scores.as<float>(),
                                 .stride = 3},
                      .choices = {.biases = biases.as<TokenBias>(),
                                  .bias_stride = kBiases,
                                  .allowed = words.as<uint32_t>(),
                                  .word_stride = kWords},
                      .rows = kRows,
                      .vocab = kVocab,
                      .ld = kVocab,
                      .dtype = dtype()});
  const Values drawn = result.values(), shares = scores.values();
  for (int64_t r = 0; r < kRows; ++r) {
    SCOPED_TRACE(r);
    Values want = z;
    const SampleSequence& c = wishes[static_cast<size_t>(r)];
    if (c.biases > 0) {
      for (const auto& [id, bias] : {std::pair<int64_t, double>{300 + r, 40.0}, {kVocab - 1, -7.5}})
        want[static_cast<size_t>(id)] =
            testing::rounded(want[static_cast<size_t>(id)] + bias, dtype());
    }
    for (int32_t id = 0; id < kVocab; ++id)
      if (c.chooses != 0 && !allowed(r, id)) want[static_cast<size_t>(id)] = -INFINITY;
    const auto best = std::max_element(want.begin(), want.end()) - want.begin();
    const auto part = static_cast<size_t>(c.result) * 3;
    EXPECT_EQ(drawn[part], 1.0);
    EXPECT_EQ(drawn[part + 2], static_cast<double>(best));
    EXPECT_NEAR(shares[part + 2], log_share(want, static_cast<size_t>(best)), 1e-4);
  }
}

// Thousands of equal logits share a bin, with a few above and many below them.
TEST_P(SampleStep, TellsEqualLogitsApartByTheirIds) {
  constexpr int kVocab = 20003;
  Values z(kVocab, -1.0);
  for (int c = 0; c < kVocab; c += 3) z[static_cast<size_t>(c)] = 1.0;  // 6,668 of them
  z[10] = 2.0;
  z[20] = NAN;
  const auto drawn = draw(z, 300, {.seed = 7, .top_k = 4001});
  std::map<int, int> thirds;
  for (const int id : drawn) {
    EXPECT_TRUE(id == 10 || (id % 3 == 0 && id < 12000)) << id;
    ++thirds[id / 4000];
  }
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(thirds[i], 100, 45) << i;
  // What is drawn with the cut by share is drawn with the cut by number of the same set, too.
  const double all = std::exp(2.0) + 6668 * std::exp(1.0) + 13333 * std::exp(-1.0);
  const auto share = static_cast<float>((std::exp(2.0) + 3999.5 * std::exp(1.0)) / all);
  EXPECT_EQ(draw(z, 300, {.seed = 7, .top_p = share}), drawn);
  EXPECT_EQ(draw(z, 300, {.seed = 9, .min_p = 0.3f}), draw(z, 300, {.seed = 9, .top_k = 6669}));
}

// A GPU draws what a CPU draws, but where rounding of a weight in fp32 moves a limit.
TEST_P(SampleStep, DrawsWhatTheReferenceDraws) {
  const Values z = random(40000, 12);
  Values scaled = z;
  for (double& v : scaled) v = testing::rounded(4 * v, dtype());
  for (const SampleSequence& c :
       {SampleSequence{.seed = 3}, SampleSequence{.seed = 4, .temperature = 0.7f, .top_p = 0.9f},
        SampleSequence{.seed = 5, .temperature = 1.3f, .top_k = 3000, .min_p = 0.001f},
        SampleSequence{.seed = 6, .temperature = 3.0f, .top_p = 0.99f, .top_k = 30000}}) {
    const auto drawn = draw(scaled, 200, c);
    std::vector<int> order;
    std::vector<double> sums;
    order.resize(scaled.size());
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](int i) { return scaled[static_cast<size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return at(a) > at(b); });
    if (c.top_k > 0) order.resize(static_cast<size_t>(c.top_k));
    double sum = 0, kept = 0;
    for (const int i : order)
      sums.push_back(sum += std::exp((at(i) - at(order[0])) / static_cast<double>(c.temperature)));
    const double limit = static_cast<double>(c.top_p) * sum;
    for (size_t i = 0; i < order.size() && (i == 0 || sums[i - 1] < limit); ++i) {
      if (std::exp((at(order[i]) - at(order[0])) / static_cast<double>(c.temperature)) <
          static_cast<double>(c.min_p))
        break;
      kept = sums[i];
    }
    int other = 0;
    for (size_t r = 0; r < drawn.size(); ++r) {
      const double x = random_block(c.seed, static_cast<uint32_t>(r), 0x53414D, 0).x[0];
      const auto want = std::lower_bound(sums.begin(), sums.end(), kept * x / 4294967296.0);
      other += drawn[r] == order[static_cast<size_t>(want - sums.begin())] ? 0 : 1;
    }
    // A weight in fp32 is off by some 2^-22 of itself, the sum of 40,000 by less of itself than that,
    // and a token has a share of 1/40,000 or more where it is drawn: a limit has moved past the
    // number in about one draw of a hundred. Of 200 more than nine are so by chance once in 10,000.
    EXPECT_LE(other, 9) << c.seed;
  }
}

// Whole sequences with wishes of their own: prompts, ends, limits, rules; one comes late and one
// changes its row. Greedy, against the rules applied to a list.
TEST_P(SampleStep, FollowsTheWishesOfEachSequence) {
  constexpr int32_t kVocab = 24, kMost = 12;
  struct Case {
    std::vector<int32_t> prompt;
    SampleSequence wish;
  };
  const auto wish = [](TokenRules rules, int32_t limit, std::vector<int32_t> ends) {
    SampleSequence s{.temperature = 0.0f, .limit = limit, .rules = rules};
    for (const int32_t id : ends) s.ends[s.end_count++] = id;
    return s;
  };
  std::vector<Case> cases{
      {{3}, wish({}, 6, {})},
      {{3, 4, 5}, wish({.repetition_penalty = 1.7f}, kMost, {})},
      {{3, 4, 3, 4, 3}, wish({.no_repeat_ngram = 2}, kMost, {})},
      {{9, 8}, wish({.no_repeat_ngram = 1, .least = 6}, kMost, {1, 2, 6, 7, 10, 11, 12, 13})},
      {{3, 4, 4}, wish({.presence_penalty = 0.4f, .frequency_penalty = 0.3f}, kMost, {})},
      {{5, 5}, wish({.repetition_penalty = 1.3f, .frequency_penalty = -0.5f}, kMost, {})},
      {{9, 8}, wish({}, kMost, {1, 2, 6, 7, 10, 11, 12, 13})}};
  const std::vector<int32_t> never{20, 21};
  const auto logits = [&](size_t sequence, int32_t position, int32_t before) {
    return random(kVocab, 1 + sequence + 10 * static_cast<uint64_t>(position) +
                              1000 * static_cast<uint64_t>(before));
  };
  const size_t n = cases.size(), rows = n + 1;
  const auto zeros = [&](size_t count) { return ints(Values(count, 0.0)); };
  const Guarded z = poison(static_cast<int64_t>(rows) * kVocab), ids = zeros(rows),
                positions = zeros(rows), finished = ints(Values(rows, 1.0)), starts = zeros(rows),
                tokens = zeros(n * kMost), result = zeros(n * (kMost + 2)),
                scores = Guarded(stream(), DType::f32, Values(n * (kMost + 2), 0.0)),
                suppressed = ints({20, 21});
  const Buffer wishes(stream().device(), rows * sizeof(SampleSequence));
  const SampleState state{.ids = ids.as<int32_t>(),
                          .positions = positions.as<int32_t>(),
                          .finished = finished.as<int32_t>(),
                          .starts = starts.as<int32_t>(),
                          .sequences = wishes.as<SampleSequence>(),
                          .tokens = tokens.as<int32_t>()};
  std::vector<int> at(rows, -1);  // sequence by row
  const auto place = [&](SamplePlacement p, const std::vector<int32_t>& prompt) {
    const Buffer one(stream().device(), sizeof p);
    copy_to_device(stream(), one.data(), &p, sizeof p);
    const Guarded count = ints({1.0}), prompts = ints(Values(prompt.begin(), prompt.end()));
    sample_place(ctx(), {.placements = one.as<SamplePlacement>(),
                         .count = count.as<int32_t>(),
                         .prompts = prompts.as<int32_t>(),
                         .most = 3,
                         .state = state});
    stream().synchronize();
  };
  const auto start = [&](size_t i) {
    SamplePlacement p{.what = SamplePlacement::What::start, .to = static_cast<int32_t>(i)};
    p.first_slot = static_cast<int32_t>(i) * kMost;
    p.sequence = cases[i].wish;
    p.sequence.prompt = static_cast<int32_t>(cases[i].prompt.size());
    p.sequence.result = static_cast<int32_t>(i);
    p.sequence.wants_scores = 1;
    p.first = i == 1 ? p.sequence.prompt - 1 : 0;  // as if its prompt had been read
    place(p, cases[i].prompt);
    at[i] = static_cast<int>(i);
  };
  for (size_t i = 0; i + 1 < n; ++i) start(i);
  for (int t = 0; t < 2 * kMost; ++t) {
    if (t == 3) start(n - 1);
    if (t == 5) {
      place({.what = SamplePlacement::What::move, .to = static_cast<int32_t>(n), .from = 2}, {0});
      std::swap(at[n], at[2]);
    }
    const Values before = ids.values(), where = positions.values();
    Values all;
    for (size_t r = 0; r < rows; ++r) {
      const Values row = logits(static_cast<size_t>(std::max(at[r], 0)),
                                static_cast<int32_t>(where[r]), static_cast<int32_t>(before[r]));
      all.insert(all.end(), row.begin(), row.end());
    }
    z.set(all);
    sample_step(ctx(), {.logits = z.data(),
                        .state = state,
                        .suppressed = {suppressed.as<int32_t>(), 2},
                        .result = {.tokens = result.as<int32_t>(),
                                   .log_probabilities = scores.as<float>(),
                                   .stride = kMost + 2},
                        .rows = static_cast<int64_t>(rows),
                        .vocab = kVocab,
                        .ld = kVocab,
                        .dtype = dtype()});
  }
  const Values drawn = result.values(), shares = scores.values();
  for (size_t i = 0; i < n; ++i) {
    SCOPED_TRACE(i);
    std::vector<int32_t> said = cases[i].prompt;
    const TokenRules& rules = cases[i].wish.rules;
    const auto penalty = static_cast<double>(rules.repetition_penalty);
    const std::span ends(cases[i].wish.ends, static_cast<size_t>(cases[i].wish.end_count));
    const size_t prompt = said.size();
    const double* got = &drawn[i * (kMost + 2)];
    while (static_cast<int32_t>(said.size()) < cases[i].wish.limit) {
      Values v = logits(i, static_cast<int32_t>(said.size()) - 1, said.back());
      for (int32_t c = 0; c < kVocab; ++c) {
        double& x = v[static_cast<size_t>(c)];
        const bool known = std::find(said.begin(), said.end(), c) != said.end();
        if (known) x = testing::rounded(x > 0 ? x / penalty : x * penalty, dtype());
        const auto times = std::count(said.begin() + static_cast<int64_t>(prompt), said.end(), c);
        if (times > 0)
          x = testing::rounded(
              x - static_cast<double>(rules.presence_penalty) -
                  static_cast<double>(times) * static_cast<double>(rules.frequency_penalty),
              dtype());
        const int32_t last = said.back();
        for (size_t j = 0; rules.no_repeat_ngram == 2 && j + 1 < said.size(); ++j)
          if (said[j] == last && said[j + 1] == c) x = -INFINITY;
        if (rules.no_repeat_ngram == 1 && known) x = -INFINITY;
        const bool end = std::find(ends.begin(), ends.end(), c) != ends.end();
        if (end && static_cast<int32_t>(said.size() - prompt) < rules.least) x = -INFINITY;
        if (std::find(never.begin(), never.end(), c) != never.end()) x = -INFINITY;
      }
      const auto id = static_cast<int32_t>(std::max_element(v.begin(), v.end()) - v.begin());
      if (std::find(ends.begin(), ends.end(), id) != ends.end()) break;
      const size_t k = said.size() - prompt;
      ASSERT_GT(got[0], static_cast<double>(k));
      EXPECT_EQ(got[2 + k], id) << k;
      EXPECT_NEAR(shares[i * (kMost + 2) + 2 + k], log_share(v, static_cast<size_t>(id)), 1e-4);
      said.push_back(id);
    }
    EXPECT_EQ(got[0], static_cast<double>(said.size() - prompt));
    EXPECT_EQ(got[1], 1.0);
  }
}

}  // namespace
}  // namespace saturate::kernels
