// SPDX-License-Identifier: Apache-2.0
// Means against sums in double precision, and of one model several times against the step without them.
#include "kernels/decode/mean_logits.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

constexpr int32_t kEos = 2, kSuppressed = 4;
constexpr int64_t kBeam = 2, kSentences = 3, kRows = kBeam * kSentences, kSlots = 8;
// Each row has said these; that of row 3 has ended, row 1 has no score, and the last sentence is in its
// prefix.
constexpr int64_t kSaid = 3;
const std::vector<int32_t> kTokens = {5, 7, 5};

class MeanLogits : public testing::OnTarget {
 protected:
  // In the middle of a search.
  struct Search {
    explicit Search(const MeanLogits& t)
        : ids(t.ints(Values(kRows, 5))),
          positions(t.ints(Values(kRows, kSaid))),
          finished(t.ints({0, 0, 0, 1, 0, 0})),
          lengths(t.ints(Values(kRows))),
          starts(t.ints({0, 8, 16, 24, 32, 40})),
          slots(t.ints(own_slots())),
          tokens(t.ints(said())),
          scores(t.wide_array({-1.5, -INFINITY, -0.25, -2, -1, -1})),
          penalties(t.wide_array(Values(kRows))),
          sums(t.wide_array(Values(kRows * kSlots))),
          suppressed(t.ints({kSuppressed})),
          sentences(t.ctx().device, kSentences * sizeof(BeamSentence)),
          candidate_scores(t.wide_poison(kRows * kBeam)),
          candidate_ids(t.ints(Values(kRows * kBeam))),
          done(t.ints(Values(kSentences))),
          result(t.ints(Values(kRows * kSlots))),
          result_sums(t.wide_array(Values(kRows * kSlots))) {
      const BeamSentence wishes[kSentences] = {
          {.limit = 8, .rules = {.repetition_penalty = 1.5f, .no_repeat_ngram = 2, .least = 5}},
          {.limit = 8, .result = 1},
          {.limit = 8, .prefix = 6, .result = 2}};
      copy_to_device(t.stream(), sentences.data(), wishes, sizeof(wishes));
      t.stream().synchronize();
    }
    static Values own_slots() {
      Values v(kRows * kSlots);
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(i);
      return v;
    }
    static Values said() {
      Values v(kRows * kSlots, 9.0);
      for (size_t i = 0; i < v.size(); ++i) {
        const size_t j = i % kSlots;
        if (j >= 1 && j <= kTokens.size()) v[i] = kTokens[j - 1];
      }
      return v;
    }
    BeamState state() const {
      return {.ids = ids.as<int32_t>(),
              .positions = positions.as<int32_t>(),
              .finished = finished.as<int32_t>(),
              .lengths = lengths.as<int32_t>(),
              .starts = starts.as<int32_t>(),
              .scores = scores.data(),
              .penalties = penalties.data(),
              .sentences = sentences.as<BeamSentence>(),
              .slots = slots.as<int32_t>(),
              .tokens = tokens.as<int32_t>(),
              .sums = sums.data()};
    }
    BeamStepArgs step(void* logits, const void* log_sums, int64_t vocab, int64_t ld,
                      DType type) const {
      return {.logits = logits,
              .state = state(),
              .log_sums = log_sums,
              .suppressed = {suppressed.as<int32_t>(), 1},
              .candidate_scores = candidate_scores.data(),
              .candidate_ids = candidate_ids.as<int32_t>(),
              .result = {.done = done.as<int32_t>(),
                         .tokens = result.as<int32_t>(),
                         .sums = result_sums.data(),
                         .stride = kSlots},
              .sentences = kSentences,
              .beam = kBeam,
              .vocab = vocab,
              .ld = ld,
              .dtype = type,
              .eos = kEos,
              .banned = 0};
    }
    Guarded ids, positions, finished, lengths, starts, slots, tokens, scores, penalties, sums,
        suppressed;
    Buffer sentences;
    Guarded candidate_scores, candidate_ids, done, result, result_sums;
  };
  Guarded ints(const Values& v) const { return Guarded(stream(), DType::i32, v); }
  MeanLogitsArgs args(const Search& s, int64_t vocab, int64_t ld) const {
    return {.state = s.state(),
            .suppressed = {s.suppressed.as<int32_t>(), 1},
            .sentences = kSentences,
            .beam = kBeam,
            .vocab = vocab,
            .ld = ld,
            .dtype = dtype(),
            .eos = kEos};
  }
  // Of a row of the first sentence, its rules; of the others what all have.
  void rule(Values& z, bool first) const {
    z[kSuppressed] = -INFINITY;
    if (!first) return;
    for (const size_t c : {size_t{5}, size_t{7}})
      z[c] = testing::rounded(z[c] > 0 ? z[c] / 1.5 : z[c] * 1.5, dtype());
    z[7] = -INFINITY;  // behind 5, for the second time
    z[kEos] = -INFINITY;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, MeanLogits, testing::all_targets(), testing::target_name);

TEST_P(MeanLogits, EqualsSumsInDoubles) {
  struct Case {
    std::vector<double> weights;
    int64_t vocab, ld;
  };
  for (const Case& k :
       {Case{{0.3, 0.7}, 2500, 2504}, {{1.0}, 40, 41}, {{0.2, 0.5, 0.3}, 301, 304}}) {
    const Search search(*this);
    const size_t models = k.weights.size(), ld = static_cast<size_t>(k.ld);
    std::vector<Values> z;
    std::vector<Guarded> logits;
    for (size_t m = 0; m < models; ++m) {
      z.push_back(random(kRows * k.ld, 3 + m));
      logits.push_back(array(z.back()));
    }
    const Guarded mean = wide_array(Values(kRows * ld, -7.0)),
                  log_sums = wide_array(Values(kRows, -7.0));
    MeanLogitsArgs a = args(search, k.vocab, k.ld);
    a.models = static_cast<int64_t>(models);
    a.mean = mean.data(), a.log_sums = log_sums.data();
    for (size_t m = 0; m < models; ++m) a.logits[m] = logits[m].data(), a.weights[m] = k.weights[m];
    mean_logits(ctx(), a);
    const Values got = mean.values(), sums = log_sums.values();
    for (size_t row = 0; row < kRows; ++row) {
      SCOPED_TRACE(::testing::Message() << models << " models, row " << row);
      if (row != 0 && row != 2) {  // nothing is written
        EXPECT_EQ(sums[row], -7.0);
        for (size_t c = 0; c < ld; ++c) ASSERT_EQ(got[row * ld + c], -7.0);
        continue;
      }
      Values want(static_cast<size_t>(k.vocab));
      double want_sum = 0;
      for (size_t m = 0; m < models; ++m) {
        const auto from = z[m].begin() + static_cast<int64_t>(row * ld);
        Values of_model(from, from + k.vocab);
        rule(of_model, row == 0);
        double sum = 0;
        for (size_t c = 0; c < want.size(); ++c) {
          sum += std::exp(of_model[c]);
          want[c] += k.weights[m] * of_model[c];
        }
        want_sum += k.weights[m] * std::log(sum);
      }
      // A sum of `vocab` rounded exponentials, and its logarithm.
      EXPECT_NEAR(sums[row], want_sum, 64 * wide_unit() * (std::fabs(want_sum) + 1));
      // Rules divide in the type of the logits, the rest is exact but for one rounding.
      for (size_t c = 0; c < want.size(); ++c) {
        if (want[c] == -INFINITY) {
          ASSERT_EQ(got[row * ld + c], want[c]) << c;
        } else {
          const double unit = row == 0 && c == 5 ? 2 * this->unit() : 2 * wide_unit();
          ASSERT_NEAR(got[row * ld + c], want[c], unit * (std::fabs(want[c]) + 1)) << c;
        }
      }
    }
  }
}

// Not close: the same numbers, in the means, in the sums and in what the search makes of them. In doubles weights
// other than powers of two would round.
TEST_P(MeanLogits, OneModelSeveralTimesIsThatModel) {
  const bool exact = wide() == DType::f64;
  for (const std::vector<double>& weights : {std::vector<double>{0.5, 0.5},
                                             {1.0},
                                             {0.25, 0.25, 0.25, 0.25},
                                             {1.0 / 3, 1.0 / 3, 1.0 / 3},
                                             {0.1, 0.9}}) {
    if (exact && weights.front() != std::exp2(std::floor(std::log2(weights.front())))) continue;
    for (const int64_t ld : {2504, 20001, 20008}) {
      const int64_t vocab = ld - 4;
      const Values z = random(kRows * ld, 11);
      const Search alone(*this), together(*this);
      const Guarded plain = array(z);
      beam_step(ctx(), alone.step(plain.data(), nullptr, vocab, ld, dtype()));

      const bool in_place = dtype() == wide();
      std::vector<Guarded> logits;
      const Guarded own = wide_poison(kRows * ld), log_sums = wide_poison(kRows);
      MeanLogitsArgs a = args(together, vocab, ld);
      a.models = std::ssize(weights);
      for (size_t m = 0; m < weights.size(); ++m) {
        a.logits[m] = logits.emplace_back(array(z)).data();
        a.weights[m] = weights[m];
      }
      a.mean = in_place ? logits[0].data() : own.data();
      a.log_sums = log_sums.data();
      mean_logits(ctx(), a);
      beam_step(ctx(), together.step(a.mean, a.log_sums, vocab, ld, wide()));
      EXPECT_EQ(together.scores.bytes(), alone.scores.bytes()) << weights.size() << " " << ld;
      EXPECT_EQ(together.ids.bytes(), alone.ids.bytes());
      EXPECT_EQ(together.sums.bytes(), alone.sums.bytes());
      EXPECT_EQ(together.slots.bytes(), alone.slots.bytes());
    }
  }
}

TEST(MeanLogitsRules, RejectsBadArguments) {
  const testing::TestContext t({});
  float x = 0;
  int32_t i = 0;
  BeamSentence b;
  const MeanLogitsArgs good{.logits = {&x, &x},
                            .weights = {0.5, 0.5},
                            .models = 2,
                            .mean = &x,
                            .log_sums = &x,
                            .state = {&i, &i, &i, &i, &i, &x, &x, &b, &i, &i, &x},
                            .sentences = 1,
                            .vocab = 4,
                            .ld = 4,
                            .eos = 2};
  const auto rejects = [&](auto change) {
    MeanLogitsArgs bad = good;
    change(bad);
    EXPECT_THROW(mean_logits(t.get(), bad), Error);
  };
  rejects([](auto& a) { a.models = 0; });
  rejects([](auto& a) { a.models = kMaxModels + 1; });
  rejects([](auto& a) { a.models = 3; });  // a null model
  rejects([](auto& a) { a.weights[1] = 0; });
  rejects([](auto& a) { a.weights[1] = std::nan(""); });
  rejects([](auto& a) { a.beam = kMaxBeam + 1; });
  rejects([](auto& a) { a.ld = 3; });
  rejects([](auto& a) { a.eos = 4; });
  rejects([](auto& a) { a.state.slots = nullptr; });
  rejects([](auto& a) { a.suppressed.count = 1; });
  rejects([](auto& a) { a.dtype = DType::i32; });
}

}  // namespace
}  // namespace saturate::kernels
