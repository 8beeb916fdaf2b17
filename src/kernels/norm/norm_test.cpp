// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

struct Shape {
  int64_t rows, cols;
};
// Odd sizes, and each register layout of the CUDA kernels at and beside its bounds.
constexpr Shape kShapes[] = {{1, 1},    {3, 7},    {5, 513},  {2, 8},     {70, 64},
                             {9, 256},  {30, 512}, {7, 776},  {11, 1024}, {3, 1032},
                             {2, 8192}, {2, 8200}, {1, 16392}};
// More rows than the CUDA kernels hold at once, so that their loops turn.
constexpr Shape kTallShapes[] = {{4300, 8}, {2200, 264}, {530, 1032}, {270, 3}};

struct Options {
  NormKind kind = NormKind::layer_norm;
  bool branch = true, bias = true;
  float dropout = 0.0f;
};
constexpr Options kOptions[] = {{.dropout = 0.25f},
                                {.branch = false},
                                {.kind = NormKind::rms_norm, .bias = false, .dropout = 0.1f},
                                {.kind = NormKind::rms_norm, .branch = false, .bias = false}};
constexpr float kEps = 1e-5f;

// Mean and 1 / standard deviation of a row, by the definition.
std::pair<double, double> statistics(NormKind kind, const double* row, int64_t cols) {
  double mean = 0, square = 0;
  if (kind == NormKind::layer_norm) {
    for (int64_t c = 0; c < cols; ++c) mean += row[c] / static_cast<double>(cols);
  }
  for (int64_t c = 0; c < cols; ++c) square += (row[c] - mean) * (row[c] - mean);
  return {mean, 1 / std::sqrt(square / static_cast<double>(cols) + static_cast<double>(kEps))};
}

class NormOn : public OnTarget {
 protected:
  void check_forward(const Shape& s, const Options& o) const;
  void check_backward(const Shape& s, const Options& o, bool accumulate) const;
};

void NormOn::check_forward(const Shape& s, const Options& o) const {
  SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.cols << ", dropout " << o.dropout
                                    << ", kind " << static_cast<int>(o.kind));
  const int64_t n = s.rows * s.cols;
  const Values x = random(n, 1), branch = random(n, 2), weight = wide_random(s.cols, 3),
               bias = wide_random(s.cols, 4);
  const TestRng rng(stream(), o.dropout);
  const Guarded d_x = array(x), d_branch = array(branch), d_weight = wide_array(weight),
                d_bias = wide_array(bias), sum = poison(n), y = poison(n),
                mean = wide_poison(s.rows), rstd = wide_poison(s.rows);
  const NormForwardArgs args{.kind = o.kind,
                             .x = d_x.data(),
                             .branch = o.branch ? d_branch.data() : nullptr,
                             .sum = o.branch ? sum.data() : nullptr,
                             .weight = d_weight.data(),
                             .bias = o.bias ? d_bias.data() : nullptr,
                             .y = y.data(),
                             .mean = o.kind == NormKind::layer_norm ? mean.data() : nullptr,
                             .rstd = rstd.data(),
                             .rows = s.rows,
                             .cols = s.cols,
                             .dtype = dtype(),
                             .eps = kEps,
                             .dropout = o.dropout,
                             .rng = rng.ref()};
  norm_forward(ctx(), args);
  const std::vector<char> first = y.bytes();

  // The sum: one rounding to dtype, after one to the wide type of each term.
  Values stored = x;
  if (o.branch) {
    Values want(x), slack(x);
    for (int64_t i = 0; i < n; ++i) {
      const double b = branch[i] * rng.factor(i);
      want[i] = x[i] + b;
      slack[i] = 2 * wide_unit() * (std::fabs(x[i]) + std::fabs(b));
    }
    stored = sum.values();
    expect_close("sum", stored, want, unit() / 2, slack);
  }
  // The rest by definition from the stored sum. Sums of cols terms in the wide type err by
  // about its unit times the root of cols.
  const double e = wide_unit() * (std::sqrt(static_cast<double>(s.cols)) + 8);
  Values want_y(x), slack_y(x), want_mean, want_rstd, slack_mean, slack_rstd;
  for (int64_t r = 0; r < s.rows; ++r) {
    const double* row = &stored[r * s.cols];
    const auto [m, k] = statistics(o.kind, row, s.cols);
    double largest = 0;
    for (int64_t c = 0; c < s.cols; ++c) largest = std::max(largest, std::fabs(row[c]));
    want_mean.push_back(m);
    slack_mean.push_back(e * largest);
    want_rstd.push_back(k);
    slack_rstd.push_back(e * k);
    for (int64_t c = 0; c < s.cols; ++c) {
      const double xhat = (row[c] - m) * k, b = o.bias ? bias[c] : 0.0;
      want_y[r * s.cols + c] = xhat * weight[c] + b;
      // + 2^-25: f16 rounds below 2^-14 to multiples of 2^-24.
      slack_y[r * s.cols + c] =
          (dtype() == DType::f16 ? 0x1p-25 : 0.0) +
          e * ((std::fabs(xhat) + largest * k) * std::fabs(weight[c]) + std::fabs(b));
    }
  }
  expect_close("y", y.values(), want_y, unit() / 2, slack_y);
  expect_close("rstd", rstd.values(), want_rstd, 0, slack_rstd);
  if (o.kind == NormKind::layer_norm) {
    expect_close("mean", mean.values(), want_mean, 0, slack_mean);
  }
  norm_forward(ctx(), args);
  EXPECT_EQ(first, y.bytes()) << "two runs differ";
}

void NormOn::check_backward(const Shape& s, const Options& o, bool accumulate) const {
  SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.cols << ", dropout " << o.dropout
                                    << ", kind " << static_cast<int>(o.kind));
  const int64_t n = s.rows * s.cols;
  const Values sum = random(n, 1), d_y = random(n, 2), d_sum = random(n, 3),
               weight = wide_random(s.cols, 4), before = wide_random(s.cols, 5);
  Values mean, rstd;
  for (int64_t r = 0; r < s.rows; ++r) {
    const auto [m, k] = statistics(o.kind, &sum[r * s.cols], s.cols);
    mean.push_back(rounded(m, wide()));
    rstd.push_back(rounded(k, wide()));
  }
  const TestRng rng(stream(), o.dropout);
  const Guarded g_sum = array(sum), g_d_y = array(d_y), g_d_sum = array(d_sum),
                g_weight = wide_array(weight), g_mean = wide_array(mean), g_rstd = wide_array(rstd),
                d_x = poison(n), d_branch = poison(n);
  Guarded d_weight = wide_array(before), d_bias = wide_array(before),
          branch_sum = wide_array(before);
  const bool sums_branch = o.branch || o.bias;  // without a branch: of d_x
  NormBackwardArgs args{.kind = o.kind,
                        .d_y = g_d_y.data(),
                        .d_sum = o.branch ? g_d_sum.data() : nullptr,
                        .sum = g_sum.data(),
                        .weight = g_weight.data(),
                        .mean = g_mean.data(),
                        .rstd = g_rstd.data(),
                        .d_x = d_x.data(),
                        .d_branch = o.branch ? d_branch.data() : nullptr,
                        .d_weight = d_weight.data(),
                        .d_bias = o.bias ? d_bias.data() : nullptr,
                        .accumulate = accumulate,
                        .d_branch_sum = sums_branch ? branch_sum.data() : nullptr,
                        .accumulate_branch_sum = !accumulate,
                        .rows = s.rows,
                        .cols = s.cols,
                        .dtype = dtype(),
                        .dropout = o.dropout,
                        .rng = rng.ref()};
  const int64_t scratch = norm_backward_scratch_bytes(ctx().device, args);
  const Guarded partial(stream(), DType::f32, scratch / 4);
  args.partial = partial.data();
  norm_backward(ctx(), args);

  const double e = wide_unit() * (std::sqrt(static_cast<double>(s.cols)) + 8);
  const double rows_e = wide_unit() * (std::sqrt(static_cast<double>(s.rows)) + 8);
  Values want_x(n), want_branch(n), slack(n), slack_branch(n);
  Values want_w(s.cols), want_b(s.cols), slack_w(s.cols), slack_b(s.cols);
  for (int64_t c = 0; accumulate && c < s.cols; ++c) {
    want_w[c] = want_b[c] = before[c];
    slack_w[c] = slack_b[c] = wide_unit() * std::fabs(before[c]);
  }
  for (int64_t r = 0; r < s.rows; ++r) {
    const double m = o.kind == NormKind::layer_norm ? mean[r] : 0.0;
    double along = 0, level = 0, size = 0, largest = 0;
    for (int64_t c = 0; c < s.cols; ++c) {
      const int64_t i = r * s.cols + c;
      const double xhat = (sum[i] - m) * rstd[r], g = d_y[i] * weight[c];
      along += g * xhat / static_cast<double>(s.cols);
      level += g / static_cast<double>(s.cols);
      size = std::max(size, std::fabs(g));
      largest = std::max(largest, std::fabs(xhat));
      want_w[c] += d_y[i] * xhat;
      want_b[c] += d_y[i];
      slack_w[c] += rows_e * std::fabs(d_y[i]) * (std::fabs(xhat) + std::fabs(m) * rstd[r]);
      slack_b[c] += rows_e * std::fabs(d_y[i]);
    }
    if (o.kind == NormKind::rms_norm) level = 0;
    for (int64_t c = 0; c < s.cols; ++c) {
      const int64_t i = r * s.cols + c;
      const double xhat = (sum[i] - m) * rstd[r];
      want_x[i] = rstd[r] * (d_y[i] * weight[c] - level - xhat * along);
      slack[i] = e * rstd[r] * size * (1 + largest * largest);
      if (o.branch) want_x[i] += d_sum[i];
      slack[i] += e * std::fabs(d_sum[i]);
      want_branch[i] = want_x[i] * rng.factor(i);
      slack_branch[i] = slack[i] * rng.factor(i) + wide_unit() * std::fabs(want_branch[i]);
    }
  }
  expect_close("d_x", d_x.values(), want_x, unit() / 2, slack);
  if (o.branch) {
    expect_close("d_branch", d_branch.values(), want_branch, unit() / 2, slack_branch);
  }
  expect_close("d_weight", d_weight.values(), want_w, 0, slack_w);
  if (o.bias) expect_close("d_bias", d_bias.values(), want_b, 0, slack_b);
  Values want_s(s.cols), slack_s(s.cols);
  for (int64_t c = 0; c < s.cols; ++c) {
    want_s[c] = accumulate && sums_branch ? 0 : before[c];
    slack_s[c] = wide_unit() * std::fabs(want_s[c]) * (sums_branch ? 1 : 0);
    for (int64_t i = c; i < n && sums_branch; i += s.cols) {
      const double want = o.branch ? want_branch[i] : want_x[i];
      want_s[c] += want;
      slack_s[c] +=
          (o.branch ? slack_branch[i] : slack[i]) + (rows_e + unit() / 2) * std::fabs(want);
    }
  }
  expect_close("d_branch_sum", branch_sum.values(), want_s, 0, slack_s);
  partial.bytes();

  const std::vector<char> first = d_weight.bytes(), first_x = d_x.bytes();
  const std::vector<char> first_sum = branch_sum.bytes();
  d_weight.set(before);
  branch_sum.set(before);
  norm_backward(ctx(), args);
  EXPECT_EQ(first_sum, branch_sum.bytes()) << "two runs differ";
  EXPECT_EQ(first, d_weight.bytes()) << "two runs differ";
  EXPECT_EQ(first_x, d_x.bytes()) << "two runs differ";
}

TEST_P(NormOn, ForwardMatchesTheDefinition) {
  for (const Shape& s : kShapes)
    for (const Options& o : kOptions) check_forward(s, o);
  for (const Shape& s : kTallShapes) check_forward(s, kOptions[0]);
}

TEST_P(NormOn, BackwardMatchesTheDefinition) {
  for (const Shape& s : kShapes)
    for (const Options& o : kOptions) check_backward(s, o, o.branch);
  for (const Shape& s : kTallShapes) check_backward(s, kOptions[0], false);
}

INSTANTIATE_TEST_SUITE_P(Targets, NormOn, all_targets(), target_name);

// L = sum(y * p) + sum(sum * q) of a small problem in double, and its gradient by norm_backward.
struct Gradients {
  static constexpr int64_t kRows = 3, kCols = 5, kCount = kRows * kCols;
  NormKind kind;
  float dropout = 0.3f;
  uint64_t state[2] = {9, 4};
  Values x, branch, weight, bias, p, q, sum = Values(kCount), y = Values(kCount),
                                        mean = Values(kRows), rstd = Values(kRows);
  double loss() {
    norm_forward({}, {.kind = kind,
                      .x = x.data(),
                      .branch = branch.data(),
                      .sum = sum.data(),
                      .weight = weight.data(),
                      .bias = kind == NormKind::layer_norm ? bias.data() : nullptr,
                      .y = y.data(),
                      .mean = mean.data(),
                      .rstd = rstd.data(),
                      .rows = kRows,
                      .cols = kCols,
                      .dtype = DType::f64,
                      .eps = kEps,
                      .dropout = dropout,
                      .rng = {state, 2}});
    double l = 0;
    for (int64_t i = 0; i < kCount; ++i) l += y[i] * p[i] + sum[i] * q[i];
    return l;
  }
};

TEST(Norm, BackwardAgreesWithCentralDifferences) {
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
    constexpr int64_t kCount = Gradients::kCount, kCols = Gradients::kCols;
    const auto draw = [](int64_t n, uint64_t seed) { return random_values(n, DType::f64, seed); };
    Gradients g{.kind = kind,
                .x = draw(kCount, 1),
                .branch = draw(kCount, 2),
                .weight = draw(kCols, 3),
                .bias = draw(kCols, 4),
                .p = draw(kCount, 5),
                .q = draw(kCount, 6)};
    g.loss();
    Values d_x(kCount), d_branch(kCount), d_weight(kCols), d_bias(kCols);
    NormBackwardArgs args{.kind = kind,
                          .d_y = g.p.data(),
                          .d_sum = g.q.data(),
                          .sum = g.sum.data(),
                          .weight = g.weight.data(),
                          .mean = g.mean.data(),
                          .rstd = g.rstd.data(),
                          .d_x = d_x.data(),
                          .d_branch = d_branch.data(),
                          .d_weight = d_weight.data(),
                          .d_bias = d_bias.data(),
                          .rows = Gradients::kRows,
                          .cols = kCols,
                          .dtype = DType::f64,
                          .dropout = g.dropout,
                          .rng = {g.state, 2}};
    Values partial(static_cast<size_t>(norm_backward_scratch_bytes({}, args)) / sizeof(double));
    args.partial = partial.data();
    norm_backward({}, args);
    const auto check = [&g](const char* what, Values& at, const Values& gradient) {
      constexpr double kStep = 1e-5;  // error: step^2 times a third derivative of order 100
      for (size_t i = 0; i < at.size(); ++i) {
        const double value = at[i];
        at[i] = value + kStep;
        const double up = g.loss();
        at[i] = value - kStep;
        const double down = g.loss();
        at[i] = value;
        EXPECT_NEAR(gradient[i], (up - down) / (2 * kStep), 1e-7) << what << "[" << i << "]";
      }
    };
    check("x", g.x, d_x);
    check("branch", g.branch, d_branch);
    check("weight", g.weight, d_weight);
    if (kind == NormKind::layer_norm) check("bias", g.bias, d_bias);
  }
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Norm, SaysWhatIsWrong) {
  float v[4] = {};
  NormForwardArgs a;
  a.x = a.weight = v;
  a.y = a.mean = a.rstd = v;
  a.rows = 1;
  a.cols = 4;
  a.dtype = DType::bf16;
  EXPECT_EQ(
      message_of([&] { norm_forward({}, a); }),
      "[norm_forward] no implementation fits on this device (norm_forward_cpu: the CPU computes in "
      "f32 and f64 only; use fp32 precision there)");
  a.dtype = DType::f32;
  a.branch = v;
  EXPECT_EQ(message_of([&] { norm_forward({}, a); }),
            "[norm_forward] sum is null: it is needed here");
  a.sum = v;
  a.dropout = 1.0f;
  EXPECT_EQ(message_of([&] { norm_forward({}, a); }),
            "[norm_forward] dropout is 1: it must be at least 0 and less than 1");
  a.dropout = 0.5f;
  EXPECT_EQ(message_of([&] { norm_forward({}, a); }),
            "[norm_forward] dropout is 0.5 but rng.state is null: give the counters' address");
  a.rows = -1;
  EXPECT_EQ(message_of([&] { norm_forward({}, a); }),
            "[norm_forward] rows is -1: sizes may not be negative");
}

TEST(Norm, BackwardOfNoRowsClearsTheSums) {
  Values d_weight{1, 2};
  NormBackwardArgs a;
  a.d_weight = d_weight.data();
  a.cols = 2;
  a.dtype = DType::f64;
  norm_backward({}, a);
  EXPECT_EQ(d_weight, (Values{0, 0}));
}

}  // namespace
}  // namespace saturate::kernels
