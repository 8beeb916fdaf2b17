// SPDX-License-Identifier: Apache-2.0
// Whole searches over random logits against a search that keeps its hypotheses as lists.
#include "kernels/decode/beam_step.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

constexpr int32_t kEos = 2, kBanned = 0;

struct Hypothesis {
  std::vector<int32_t> ids;
  double score = 0;
  bool ended = false;
};

struct Search {
  int64_t sentences, beam, vocab, ld;
  std::vector<int32_t> limits;
  float penalty;
};

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

  std::vector<std::vector<int32_t>> device_search(const Search& s) const {
    const int64_t rows = s.sentences * s.beam;
    const auto n = static_cast<size_t>(rows);
    Values starts, scores(n, -INFINITY), limits(s.limits.begin(), s.limits.end());
    int64_t slots = 0, stride = 0;
    for (int64_t r = 0; r < rows; ++r) {
      starts.push_back(static_cast<double>(slots));
      slots += s.limits[static_cast<size_t>(r / s.beam)];
      stride = std::max<int64_t>(stride, s.limits[static_cast<size_t>(r / s.beam)]);
      if (r % s.beam == 0) scores[static_cast<size_t>(r)] = 0.0;
    }
    const Guarded ids = ints(Values(n, 1.0)), positions = ints(Values(n, 0.0)),
                  finished = ints(Values(n, 0.0)), lengths = ints(Values(n, 0.0)),
                  start = ints(starts), limit = ints(limits), score = wide_array(scores),
                  slot = Guarded(stream(), DType::i32, slots),
                  tokens = Guarded(stream(), DType::i32, slots),
                  candidate_ids = Guarded(stream(), DType::i32, rows * s.beam),
                  candidates = wide_poison(rows * s.beam),
                  result = ints(Values(static_cast<size_t>(s.sentences * stride), 0.0)),
                  z = poison(rows * s.ld);
    const BeamStepArgs args{.logits = z.data(),
                            .state = {.ids = ids.as<int32_t>(),
                                      .positions = positions.as<int32_t>(),
                                      .finished = finished.as<int32_t>(),
                                      .lengths = lengths.as<int32_t>(),
                                      .scores = score.data(),
                                      .slots = slot.as<int32_t>(),
                                      .tokens = tokens.as<int32_t>(),
                                      .starts = start.as<int32_t>(),
                                      .limits = limit.as<int32_t>()},
                            .candidate_scores = candidates.data(),
                            .candidate_ids = candidate_ids.as<int32_t>(),
                            .result = result.as<int32_t>(),
                            .sentences = s.sentences,
                            .beam = s.beam,
                            .vocab = s.vocab,
                            .ld = s.ld,
                            .result_stride = stride,
                            .dtype = dtype(),
                            .eos = kEos,
                            .banned = kBanned,
                            .length_penalty = s.penalty};
    for (int t = 0; t < stride; ++t) {
      const Values before = ids.values();
      Values all;
      for (int64_t r = 0; r < rows; ++r) {
        const Values row =
            logits(s, t, r / s.beam, static_cast<int32_t>(before[static_cast<size_t>(r)]));
        all.insert(all.end(), row.begin(), row.end());
      }
      z.set(all);
      beam_step(ctx(), args);
    }
    slot.bytes();  // checks the guards
    tokens.bytes();
    const Values r = result.values();
    std::vector<std::vector<int32_t>> out(static_cast<size_t>(s.sentences));
    for (size_t i = 0; i < out.size(); ++i) {
      const double* from = &r[i * static_cast<size_t>(stride)];
      EXPECT_GT(from[0], 0.0);
      for (int j = 1; j < static_cast<int>(from[0]); ++j)
        out[i].push_back(static_cast<int32_t>(from[j]));
    }
    return out;
  }

  std::vector<int32_t> list_search(const Search& s, int64_t sentence) const {
    const auto limit = static_cast<size_t>(s.limits[static_cast<size_t>(sentence)]);
    const auto worth = [&](const Hypothesis& h) {
      return h.score / std::pow(static_cast<double>(h.ended ? h.ids.size() : limit),
                                static_cast<double>(s.penalty));
    };
    std::vector<Hypothesis> beam(1);
    for (size_t t = 0; t < limit; ++t) {
      std::vector<Hypothesis> next;
      for (const Hypothesis& h : beam) {
        if (h.ended) {
          next.push_back(h);
          continue;
        }
        const Values z = logits(s, static_cast<int>(t), sentence, h.ids.empty() ? 1 : h.ids.back());
        double sum = 0;
        for (int64_t c = 0; c < s.vocab; ++c) sum += std::exp(z[static_cast<size_t>(c)]);
        for (int32_t c = 0; c < s.vocab; ++c) {
          if (c == kBanned || (t + 1 == limit && c != kEos)) continue;
          Hypothesis e{h.ids, h.score + z[static_cast<size_t>(c)] - std::log(sum), c == kEos};
          e.ids.push_back(c);
          next.push_back(std::move(e));
        }
      }
      std::stable_sort(next.begin(), next.end(),
                       [](const auto& a, const auto& b) { return a.score > b.score; });
      next.resize(std::min(next.size(), static_cast<size_t>(s.beam)));
      beam = std::move(next);
      double open = -INFINITY, ended = -INFINITY;
      for (const auto& h : beam) {
        double& best = h.ended ? ended : open;
        best = std::max(best, worth(h));
      }
      if (ended >= open) break;
    }
    const Hypothesis* best = nullptr;
    for (const auto& h : beam) {
      if (h.ended && (best == nullptr || worth(h) > worth(*best))) best = &h;
    }
    return {best->ids.begin(), best->ids.end() - 1};
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, BeamStep, testing::all_targets(), testing::target_name);

TEST_P(BeamStep, EqualsSearchOverLists) {
  // Sums of 16-bit logits meet often, and equal scores may be told apart by rounding alone: those
  // types search greedily, where only the logits of one row are compared and ties go to the smaller
  // id.
  const bool narrow = dtype() == DType::bf16 || dtype() == DType::f16;
  for (const Search& s :
       {Search{3, 1, 2500, 2504, {6, 1, 9}, 1.0f}, Search{3, 5, 300, 303, {7, 2, 9}, 0.0f},
        Search{2, 4, 40, 64, {12, 8}, 1.0f}, Search{2, 32, 60, 64, {6, 5}, 2.0f},
        Search{2, 33, 60, 64, {6, 5}, 1.0f}, Search{2, 64, 90, 96, {7, 5}, 0.5f},
        Search{1, 7, 4, 8, {5}, 0.6f}}) {
    if (narrow && s.beam > 1) continue;
    const auto got = device_search(s);
    for (int64_t i = 0; i < s.sentences; ++i) {
      EXPECT_EQ(got[static_cast<size_t>(i)], list_search(s, i))
          << "beam " << s.beam << " sentence " << i;
    }
    EXPECT_EQ(got, device_search(s));
  }
}

TEST(BeamStepRules, RejectsBadArguments) {
  const testing::TestContext t({});
  float x = 0;
  int32_t i = 0;
  BeamStepArgs good{.logits = &x,
                    .state = {&i, &i, &i, &i, &x, &i, &i, &i, &i},
                    .candidate_scores = &x,
                    .candidate_ids = &i,
                    .result = &i,
                    .sentences = 1,
                    .vocab = 4,
                    .ld = 4,
                    .result_stride = 1,
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
  rejects([](auto& a) { a.length_penalty = -1.0f; });
  rejects([](auto& a) { a.state.slots = nullptr; });
  rejects([](auto& a) { a.dtype = DType::f16; });
}

}  // namespace
}  // namespace saturate::kernels
