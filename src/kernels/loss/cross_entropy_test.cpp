// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/cross_entropy.h"

#include "base/error.h"
#include "kernels/testing/guarded.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  DType dtype;
  int64_t rows, vocab, ld;
  float smoothing;
  double spread = 2.0;  // standard deviation of the logits
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr float kGradScale = 0.25f;
constexpr float kDeviceScale = 8.0f;

// Targets of every kind: without loss, the first, the last and some in between.
std::vector<double> targets_of(const Case& c) {
  std::vector<double> t(static_cast<size_t>(c.rows));
  for (int64_t i = 0; i < c.rows; ++i) {
    t[static_cast<size_t>(i)] = i % 5 == 3   ? -1
                                : i % 5 == 1 ? static_cast<double>(c.vocab - 1)
                                             : static_cast<double>(i * 7919 % c.vocab);
  }
  return t;
}

struct Reference {
  std::vector<double> loss, nll, d_z;
  Reference(const Case& c, const std::vector<double>& z, const std::vector<double>& targets) {
    const double s = c.smoothing, scale = kGradScale * kDeviceScale,
                 vocab = static_cast<double>(c.vocab);
    d_z.assign(z.size(), 0.0);
    for (int64_t t = 0; t < c.rows; ++t) {
      const double* row = &z[static_cast<size_t>(t * c.ld)];
      const auto target = static_cast<int64_t>(targets[static_cast<size_t>(t)]);
      if (target < 0) {
        loss.push_back(0);
        nll.push_back(0);
        continue;
      }
      double sum = 0, mean = 0;
      for (int64_t v = 0; v < c.vocab; ++v) sum += std::exp(row[v]);
      for (int64_t v = 0; v < c.vocab; ++v) mean += row[v] / vocab;
      const double lse = std::log(sum);
      nll.push_back(lse - row[target]);
      loss.push_back((1 - s) * nll.back() + s * (lse - mean));
      for (int64_t v = 0; v < c.vocab; ++v) {
        d_z[static_cast<size_t>(t * c.ld + v)] =
            scale * (std::exp(row[v] - lse) - (v == target ? 1 - s : 0.0) - s / vocab);
      }
    }
  }
};

struct Problem {
  Case c;
  std::vector<double> z, targets;
  Guarded logits, target, loss, nll, scale;
  Problem(const TestContext& t, const Case& x)
      : c(x),
        z(testing::random_values(x.rows * x.ld, x.dtype, 11, x.spread)),
        targets(targets_of(x)),
        logits(t.stream, x.dtype, z),
        target(t.stream, DType::i32, targets),
        loss(t.stream, wide_of(x.dtype), x.rows),
        nll(t.stream, wide_of(x.dtype), x.rows),
        scale(t.stream, DType::f32, std::vector<double>{kDeviceScale}) {
    // Columns beyond the vocabulary must not count, whatever they hold.
    std::vector<double> with_garbage = z;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t v = c.vocab; v < c.ld; ++v)
        with_garbage[static_cast<size_t>(r * c.ld + v)] = NAN;
    }
    logits.set(with_garbage);
  }
  CrossEntropyArgs args() const {
    return {.logits = logits.data(),
            .targets = target.as<int32_t>(),
            .loss = loss.data(),
            .nll = nll.data(),
            .rows = c.rows,
            .vocab = c.vocab,
            .ld = c.ld,
            .dtype = c.dtype,
            .label_smoothing = c.smoothing,
            .grad_scale = kGradScale,
            .device_scale = scale.as<float>()};
  }
};

class CrossEntropy : public ::testing::TestWithParam<Case> {
 protected:
  static void run(Device device) {
    const Case c = GetParam();
    const TestContext t(device);
    const Problem p(t, c), eval(t, c);
    cross_entropy(t.get(), p.args());
    CrossEntropyArgs no_gradient = eval.args();
    no_gradient.write_gradient = false;
    const auto untouched = eval.logits.bytes();
    cross_entropy(t.get(), no_gradient);
    EXPECT_EQ(eval.logits.bytes(), untouched);

    const Reference ref(c, p.z, p.targets);
    // A sum of vocab exponentials loses eps * sqrt(vocab); each argument z - lse is rounded at the
    // size of z, and the fast exponential is good to 2 eps.
    const double eps = epsilon_of(wide_of(c.dtype));
    const double top = c.spread * 6 + std::log(static_cast<double>(c.vocab));
    const double exponent_error = eps * (2 * top + 4 + std::sqrt(static_cast<double>(c.vocab)) / 4);
    const auto loss = p.loss.values(), nll = p.nll.values(), eval_loss = eval.loss.values();
    const auto eval_nll = eval.nll.values(), d_z = p.logits.values();
    for (size_t i = 0; i < loss.size(); ++i) {
      ASSERT_NEAR(nll[i], ref.nll[i], exponent_error + eps * top) << "row " << i;
      ASSERT_NEAR(loss[i], ref.loss[i], exponent_error + 2 * eps * top) << "row " << i;
      ASSERT_NEAR(eval_nll[i], ref.nll[i], exponent_error + eps * top) << "row " << i;
      ASSERT_NEAR(eval_loss[i], ref.loss[i], exponent_error + 2 * eps * top) << "row " << i;
    }
    const double scale = kGradScale * kDeviceScale;
    for (size_t i = 0; i < d_z.size(); ++i) {
      const double p_bound =
          std::fabs(ref.d_z[i]) + scale * (c.smoothing / static_cast<double>(c.vocab));
      const bool is_target = static_cast<int64_t>(i) % c.ld ==
                             static_cast<int64_t>(p.targets[i / static_cast<size_t>(c.ld)]);
      ASSERT_NEAR(d_z[i], ref.d_z[i],
                  epsilon_of(c.dtype) * std::fabs(ref.d_z[i]) +
                      2 * exponent_error * (is_target ? scale : p_bound) +
                      (c.dtype == DType::f16 ? 0x1p-24 : 1e-37))
          << "row " << i / static_cast<size_t>(c.ld) << " column " << i % static_cast<size_t>(c.ld);
      if (static_cast<int64_t>(i) % c.ld >= c.vocab) {
        ASSERT_EQ(d_z[i], 0.0);
      }
    }

    const auto first = p.logits.bytes(), first_loss = p.loss.bytes();
    const Problem again(t, c);
    cross_entropy(t.get(), again.args());
    EXPECT_EQ(first, again.logits.bytes());
    EXPECT_EQ(first_loss, again.loss.bytes());
  }
};

TEST_P(CrossEntropy, MatchesReferenceOnCpu) {
  if (GetParam().dtype != DType::f32 && GetParam().dtype != DType::f64) GTEST_SKIP() << "CUDA only";
  run({});
}
TEST_P(CrossEntropy, MatchesReferenceOnCuda) {
  if (GetParam().dtype == DType::f64) GTEST_SKIP() << "CPU only";
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  run({DeviceKind::cuda, 0});
}

constexpr DType f64 = DType::f64, f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(
    Cases, CrossEntropy,
    ::testing::Values(
        Case{"one_class", f32, 4, 1, 1, 0.0f}, Case{"tiny", f32, 6, 3, 4, 0.1f},
        Case{"odd", f32, 11, 1001, 1003, 0.1f}, Case{"padded", f32, 7, 1000, 1024, 0.0f},
        Case{"wide_spread", f32, 5, 257, 260, 0.1f, 12.0},
        Case{"vocab_32k", f32, 6, 32000, 32000, 0.1f}, Case{"doubles", f64, 9, 333, 340, 0.2f},
        Case{"bf16_32k", bf16, 13, 32000, 32000, 0.1f},
        Case{"bf16_padded", bf16, 8, 50257, 50304, 0.0f}, Case{"bf16_odd", bf16, 8, 777, 777, 0.1f},
        Case{"bf16_too_long_for_shared", bf16, 5, 250001, 250008, 0.1f},
        Case{"f16", f16, 10, 4001, 4008, 0.1f}),
    [](const auto& i) { return std::string(i.param.name); });

class CrossEntropyParts : public testing::OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, CrossEntropyParts, testing::all_targets(), testing::target_name);

// Of four ranks with 64 columns each the third has 22 classes and the last none.
TEST_P(CrossEntropyParts, JoinToTheWhole) {
  constexpr int64_t kParts = 4, kRows = 11, kColumns = 64;
  for (const float smoothing : {0.0f, 0.1f}) {
    const Case c{"", dtype(), kRows, 150, kParts * kColumns, smoothing};
    const TestContext& t = context();  // one stream for what is copied and what is computed
    const Problem whole(t, c);
    const Reference want(c, whole.z, whole.targets);
    const std::vector<double> z = whole.logits.values();  // NaN beyond the vocabulary
    std::vector<double> gathered;
    std::vector<std::vector<double>> mine(kParts);
    for (int64_t p = 0; p < kParts; ++p) {
      for (int64_t e = 0; e < kRows * c.ld; ++e)
        if (e % c.ld / kColumns == p) mine[p].push_back(z[e]);
      const Guarded logits = array(mine[p]), statistics = wide_poison(kRows * 4);
      loss_statistics(t.get(), {.logits = logits.data(),
                                .targets = whole.target.as<int32_t>(),
                                .statistics = statistics.data(),
                                .rows = kRows,
                                .vocab = c.vocab,
                                .ld = kColumns,
                                .first_class = p * kColumns,
                                .dtype = dtype()});
      const std::vector<double> s = statistics.values();
      gathered.insert(gathered.end(), s.begin(), s.end());
    }
    const Guarded statistics = wide_array(gathered);
    std::vector<char> first_loss;
    for (int64_t p = 0; p < kParts; ++p) {
      const Guarded logits = array(mine[p]);
      CrossEntropyArgs args = whole.args();
      args.logits = logits.data();
      args.ld = kColumns;
      cross_entropy_finish(t.get(), {.forward = args,
                                     .statistics = statistics.data(),
                                     .parts = kParts,
                                     .first_class = p * kColumns});
      if (p == 0) first_loss = whole.loss.bytes();
      EXPECT_EQ(whole.loss.bytes(), first_loss) << "ranks differ";
      const double bound = 100 * wide_unit();
      const auto loss = whole.loss.values(), nll = whole.nll.values(), d_z = logits.values();
      for (int64_t r = 0; r < kRows; ++r) {
        EXPECT_NEAR(loss[r], want.loss[r], bound);
        EXPECT_NEAR(nll[r], want.nll[r], bound);
        for (int64_t v = 0; v < kColumns; ++v) {
          const int64_t column = p * kColumns + v;
          const double d = want.d_z[r * c.ld + column];
          ASSERT_NEAR(d_z[r * kColumns + v], d, unit() * std::fabs(d) + bound + 0x1p-24)
              << "row " << r << ", class " << column;
          if (column >= c.vocab) {
            ASSERT_EQ(d_z[r * kColumns + v], 0.0);
          }
        }
      }
    }
  }
}

TEST(CrossEntropyRules, GradientMatchesCentralDifferences) {
  const TestContext t({});
  const Case c{"", f64, 3, 17, 17, 0.3f};
  const Problem p(t, c);
  cross_entropy(t.get(), p.args());
  const auto gradient = p.logits.values();
  const double h = 1e-5;
  for (size_t i = 0; i < gradient.size(); ++i) {
    double difference = 0;
    for (const double sign : {1.0, -1.0}) {
      const Problem moved(t, c);
      auto z = p.z;
      z[i] += sign * h;
      moved.logits.set(z);
      cross_entropy(t.get(), moved.args());
      difference += sign * moved.loss.values()[i / 17] / (2 * h);
    }
    // Third derivatives are below 1: h^2 / 6 from the formula, 1e-15 / h from rounding.
    EXPECT_NEAR(gradient[i], kGradScale * kDeviceScale * difference, 2e-9) << i;
  }
}

TEST(CrossEntropyRules, NonFiniteLogitsAndUnknownTargetsShow) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const Case c{"", f32, 3, 40, 40, 0.0f};
    const Problem p(t, c);
    auto z = p.z;
    z[5] = NAN;
    z[45] = -INFINITY;  // a class that cannot happen is no error
    p.logits.set(z);
    p.target.set({1, 2, 40});
    cross_entropy(t.get(), p.args());
    const auto loss = p.loss.values(), d_z = p.logits.values();
    EXPECT_TRUE(std::isnan(loss[0]));
    EXPECT_TRUE(std::isnan(d_z[0]));
    EXPECT_TRUE(std::isfinite(loss[1]));
    EXPECT_EQ(d_z[45], 0.0);
    EXPECT_TRUE(std::isnan(loss[2]));
    EXPECT_TRUE(std::isnan(d_z[90]));
  }
}

TEST(CrossEntropyRules, RejectsBadArguments) {
  const TestContext t({});
  const Problem p(t, {"", f32, 2, 4, 4, 0.0f});
  CrossEntropyArgs bad = p.args();
  bad.ld = 3;
  EXPECT_THROW(cross_entropy(t.get(), bad), Error);
  bad = p.args();
  bad.label_smoothing = 1.0f;
  EXPECT_THROW(cross_entropy(t.get(), bad), Error);
  bad = p.args();
  bad.dtype = bf16;
  EXPECT_THROW(cross_entropy(t.get(), bad), Error);
}

TEST(LossTotals, SumsRowsAndCountsTargets) {
  for (const Device device : testing::devices()) {
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{5003}}) {
      const TestContext t(device);
      const auto loss = testing::random_values(rows, f32, 1),
                 nll = testing::random_values(rows, f32, 2);
      std::vector<double> targets(static_cast<size_t>(rows));
      double sums[3] = {}, magnitude = 0;
      for (size_t i = 0; i < targets.size(); ++i) {
        targets[i] = i % 3 == 0 ? -1 : static_cast<double>(i);
        sums[0] += loss[i];
        sums[1] += nll[i];
        sums[2] += targets[i] >= 0;
        magnitude += std::fabs(loss[i]) + std::fabs(nll[i]);
      }
      const Guarded l(t.stream, f32, loss), n(t.stream, f32, nll), g(t.stream, DType::i32, targets);
      const Guarded totals(t.stream, f64, int64_t{3});
      LossTotalsArgs args{l.data(), n.data(), g.as<int32_t>(), rows, f32, totals.as<double>(),
                          false};
      for (const int times : {1, 2}) {
        loss_totals(t.get(), args);
        const auto v = totals.values();
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_NEAR(v[i], times * sums[i], 1e-15 * magnitude * times) << "rows " << rows;
        }
        args.accumulate = true;
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
