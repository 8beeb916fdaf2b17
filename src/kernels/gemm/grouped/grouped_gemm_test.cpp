// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/grouped/grouped_gemm.h"

#include <cmath>

#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

constexpr GroupedForm forward = GroupedForm::forward, input = GroupedForm::input_gradient,
                      weight = GroupedForm::weight_gradient;

struct Case {
  const char* name;
  std::vector<int32_t> sizes;
  int64_t n, k;
  int64_t more_rows = 0;  // after the last group
  float beta = 0.0f;
  size_t poisoned = SIZE_MAX;  // a group whose rows and weight are NaN
};

struct Problem {
  GroupedForm form;
  int64_t groups, rows, n, k;
  std::vector<double> offsets, a, b, before;
  int64_t a_cols() const { return form == forward ? k : n; }
  int64_t d_cols() const { return form == forward ? n : k; }
  int64_t result_count() const { return form == weight ? groups * n * k : rows * d_cols(); }
  size_t first(int64_t g) const { return static_cast<size_t>(offsets[static_cast<size_t>(g)]); }
};

Problem make(const Case& c, GroupedForm form, DType type) {
  Problem p{form, static_cast<int64_t>(c.sizes.size()), 0, c.n, c.k, {0.0}, {}, {}, {}};
  for (const int32_t s : c.sizes) p.offsets.push_back(p.offsets.back() + s);
  p.rows = static_cast<int64_t>(p.offsets.back()) + c.more_rows;
  p.a = testing::random_values(p.rows * p.a_cols(), type, 1);
  p.b = testing::random_values(form == weight ? p.rows * p.k : p.groups * p.n * p.k, type, 2);
  p.before = testing::random_values(p.result_count(), wide_of(type), 3);
  // Rows of no group, and all of one group, must not reach anything.
  const auto poison = [](std::vector<double>& v, size_t from, size_t to) {
    std::fill(v.begin() + static_cast<std::ptrdiff_t>(from),
              v.begin() + static_cast<std::ptrdiff_t>(to), NAN);
  };
  const auto rows = [&](size_t from, size_t to) {
    poison(p.a, from * static_cast<size_t>(p.a_cols()), to * static_cast<size_t>(p.a_cols()));
    if (form == weight) poison(p.b, from * static_cast<size_t>(p.k), to * static_cast<size_t>(p.k));
  };
  rows(p.first(p.groups), static_cast<size_t>(p.rows));
  if (c.poisoned < c.sizes.size()) {
    rows(p.first(static_cast<int64_t>(c.poisoned)), p.first(static_cast<int64_t>(c.poisoned) + 1));
    const auto one = static_cast<size_t>(p.n * p.k);
    if (form != weight) poison(p.b, c.poisoned * one, (c.poisoned + 1) * one);
  }
  return p;
}

// Element (i, j) of group g's result in double precision, and the bound of a kernel's error: any
// order of `depth` fp32 additions, rounded or cut off, is within depth 2^-23 of the magnitudes.
struct Expected {
  double value, bound;
};
Expected element(const Problem& p, const Case& c, DType type, int64_t g, int64_t i, int64_t j) {
  const auto from = static_cast<int64_t>(p.first(g)), to = static_cast<int64_t>(p.first(g + 1));
  const int64_t depth = p.form == weight ? to - from : p.form == forward ? p.k : p.n;
  double sum = 0, magnitude = 0;
  for (int64_t q = 0; q < depth; ++q) {
    const int64_t at_a = p.form == weight ? (from + q) * p.n + i : (from + i) * p.a_cols() + q;
    const int64_t at_b = p.form == weight    ? (from + q) * p.k + j
                         : p.form == forward ? (g * p.n + j) * p.k + q
                                             : (g * p.n + q) * p.k + j;
    const double x = p.a[static_cast<size_t>(at_a)] * p.b[static_cast<size_t>(at_b)];
    sum += x;
    magnitude += std::fabs(x);
  }
  const DType out = p.form == weight ? wide_of(type) : type;
  if (p.form == weight && c.beta != 0) {
    const double more =
        static_cast<double>(c.beta) * p.before[static_cast<size_t>((g * p.n + i) * p.k + j)];
    sum += more;
    magnitude += std::fabs(more);
  }
  const double unit = type == DType::f64 ? 0x1p-52 : 0x1p-23;
  return {sum,
          unit * (static_cast<double>(depth) + 4) * magnitude + epsilon_of(out) * std::fabs(sum)};
}

void check(const Problem& p, const Case& c, DType type, const std::vector<double>& got,
           const char* name) {
  for (int64_t g = 0; g < p.groups; ++g) {
    if (static_cast<size_t>(g) == c.poisoned) continue;
    const auto from = static_cast<int64_t>(p.first(g));
    const int64_t lines = p.form == weight ? p.n : static_cast<int64_t>(p.first(g + 1)) - from;
    for (int64_t i = 0; i < lines; ++i) {
      for (int64_t j = 0; j < p.d_cols(); ++j) {
        const int64_t at = ((p.form == weight ? g * p.n : from) + i) * p.d_cols() + j;
        const Expected e = element(p, c, type, g, i, j);
        ASSERT_LE(std::fabs(got[static_cast<size_t>(at)] - e.value), e.bound)
            << name << " form " << static_cast<int>(p.form) << " group " << g << " (" << i << ", "
            << j << "): " << got[static_cast<size_t>(at)] << " for " << e.value;
      }
    }
  }
  if (p.form == weight) return;
  for (size_t e = p.first(p.groups) * static_cast<size_t>(p.d_cols()); e < got.size(); ++e)
    ASSERT_TRUE(std::isnan(got[e])) << name << " wrote a row of no group";
}

class GroupedGemm : public ::testing::TestWithParam<Case> {};

TEST_P(GroupedGemm, EveryImplementationMatchesDoubles) {
  const Case& c = GetParam();
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const bool cpu = device.kind == DeviceKind::cpu;
    for (const DType type : cpu ? std::vector{DType::f32, DType::f64}
                                : std::vector{DType::bf16, DType::f16, DType::f32}) {
      for (const GroupedForm form : {forward, input, weight}) {
        const Problem p = make(c, form, type);
        const Guarded a(t.stream, type, p.a), b(t.stream, type, p.b),
            offsets(t.stream, DType::i32, p.offsets);
        const Guarded d(t.stream, form == weight ? wide_of(type) : type, p.result_count());
        const GroupedGemmArgs args{.form = form,
                                   .a = a.data(),
                                   .b = b.data(),
                                   .d = d.data(),
                                   .offsets = offsets.as<int32_t>(),
                                   .groups = p.groups,
                                   .rows = p.rows,
                                   .n = p.n,
                                   .k = p.k,
                                   .dtype = type,
                                   .beta = form == weight ? c.beta : 0.0f};
        const auto start = [&] {
          if (form == weight && c.beta != 0.0f)
            d.set(p.before);
          else
            fill_bytes(t.stream, d.data(), 0xFF, d.bytes().size());
        };
        int ran = 0;
        for (const auto& impl : grouped_gemm_impls()) {
          if (impl.device != device.kind || !impl.fits(t.get(), args)) continue;
          ++ran;
          start();
          impl.launch(t.get(), args);
          const auto first = d.bytes();
          check(p, c, type, d.values(), impl.name);
          if (HasFatalFailure()) return;
          start();
          impl.launch(t.get(), args);
          EXPECT_EQ(first, d.bytes()) << impl.name << ": two runs differ";
        }
        EXPECT_GE(ran, 1);
      }
    }
  }
}

std::vector<int32_t> many(size_t groups) {
  std::vector<int32_t> sizes(groups);
  for (size_t g = 0; g < groups; ++g) sizes[g] = static_cast<int32_t>(g * 7 % 11);
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GroupedGemm,
    ::testing::Values(Case{"even", {256, 256, 256}, 256, 64}, Case{"one_row", {1}, 8, 8},
                      Case{"ragged", {130, 0, 7, 300, 64, 1}, 136, 200, 5, 1.0f},
                      Case{"poisoned", {70, 33, 129, 200}, 264, 72, 90, 0.0f, 1},
                      Case{"poisoned_last", {257, 100, 385}, 72, 328, 0, 1.0f, 2},
                      Case{"half", {9, 70}, 16, 40, 0, 0.5f},
                      Case{"beside_odd", {100, 500}, 520, 136},
                      Case{"one_has_all", {0, 0, 700, 0}, 200, 264, 0, 1.0f},
                      Case{"all_empty", {0, 0, 0}, 64, 72, 3, 2.0f},
                      Case{"odd_sizes", {5, 66, 0, 131}, 67, 45, 2, 1.0f},
                      Case{"many_groups", many(1024), 24, 16, 1}),
    [](const auto& i) { return std::string(i.param.name); });

// One captured graph must serve offsets that change between its launches.
TEST(GroupedGemmGraph, ServesEveryRouting) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const DType type = DType::bf16;
  for (const GroupedForm form : {forward, input, weight}) {
    const Case cases[] = {{"a", {200, 100, 0, 212}, 136, 264}, {"b", {0, 512, 0, 0}, 136, 264}};
    Problem p = make(cases[0], form, type);
    const Guarded a(t.stream, type, p.a), b(t.stream, type, p.b),
        offsets(t.stream, DType::i32, p.offsets);
    const Guarded d(t.stream, form == weight ? DType::f32 : type, p.result_count());
    const GroupedGemmArgs args{.form = form,
                               .a = a.data(),
                               .b = b.data(),
                               .d = d.data(),
                               .offsets = offsets.as<int32_t>(),
                               .groups = p.groups,
                               .rows = p.rows,
                               .n = p.n,
                               .k = p.k,
                               .dtype = type};
    const Graph graph = Graph::capture(t.stream, [&] { grouped_gemm(t.get(), args); });
    for (const Case& c : cases) {
      p.offsets = make(c, form, type).offsets;
      offsets.set(p.offsets);
      graph.launch(t.stream);
      check(p, c, type, d.values(), c.name);
    }
  }
}

// Offsets that are no partition give any values, but nothing outside d may be touched.
TEST(GroupedGemm, BrokenOffsetsStayInside) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  for (const GroupedForm form : {forward, input, weight}) {
    const Problem p = make({"", {100, 100, 100}, 64, 64}, form, DType::bf16);
    const Guarded a(t.stream, DType::bf16, p.a), b(t.stream, DType::bf16, p.b),
        offsets(t.stream, DType::i32, {-5, 250, 90, 1e6});
    const Guarded d(t.stream, form == weight ? DType::f32 : DType::bf16, p.result_count());
    const GroupedGemmArgs args{.form = form,
                               .a = a.data(),
                               .b = b.data(),
                               .d = d.data(),
                               .offsets = offsets.as<int32_t>(),
                               .groups = 3,
                               .rows = 300,
                               .n = 64,
                               .k = 64,
                               .dtype = DType::bf16};
    for (const auto& impl : grouped_gemm_impls()) {
      if (impl.device != DeviceKind::cuda || !impl.fits(t.get(), args)) continue;
      impl.launch(t.get(), args);
      d.bytes();
    }
  }
}

TEST(GroupedGemm, RefusesBadArguments) {
  const TestContext t(Device{});
  GroupedGemmArgs args{.groups = 1, .rows = 1, .n = 1, .k = 1};
  EXPECT_THROW(grouped_gemm(t.get(), args), Error);
  args.rows = -1;
  EXPECT_THROW(grouped_gemm(t.get(), args), Error);
  args = {.groups = 1, .rows = 1, .n = 1, .k = 0};
  EXPECT_THROW(grouped_gemm(t.get(), args), Error);
  args = {.groups = 0, .rows = 1, .n = 1, .k = 1};
  grouped_gemm(t.get(), args);
}

}  // namespace
}  // namespace saturate::kernels
