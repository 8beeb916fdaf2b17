// SPDX-License-Identifier: Apache-2.0
// Every feature of attention.h alone, and a design in which every pair of settings of two features
// occurs together.
#include "kernels/attention/features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

// A feature and what its settings do to a problem; setting 0 leaves it off.
struct Factor {
  const char* name;
  std::vector<void (*)(Shape&)> settings;  // 1, 2, ...
};

const std::vector<Factor>& factors() {
  static const std::vector<Factor> all = {
      {"causal", {[](Shape& s) { s.causal = true; }}},
      {"bottom_right", {[](Shape& s) { s.features.alignment = CausalAlignment::bottom_right; }}},
      {"window",
       {[](Shape& s) { s.features.window_left = 9, s.features.window_right = 4; },
        [](Shape& s) { s.features.window_left = 40; },
        [](Shape& s) { s.features.window_left = 0, s.features.window_right = 0; }}},
      {"soft_cap", {[](Shape& s) { s.features.soft_cap = 1.5f; }}},
      {"bias",
       {[](Shape& s) { s.features.bias = BiasShape::full; },
        [](Shape& s) { s.features.bias = BiasShape::heads, s.features.bias_in_dtype = true; },
        [](Shape& s) { s.features.bias = BiasShape::sequences, s.features.bias_hidden = 0.3; },
        [](Shape& s) { s.features.bias = BiasShape::keys, s.features.bias_in_dtype = true; }}},
      {"alibi", {[](Shape& s) { s.features.alibi = true; }}},
      {"sinks", {[](Shape& s) { s.features.sinks = true; }}},
      {"rotary",
       {[](Shape& s) { s.features.rotary_base = 10000.0f; },
        [](Shape& s) { s.features.rotary_base = 100.0f; }}},
      {"value_size",
       {[](Shape& s) { s.features.v_head_size = 64; },
        [](Shape& s) { s.features.v_head_size = 13; }}},
      {"block_mask",
       {[](Shape& s) { s.features.block_size = 32; },
        [](Shape& s) { s.features.block_size = 13, s.features.block_per_head = true; }}},
      {"dropout", {[](Shape& s) { s.dropout = 0.2f; }}},
      {"grouped", {[](Shape& s) { s.heads = 6; }}},
      {"packed",
       {[](Shape& s) { s.packed = true, s.k_lengths = s.q_lengths, s.k_tail = s.q_tail; }}},
  };
  return all;
}

// The setting of each factor.
using Row = std::vector<size_t>;

// Greedy: each row takes, factor by factor, the setting that covers most pairs not yet covered,
// until every pair of settings of two factors is in some row.
std::vector<Row> covering_design() {
  const auto& f = factors();
  using Pair = std::array<size_t, 4>;  // factor, setting, later factor, its setting
  std::set<Pair> open;
  for (size_t a = 0; a < f.size(); ++a)
    for (size_t b = a + 1; b < f.size(); ++b)
      for (size_t x = 0; x <= f[a].settings.size(); ++x)
        for (size_t y = 0; y <= f[b].settings.size(); ++y) open.insert({a, x, b, y});
  std::vector<Row> rows;
  while (!open.empty()) {
    // The first open pair is in the row, so that each row closes one at least.
    const Pair first = *open.begin();
    Row row(f.size(), SIZE_MAX);
    row[first[0]] = first[1], row[first[2]] = first[3];
    for (size_t n = 0; n < f.size(); ++n) {
      if (row[n] != SIZE_MAX) continue;
      size_t best = 0, best_count = 0;
      for (size_t x = 0; x <= f[n].settings.size(); ++x) {
        size_t count = 0;
        for (size_t m = 0; m < f.size(); ++m) {
          if (m == n || row[m] == SIZE_MAX) continue;
          count += m < n ? open.count({m, row[m], n, x}) : open.count({n, x, m, row[m]});
        }
        if (count > best_count) best = x, best_count = count;
      }
      row[n] = best;
    }
    for (size_t a = 0; a < f.size(); ++a)
      for (size_t b = a + 1; b < f.size(); ++b) open.erase({a, row[a], b, row[b]});
    rows.push_back(row);
  }
  return rows;
}

// One factor set, each setting in turn; then the design.
std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (size_t n = 0; n < factors().size(); ++n)
    for (size_t x = 1; x <= factors()[n].settings.size(); ++x) {
      rows.emplace_back(factors().size(), 0);
      rows.back()[n] = x;
    }
  for (const Row& r : covering_design()) rows.push_back(r);
  return rows;
}

Shape shape_of(const Row& row) {
  Shape s{"features", {3, 113, 0, 1, 20, 7}, {5, 113, 9, 1, 39, 0}, 2, 2, 40};
  s.q_tail = 2, s.k_tail = 3;
  for (size_t n = 0; n < row.size(); ++n)
    if (row[n] > 0) factors()[n].settings[row[n] - 1](s);
  return s;
}

// A size for each of the tensor-core instances; an odd value size, which they refuse, becomes even.
Shape wide_shape_of(const Row& row, size_t n) {
  constexpr std::array<int64_t, 5> kHeadSizes = {48, 80, 128, 192, 240};
  Shape s = shape_of(row);
  s.head_size = kHeadSizes[n % kHeadSizes.size()];
  int64_t& v = s.features.v_head_size;
  if (v == 13) v = 56;
  if (v == 0 && s.head_size == 192) v = 128;
  return s;
}

std::string name_of_row(const Row& row) {
  std::string name;
  for (size_t n = 0; n < row.size(); ++n) {
    if (row[n] == 0) continue;
    name += (name.empty() ? "" : "_") + std::string(factors()[n].name);
    if (factors()[n].settings.size() > 1) name += std::to_string(row[n]);
  }
  return name.empty() ? "plain" : name;
}

struct Case {
  size_t number;
  Row row;
  DType dtype;
};
std::vector<Case> cases(const std::vector<DType>& types) {
  std::vector<Case> all;
  const std::vector<Row> rows = all_rows();
  for (size_t n = 0; n < rows.size(); ++n)
    for (DType t : types) all.push_back({n, rows[n], t});
  return all;
}
std::string name_of_case(const ::testing::TestParamInfo<Case>& i) {
  return std::to_string(i.param.number) + "_" + name_of_row(i.param.row) + "_" +
         name_of(i.param.dtype);
}

class AttentionFeaturesCpu : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionFeaturesCpu, MatchReference) {
  expect_all_right(Problem(shape_of(GetParam().row), GetParam().dtype), Device{});
}
INSTANTIATE_TEST_SUITE_P(Pairs, AttentionFeaturesCpu,
                         ::testing::ValuesIn(cases({DType::f32, DType::f64})), name_of_case);

class AttentionFeaturesCuda : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionFeaturesCuda, MatchReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  expect_all_right(Problem(shape_of(GetParam().row), GetParam().dtype),
                   Device{DeviceKind::cuda, 0});
}
INSTANTIATE_TEST_SUITE_P(Pairs, AttentionFeaturesCuda,
                         ::testing::ValuesIn(cases({DType::f32, DType::bf16, DType::f16})),
                         name_of_case);

class AttentionFeaturesWideCuda : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionFeaturesWideCuda, MatchReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case& c = GetParam();
  // Not the same size for both types, so that two designs cover more together.
  const Shape s = wide_shape_of(c.row, c.number + (c.dtype == DType::f16 ? 2 : 0));
  const Problem p(s, c.dtype);
  const Device device{DeviceKind::cuda, 0};
  const auto& impls = attention_forward_impls();
  const bool runs = std::any_of(impls.begin(), impls.end(), [&](const auto& impl) {
    return std::string_view(impl.name) == "attention_forward_features_cuda" &&
           impl.fits({device, nullptr, nullptr, 0}, p.with_any_pointers().forward);
  });
  EXPECT_TRUE(runs || capability_of(Device{DeviceKind::cuda, 0}).major < 8)
      << "no tensor-core kernel runs this row";
  expect_all_right(p, device);
}
INSTANTIATE_TEST_SUITE_P(Pairs, AttentionFeaturesWideCuda,
                         ::testing::ValuesIn(cases({DType::bf16, DType::f16})), name_of_case);

TEST(AttentionFeatures, EveryPairOfSettingsIsTested) {
  const auto& f = factors();
  const std::vector<Row> rows = covering_design();
  for (size_t a = 0; a < f.size(); ++a)
    for (size_t b = a + 1; b < f.size(); ++b)
      for (size_t x = 0; x <= f[a].settings.size(); ++x)
        for (size_t y = 0; y <= f[b].settings.size(); ++y) {
          bool found = false;
          for (const Row& r : rows) found = found || (r[a] == x && r[b] == y);
          EXPECT_TRUE(found) << f[a].name << " " << x << " with " << f[b].name << " " << y;
        }
  EXPECT_LT(rows.size(), 60u);
}

TEST(AttentionFeatures, AreNamedWhenLacking) {
  const auto reason = [](auto set) {
    AttentionArgs a;
    static const int32_t cu[2] = {};
    static const float values[1] = {};
    static const uint32_t bits[1] = {};
    a.cu_q = cu, a.cu_k = cu + 1, a.max_q = 10, a.max_k = 20, a.head_size = 8;
    set(a, values, bits);
    const char* text = fits_features(a, kNoFeatures).reason;
    return std::string(text == nullptr ? "fits" : text);
  };
  using A = AttentionArgs;
  using V = const float*;
  using M = const uint32_t*;
  constexpr auto kBottomRight = CausalAlignment::bottom_right;
  EXPECT_EQ(reason([](A&, V, M) {}), "fits");
  EXPECT_EQ(reason([=](A& a, V, M) { a.alignment = kBottomRight; }), "fits");
  EXPECT_EQ(reason([=](A& a, V, M) { a.alignment = kBottomRight, a.causal = true; }),
            "no bottom-right causal alignment");
  EXPECT_EQ(
      reason([=](A& a, V, M) { a.alignment = kBottomRight, a.causal = true, a.cu_k = a.cu_q; }),
      "fits");
  EXPECT_EQ(reason([](A& a, V, M) { a.window_left = 20; }), "fits");
  EXPECT_EQ(reason([](A& a, V, M) { a.window_left = 19; }), "no sliding window");
  EXPECT_EQ(reason([](A& a, V, M) { a.window_right = 0; }), "no sliding window");
  EXPECT_EQ(reason([](A& a, V, M) { a.window_right = 0, a.causal = true; }), "fits");
  EXPECT_EQ(reason([](A& a, V, M) { a.soft_cap = 1; }), "no soft cap");
  EXPECT_EQ(reason([](A& a, V v, M) { a.bias = v; }), "no additive bias");
  EXPECT_EQ(reason([](A& a, V v, M) { a.alibi_slopes = v; }), "no ALiBi slopes");
  EXPECT_EQ(reason([](A& a, V v, M) { a.sinks = v; }), "no attention sinks");
  EXPECT_EQ(reason([](A& a, V, M) { a.rotary_base = 10; }), "no fused rotary positions");
  EXPECT_EQ(reason([](A& a, V, M) { a.v_head_size = 16; }), "no value head size of its own");
  EXPECT_EQ(reason([](A& a, V, M) { a.v_head_size = 8; }), "fits");
  EXPECT_EQ(reason([](A& a, V, M m) { a.block_mask = m, a.block_size = 4; }), "no block mask");
}

}  // namespace
}  // namespace saturate::kernels
