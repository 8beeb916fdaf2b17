// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

// Element counts around the 8 of a wide access and the 1024 of a CPU chunk; 10007 crosses blocks.
constexpr int64_t kCounts[] = {1, 3, 7, 8, 9, 513, 1024, 1027, 10007};

class ElementwiseOn : public OnTarget {
 protected:
  // `offset` elements into an array: 1 makes 16-byte accesses impossible.
  void* at(const Guarded& g, int64_t offset) const {
    return g.as<char>() + static_cast<size_t>(offset) * size_of(dtype());
  }
};

TEST_P(ElementwiseOn, AddMatchesTheDefinition) {
  for (const int64_t n : kCounts)
    for (const int64_t offset : {0, 1}) {
      const Values a = random(n + offset, 1), b = random(n + offset, 2);
      const Guarded g_a = array(a), g_b = array(b), y = poison(n + offset);
      add(ctx(), {.a = at(g_a, offset),
                  .b = at(g_b, offset),
                  .y = at(y, offset),
                  .count = n,
                  .dtype = dtype()});
      Values got = y.values(), want(a);
      EXPECT_EQ(std::isnan(got[0]), offset != 0);
      for (size_t i = 0; i < want.size(); ++i) want[i] += b[i];
      got.erase(got.begin(), got.begin() + offset);
      want.erase(want.begin(), want.begin() + offset);
      expect_close("y", got, want, (unit() + wide_unit()) / 2);
      add(ctx(), {.a = g_a.data(), .b = g_b.data(), .y = g_a.data(), .count = n, .dtype = dtype()});
      expect_close("in place", {g_a.values()[0]}, {a[0] + b[0]}, (unit() + wide_unit()) / 2);
    }
}

TEST_P(ElementwiseOn, SoftCapMatchesTheDefinition) {
  for (const int64_t n : kCounts) {
    Values x = random(n, 1);
    x[0] = 96;
    const Guarded y = array(x);
    soft_cap(ctx(), {.x = y.data(), .y = y.data(), .count = n, .dtype = dtype(), .cap = 2.5f});
    for (double& v : x) v = 2.5 * std::tanh(v / 2.5);
    expect_close("y", y.values(), x, unit() / 2 + 4 * wide_unit());  // tanh errs by 2 ulp
  }
}

TEST_P(ElementwiseOn, AddRepeatsTheSecondOperand) {
  for (const int64_t cols : {1, 7, 24, 40}) {
    const Values a = random(5 * cols, 1), b = random(cols, 2);
    const Guarded g_a = array(a), g_b = array(b);
    add(ctx(), {.a = g_a.data(),
                .b = g_b.data(),
                .y = g_a.data(),
                .count = 5 * cols,
                .dtype = dtype(),
                .b_count = cols});
    Values want(a);
    for (size_t i = 0; i < want.size(); ++i) want[i] += b[i % b.size()];
    expect_close("y", g_a.values(), want, (unit() + wide_unit()) / 2);
  }
}

TEST_P(ElementwiseOn, ColumnSumMatchesTheDefinition) {
  struct Case {
    int64_t rows, cols, ld;
    bool accumulate;
  };
  for (const Case& c :
       {Case{1, 1, 1, false}, Case{3, 7, 7, true}, Case{7, 513, 520, false},
        Case{200, 256, 264, true}, Case{33, 264, 264, false}, Case{2000, 3, 3, false},
        Case{2500, 40, 40, true}, Case{0, 5, 5, false}, Case{0, 5, 5, true}}) {
    SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.cols);
    const Values x = random(c.rows * c.ld, 1), before = wide_random(c.cols, 2);
    const Guarded g_x = array(x);
    Guarded out = wide_array(before);
    ColumnSumArgs args{.x = g_x.data(),
                       .out = out.data(),
                       .partial = nullptr,
                       .rows = c.rows,
                       .cols = c.cols,
                       .ld = c.ld,
                       .dtype = dtype(),
                       .accumulate = c.accumulate};
    const Guarded partial(stream(), DType::f32, column_sum_scratch_bytes(ctx().device, args) / 4);
    args.partial = partial.data();
    column_sum(ctx(), args);
    Values want(c.cols), slack(c.cols);
    const double e = wide_unit() * (std::sqrt(static_cast<double>(c.rows)) + 2);
    for (int64_t k = 0; k < c.cols; ++k) {
      if (c.accumulate) want[k] = before[k];
      slack[k] = e * std::fabs(want[k]);
      for (int64_t r = 0; r < c.rows; ++r) {
        want[k] += x[r * c.ld + k];
        slack[k] += e * std::fabs(x[r * c.ld + k]);
      }
    }
    expect_close("out", out.values(), want, 0, slack);
    partial.bytes();
    const std::vector<char> first = out.bytes();
    out.set(before);
    column_sum(ctx(), args);
    EXPECT_EQ(first, out.bytes()) << "two runs differ";
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ElementwiseOn, all_targets(), target_name);

// Every pair of types on every device, through halfway cases, subnormals and overflow.
TEST(Cast, RoundsToNearestEvenBetweenAllPairs) {
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
  Values samples = random_values(1000, DType::f64, 3, 100.0);
  for (const double v : {0.0,
                         -0.0,
                         1.0,
                         65504.0,
                         65519.99,
                         65520.0,
                         -70000.0,
                         3.3e38,
                         3.3961e38,
                         1e39,
                         0x1p-24,
                         0x1.8p-25,
                         0x1p-25,
                         0x1p-26,
                         -0x1.8p-14,
                         0x1p-133,
                         0x1p-134,
                         1 + 0x1p-8,
                         1 + 0x3p-8,
                         1 + 0x1p-11,
                         1 + 0x3p-11,
                         1 + 0x1p-8 + 0x1p-40,
                         1 + 0x1p-11 - 0x1p-40,
                         1 + 0x1p-24 + 0x1p-50}) {
    samples.push_back(v);
    samples.push_back(-v);
  }
  samples.push_back(std::numeric_limits<double>::infinity());
  samples.push_back(std::numeric_limits<double>::quiet_NaN());
  for (const Device device : devices()) {
    const TestContext test(device);
    for (const DType from : kTypes)
      for (const DType to : kTypes) {
        if (device.is_cuda() && (from == DType::f64 || to == DType::f64)) continue;
        SCOPED_TRACE(::testing::Message() << name_of(from) << " to " << name_of(to));
        const auto n = static_cast<int64_t>(samples.size());
        const Guarded x(test.stream, from, samples), y(test.stream, to, n);
        cast(test.get(), {.x = x.data(), .y = y.data(), .count = n, .x_type = from, .y_type = to});
        const Values held = x.values(), got = y.values();
        for (size_t i = 0; i < samples.size(); ++i) {
          const double want = rounded(held[i], to);
          EXPECT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want)))
              << held[i] << " gives " << got[i] << ", not " << want;
        }
      }
  }
}

template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Elementwise, SaysWhatIsWrong) {
  float v[4] = {};
  EXPECT_EQ(message_of([&] { add({}, {.a = v, .b = v, .y = v, .count = 4, .dtype = DType::i32}); }),
            "[add] dtype is i32: use f64, f32, bf16 or f16");
  EXPECT_EQ(message_of([&] { add({}, {.a = v, .b = nullptr, .y = v, .count = 4}); }),
            "[add] b is null: it is needed here");
  EXPECT_EQ(message_of([&] {
              column_sum({}, {.x = v, .out = v, .partial = v, .rows = 2, .cols = 2, .ld = 1});
            }),
            "[column_sum] ld is 1 for 2 columns: rows overlap");
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU for the refusals of CUDA kernels";
  const Context gpu{{DeviceKind::cuda, 0}, nullptr, nullptr, 0};
  EXPECT_EQ(
      message_of([&] { add(gpu, {.a = v, .b = v, .y = v, .count = 4, .dtype = DType::f64}); }),
      "[add] no implementation fits on this device (add_cuda: f64 is for gradient checks on the "
      "CPU only)");
}

}  // namespace
}  // namespace saturate::kernels
