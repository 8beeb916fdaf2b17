// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/experts/expert_rows.h"
#include "kernels/experts/routing.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

struct Case {
  int64_t rows, experts, k;
  int64_t valid;  // of the micro-batch
  int64_t first_row = 0;
  bool random_second = false;
};
constexpr Case kCases[] = {
    {1, 1, 1, 1},        {37, 8, 2, 30},       {37, 8, 2, 37, 0, true},    {300, 64, 1, 1000},
    {64, 40, 3, 50, 20}, {64, 256, 8, 80, 32}, {2500, 8, 2, 2490, 0, true}};

size_t at(int64_t i) { return static_cast<size_t>(i); }

// Routing in double precision: the truth for every implementation.
struct Routed {
  Values choices, gates, p, lse;
  Routed(const Case& c, const Values& logits) {
    for (int64_t r = 0; r < c.rows; ++r) {
      const double* l = &logits[at(r * c.experts)];
      double sum = 0;
      for (int64_t e = 0; e < c.experts; ++e) sum += std::exp(l[e]);
      lse.push_back(std::log(sum));
      for (int64_t e = 0; e < c.experts; ++e) p.push_back(std::exp(l[e]) / sum);
      std::vector<int64_t> order(at(c.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return l[a] > l[b]; });
      double all = 0;
      for (int64_t j = 0; j < c.k; ++j) all += p[at(r * c.experts + order[at(j)])];
      const bool valid = c.first_row + r < c.valid;
      for (int64_t j = 0; j < c.k; ++j) {
        const double gate = p[at(r * c.experts + order[at(j)])] / (c.k > 1 ? all : 1.0);
        // What the mask of probability 1 - 2 g drops, at 24 bits; nothing here lies on the border.
        const bool stays =
            j == 0 || !c.random_second || TestRng::uniform(c.first_row + r) < 2 * gate;
        choices.push_back(valid && stays ? static_cast<double>(order[at(j)]) : -1);
        gates.push_back(valid ? gate : 0);
      }
    }
  }
};

class ExpertsOn : public OnTarget {
 protected:
  Guarded ints(const Values& v) const { return Guarded(stream(), DType::i32, v); }
  Guarded poisoned_ints(int64_t n) const { return Guarded(stream(), DType::i32, n); }
  // Far enough apart that no rounding changes an order, but for two that are equal.
  Values logits(const Case& c) const {
    Values l = random_values(c.rows * c.experts, DType::f32, 5, 2.0);
    for (int64_t r = 0; c.experts > 5 && r < c.rows; r += 3)
      l[at(r * c.experts + 5)] = l[at(r * c.experts + 2)];
    return l;
  }
  RouteTokensArgs args(const Case& c, const Guarded& logits, const Guarded& valid,
                       const TestRng& rng) const {
    RouteTokensArgs a{.logits = logits.data(),
                      .valid = valid.as<int32_t>(),
                      .rows = c.rows,
                      .experts = c.experts,
                      .k = c.k,
                      .dtype = dtype(),
                      .random_second = c.random_second,
                      .rng = rng.ref()};
    a.rng.first_row = c.first_row;
    return a;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, ExpertsOn, all_targets(), target_name);

TEST_P(ExpertsOn, RoutesAsTheDefinition) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.experts << " experts, " << c.k);
    const Values l = logits(c);
    const TestRng rng(stream(), 0.5f);
    const Routed want(c, l);
    const Guarded g_logits = wide_array(l), valid = ints({static_cast<double>(c.valid)});
    const Guarded choices = poisoned_ints(c.rows * c.k), gates = wide_poison(c.rows * c.k);
    RouteTokensArgs a = args(c, g_logits, valid, rng);
    a.choices = choices.as<int32_t>(), a.gates = gates.data();
    route_tokens(ctx(), a);
    EXPECT_EQ(choices.values(), want.choices);
    // exp errs by the rounding of its argument, which is below 16.
    expect_close("gates", gates.values(), want.gates, 40 * wide_unit());
  }
}

TEST_P(ExpertsOn, RoutersGradientIsThatOfTheDefinition) {
  constexpr float kBalance = 0.25f, kZ = 0.5f, kScale = 0.5f, kDeviceScale = 8.0f;
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.experts << " experts, " << c.k);
    const Values l = logits(c);
    const TestRng rng(stream(), 0.5f);
    const Routed routed(c, l);
    const Values d_gates = wide_random(c.rows * c.k, 6);
    Values counts(at(c.experts)), want(l.size()), slack(l.size());
    for (size_t e = 0; e < counts.size(); ++e) counts[e] = static_cast<double>(e % 4 + 1);
    const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
    const double scale = double{kScale} * double{kDeviceScale};
    for (int64_t r = 0; r < std::min(c.rows, c.valid - c.first_row); ++r) {
      const double* p = &routed.p[at(r * c.experts)];
      Values d_p(at(c.experts));
      double chosen = 0, mean = 0, of_gates = 0;
      std::vector<int64_t> order(at(c.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
        return l[at(r * c.experts + x)] > l[at(r * c.experts + y)];
      });
      for (int64_t j = 0; j < c.k; ++j) {
        chosen += p[order[at(j)]];
        of_gates += d_gates[at(r * c.k + j)] * routed.gates[at(r * c.k + j)];
      }
      for (int64_t j = 0; j < c.k; ++j) {
        const double d = d_gates[at(r * c.k + j)];
        d_p[at(order[at(j)])] += c.k > 1 ? (d - of_gates) / chosen : d;
      }
      for (int64_t e = 0; e < c.experts; ++e)
        d_p[at(e)] +=
            scale * double{kBalance} * static_cast<double>(c.experts) * counts[at(e)] / all;
      for (int64_t e = 0; e < c.experts; ++e) mean += p[e] * d_p[at(e)];
      for (int64_t e = 0; e < c.experts; ++e) {
        const double z = 2 * scale * double{kZ} * routed.lse[at(r)];
        want[at(r * c.experts + e)] = p[e] * (d_p[at(e)] - mean + z);
        slack[at(r * c.experts + e)] =
            100 * wide_unit() * p[e] * (std::fabs(d_p[at(e)]) + std::fabs(mean) + std::fabs(z) + 1);
      }
    }
    const Guarded g_logits = wide_array(l), valid = ints({static_cast<double>(c.valid)});
    const Guarded g_gates = wide_array(d_gates), g_counts = ints(counts),
                  d = wide_poison(c.rows * c.experts),
                  device_scale(stream(), DType::f32, Values(1, double{kDeviceScale}));
    route_tokens_backward(ctx(), {.forward = args(c, g_logits, valid, rng),
                                  .d_gates = g_gates.data(),
                                  .counts = g_counts.as<int32_t>(),
                                  .d_logits = d.data(),
                                  .balance_loss = kBalance,
                                  .z_loss = kZ,
                                  .grad_scale = kScale,
                                  .device_scale = device_scale.as<float>()});
    expect_close("d_logits", d.values(), want, 0, slack);
  }
}

TEST_P(ExpertsOn, SortsAndLimitsByCounting) {
  for (const int64_t rows : {1, 5, 511, 512, 1024, 3000}) {
    constexpr int64_t kExperts = 7, k = 2;
    SCOPED_TRACE(rows);
    Values choices;
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows * k; ++i) {
      state = state * 1664525u + 1013904223u;
      const uint32_t draw = state >> 20;
      choices.push_back(draw % 9 == 8 ? -1 : static_cast<double>(draw % 9 % kExperts));
    }
    const Guarded g = ints(choices), scratch = poisoned_ints(expert_scratch(rows, k, kExperts));
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, kExperts}, {2, 3}}) {
      Values slots(choices.size(), -1), offsets{0};
      double next = 0;
      for (int64_t e = first; e < first + count; ++e) {
        for (size_t i = 0; i < choices.size(); ++i)
          if (choices[i] == static_cast<double>(e)) slots[i] = next++;
        offsets.push_back(next);
      }
      const Guarded got = poisoned_ints(rows * k), got_offsets = poisoned_ints(count + 1);
      sort_by_expert(ctx(), {.choices = g.as<int32_t>(),
                             .slots = got.as<int32_t>(),
                             .offsets = got_offsets.as<int32_t>(),
                             .scratch = scratch.as<int32_t>(),
                             .rows = rows,
                             .k = k,
                             .first_expert = first,
                             .experts = count});
      EXPECT_EQ(got.values(), slots);
      EXPECT_EQ(got_offsets.values(), offsets);
    }
    for (const double factor : {0.0, 0.6, 1.0}) {
      for (const bool first_only : {false, true}) {
        const int64_t valid = rows - rows / 5, own_first = rows / 3, own = rows / 2;
        const double capacity =
            factor > 0 ? std::ceil(factor * static_cast<double>(valid * k) / kExperts) : 1e9;
        Values kept(at(own * k)), counts(kExperts), placed(kExperts);
        for (int64_t j = 0; j < k; ++j)
          for (int64_t r = 0; r < rows; ++r) {
            const double choice = choices[at(r * k + j)];
            const auto e = static_cast<size_t>(choice);
            if (choice >= 0 && (j == 0 || !first_only)) ++counts[e];
            const bool gets = choice >= 0 && placed[e]++ < capacity;
            if (r >= own_first && r < own_first + own)
              kept[at((r - own_first) * k + j)] = gets ? choice : -1;
          }
        const Guarded got = poisoned_ints(own * k), got_counts = poisoned_ints(kExperts),
                      g_valid = ints({static_cast<double>(valid)});
        limit_choices(ctx(), {.choices = g.as<int32_t>(),
                              .valid = g_valid.as<int32_t>(),
                              .kept = got.as<int32_t>(),
                              .counts = got_counts.as<int32_t>(),
                              .scratch = scratch.as<int32_t>(),
                              .rows = rows,
                              .first_row = own_first,
                              .own_rows = own,
                              .experts = kExperts,
                              .k = k,
                              .capacity_factor = factor,
                              .count_first = first_only});
        EXPECT_EQ(got.values(), kept) << factor;
        EXPECT_EQ(got_counts.values(), counts) << factor << first_only;
      }
    }
  }
}

TEST_P(ExpertsOn, StatisticsAreSumsOverTokens) {
  const Case c{.rows = 700, .experts = 40, .k = 2, .valid = 690, .first_row = 10};
  const Values l = logits(c);
  const Routed routed(c, l);
  Values choices = routed.choices, kept = choices, counts(at(c.experts), 1.0);
  counts[3] = 11;
  for (size_t i = 1; i < choices.size(); i += 14) choices[i] = -1;
  for (size_t i = 0; i < choices.size(); i += 5) kept[i] = -1;
  Values want(at(c.experts + kRoutingTotals));
  double* total = &want[at(c.experts)];
  for (int64_t r = 0; r < c.valid - c.first_row; ++r) {
    total[0] += 1;
    for (int64_t j = 0; j < c.k; ++j) {
      const size_t i = at(r * c.k + j);
      if (choices[i] >= 0) want[static_cast<size_t>(choices[i])] += 1;
      total[1] += choices[i] < 0;
      total[2] += choices[i] >= 0 && kept[i] < 0;
    }
    for (int64_t e = 0; e < c.experts; ++e) {
      const double p = routed.p[at(r * c.experts + e)];
      total[3] -= p * std::log(p);
      total[4] += 40 * p * counts[at(e)] / 50;
    }
    total[5] += routed.lse[at(r)] * routed.lse[at(r)];
  }
  const Guarded g_logits = wide_array(l), g_choices = ints(choices), g_kept = ints(kept),
                g_counts = ints(counts), valid = ints({static_cast<double>(c.valid)}),
                totals(stream(), DType::f64,
                       Values(at(kRoutingBlocks * (c.experts + kRoutingTotals)), 0.0));
  for (int run = 0; run < 2; ++run)
    routing_statistics(ctx(), {.logits = g_logits.data(),
                               .choices = g_choices.as<int32_t>(),
                               .kept = g_kept.as<int32_t>(),
                               .counts = g_counts.as<int32_t>(),
                               .valid = valid.as<int32_t>(),
                               .totals = totals.as<double>(),
                               .rows = c.rows,
                               .first_row = c.first_row,
                               .experts = c.experts,
                               .k = c.k,
                               .dtype = dtype()});
  Values got(want.size());
  const Values all = totals.values();
  for (size_t i = 0; i < all.size(); ++i) got[i % got.size()] += all[i] / 2;
  expect_close("totals", got, want, 100 * wide_unit());
  for (size_t i = 0; i < at(c.experts + 3); ++i) EXPECT_EQ(got[i], want[i]) << "column " << i;
}

TEST_P(ExpertsOn, RowsGoToTheirExpertsAndBack) {
  for (const int64_t cols : {1, 7, 64, 264}) {
    SCOPED_TRACE(cols);
    constexpr int64_t kRows = 70, k = 3, kTotal = kRows * k;
    Values slots;  // a permutation with gaps
    for (int64_t i = 0; i < kTotal; ++i)
      slots.push_back(i % 5 == 3 ? -1 : static_cast<double>(i * 11 % kTotal));
    const Values x = random(kRows * cols, 1), gates = wide_random(kTotal, 2);
    const Values wide_rows = random(kTotal * cols, 3);
    Values sent(at(kTotal * cols), NAN), gathered(at(kRows * cols)), gather_slack(gathered.size()),
        combined(gathered.size()), combine_slack(gathered.size()), d_rows(sent.size(), NAN),
        d_gates(at(kTotal)), gate_slack(at(kTotal));
    for (int64_t i = 0; i < kTotal; ++i) {
      if (slots[at(i)] < 0) continue;
      const int64_t row = i / k, slot = static_cast<int64_t>(slots[at(i)]);
      for (int64_t c = 0; c < cols; ++c) {
        const size_t from = at(row * cols + c), to = at(slot * cols + c);
        const double product = gates[at(i)] * wide_rows[to];
        sent[to] = x[from];
        gathered[from] += wide_rows[to];
        gather_slack[from] += 4 * wide_unit() * std::fabs(wide_rows[to]);
        combined[from] += product;
        combine_slack[from] += 4 * wide_unit() * std::fabs(product);
        d_rows[to] = gates[at(i)] * x[from];
        d_gates[at(i)] += wide_rows[to] * x[from];
        gate_slack[at(i)] += 20 * wide_unit() * std::fabs(wide_rows[to] * x[from]);
      }
    }
    const Guarded g_slots = ints(slots), g_x = array(x), g_gates = wide_array(gates),
                  g_wide = array(wide_rows);
    const DispatchRowsArgs to{.x = g_x.data(),
                              .slots = g_slots.as<int32_t>(),
                              .rows = kRows,
                              .cols = cols,
                              .k = k,
                              .dtype = dtype()};
    const CombineRowsArgs from{.x = g_wide.data(),
                               .slots = g_slots.as<int32_t>(),
                               .gates = g_gates.data(),
                               .rows = kRows,
                               .cols = cols,
                               .k = k,
                               .dtype = dtype()};
    const auto same_gaps = [&](const char* what, const Guarded& g, const Values& want) {
      Values got = g.values(), known = want;
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::isnan(got[i]), std::isnan(known[i])) << what << " " << i;
        if (std::isnan(got[i])) got[i] = known[i] = 0;
      }
      expect_close(what, got, known, unit() / 2, Values(got.size(), 0x1p-25));
    };
    const Guarded y = poison(kTotal * cols), d_x = poison(kRows * cols);
    DispatchRowsArgs dispatched = to;
    dispatched.y = y.data();
    dispatch_rows(ctx(), dispatched);
    same_gaps("dispatched", y, sent);
    dispatch_rows_backward(ctx(), {.forward = to, .d_y = g_wide.data(), .d_x = d_x.data()});
    expect_close("d_x", d_x.values(), gathered, unit() / 2, gather_slack);
    const Guarded z = poison(kRows * cols), d_wide = poison(kTotal * cols),
                  got_gates = wide_poison(kTotal);
    CombineRowsArgs combine = from;
    combine.y = z.data();
    combine_rows(ctx(), combine);
    if (dtype() == DType::f16)
      for (double& s : combine_slack) s += 0x1p-25;
    expect_close("combined", z.values(), combined, unit() / 2, combine_slack);
    combine_rows_backward(
        ctx(),
        {.forward = from, .d_y = g_x.data(), .d_x = d_wide.data(), .d_gates = got_gates.data()});
    same_gaps("d_rows", d_wide, d_rows);
    expect_close("d_gates", got_gates.values(), d_gates, wide_unit(), gate_slack);
  }
}

TEST(Experts, ImpossibleNumbersAreRefused) {
  const auto refuses = [](const auto& call) {
    try {
      call();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument) << e.what();
    }
  };
  refuses([] { route_tokens({}, {.rows = 3, .experts = 257, .rng = {}}); });
  refuses([] { route_tokens({}, {.rows = 3, .experts = 2, .k = 3, .rng = {}}); });
  refuses([] {
    route_tokens({}, {.rows = 3, .experts = 4, .k = 2, .random_second = true, .rng = {}});
  });
  refuses([] { limit_choices({}, {.rows = 3, .first_row = 2, .own_rows = 2, .experts = 4}); });
  refuses([] { sort_by_expert({}, {.rows = 3, .k = 9, .experts = 4}); });
  refuses([] { combine_rows({}, {.rows = 3, .cols = 2, .k = 9}); });
}

}  // namespace
}  // namespace saturate::kernels
