// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/sample_step.h"

#include <algorithm>
#include <map>
#include <numeric>

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
  std::vector<int> draw(const Values& z, int64_t rows, SampleControls c, int64_t vocab = 0,
                        double end_of_empty = 1) const {
    const auto ld = static_cast<int64_t>(z.size());
    Values all;
    for (int64_t r = 0; r < rows; ++r) all.insert(all.end(), z.begin(), z.end());
    Values streams(static_cast<size_t>(rows));
    std::iota(streams.begin(), streams.end(), 0.0);
    const Values zeros(streams.size(), 0.0), ones(streams.size(), 1.0), limits(streams.size(), 9.0);
    const Guarded logits = array(all), ids = ints(ones), positions = ints(zeros),
                  finished = ints(zeros), prompts = ints(ones), lengths = ints(ones),
                  limit = ints(limits), stream_ids = ints(streams),
                  result = ints(Values(3 * streams.size(), 0.0));
    const Buffer controls(stream().device(), sizeof c);
    copy_to_device(stream(), controls.data(), &c, sizeof c);
    stream().synchronize();
    sample_step(ctx(), {.logits = logits.data(),
                        .state = {.ids = ids.as<int32_t>(),
                                  .positions = positions.as<int32_t>(),
                                  .finished = finished.as<int32_t>(),
                                  .prompts = prompts.as<int32_t>(),
                                  .prompt_lengths = lengths.as<int32_t>(),
                                  .limits = limit.as<int32_t>(),
                                  .streams = stream_ids.as<int32_t>()},
                        .controls = controls.as<SampleControls>(),
                        .result = result.as<int32_t>(),
                        .rows = rows,
                        .vocab = vocab > 0 ? vocab : ld,
                        .ld = ld,
                        .prompt_stride = 1,
                        .result_stride = 3,
                        .dtype = dtype()});
    const Values r = result.values(), next = ids.values(), at = positions.values();
    std::vector<int> drawn;
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(at[i], 1.0);
      const bool any = r[3 * i] == 1.0;
      if (any) {
        EXPECT_EQ(next[i], r[3 * i + 2]);
      }
      if (!any) {
        EXPECT_EQ(r[3 * i + 1], end_of_empty);
      }
      drawn.push_back(any ? static_cast<int>(r[3 * i + 2]) : -1);
    }
    return drawn;
  }
  Guarded ints(const Values& v) const { return Guarded(stream(), DType::i32, v); }

  // The tokens that may be drawn and their shares, by plain sorting.
  static std::map<int, double> shares(const Values& z, double temperature, size_t top_k,
                                      double top_p) {
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
      sum += p[i];
      kept[order[i]] = p[i];
    }
    for (auto& [id, v] : kept) share += v;
    for (auto& [id, v] : kept) v /= share;
    return kept;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SampleStep, testing::all_targets(), testing::target_name);

TEST_P(SampleStep, DrawsInTheRightShares) {
  const Values z = random(40, 3);
  constexpr int64_t kRows = 20000;
  struct Cut {
    float temperature, top_p;
    int32_t top_k;
  };
  for (const Cut cut : {Cut{1.0f, 1.0f, 0}, Cut{0.7f, 1.0f, 5}, Cut{1.5f, 0.6f, 0},
                        Cut{1.0f, 0.8f, 10}, Cut{1.0f, 1.0f, 100}}) {
    const auto want = shares(z, static_cast<double>(cut.temperature),
                             static_cast<size_t>(cut.top_k), static_cast<double>(cut.top_p));
    std::map<int, int> counts;
    for (const int id : draw(z, kRows,
                             {.seed = 11,
                             .temperature = cut.temperature,
                             .top_p = cut.top_p,
                             .top_k = cut.top_k})) {
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
  EXPECT_EQ(draw(z, 3, {.temperature = 0.0f}), (std::vector<int>{17, 17, 17}));
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
  const SampleControls c{.seed = 3, .temperature = 0.8f, .top_p = 0.9f, .top_k = 900};
  const auto drawn = draw(z, 400, c);
  const auto allowed = shares(z, 0.8, 900, 0.9);
  for (const int id : drawn) EXPECT_TRUE(allowed.contains(id)) << id;
  EXPECT_EQ(drawn, draw(z, 400, c));
}

}  // namespace
}  // namespace saturate::kernels
