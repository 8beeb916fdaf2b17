// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/linear_cross_entropy.h"

#include <cmath>

#include "base/error.h"
#include "kernels/gemm/matmul.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;
using testing::Values;

struct Case {
  const char* name;
  DType dtype;
  int64_t rows, width, vocab, ld;
  float smoothing;
  bool bias = false;
  double spread = 0.3;  // of weights
  double level = 0;     // of biases: what all logits have in common
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr float kGradScale = 0.25f, kDeviceScale = 8.0f;
constexpr double kScale = kGradScale * kDeviceScale;

struct Numbers {
  Values x, w, bias, targets;
  explicit Numbers(const Case& c)
      : x(testing::random_values(c.rows * c.width, c.dtype, 1)),
        w(testing::random_values(c.ld * c.width, c.dtype, 2, c.spread)),
        bias(testing::random_values(c.ld, c.dtype, 3)) {
    for (double& b : bias) b = testing::rounded(b + c.level, c.dtype);
    for (int64_t t = 0; t < c.rows; ++t)
      targets.push_back(t % 5 == 3   ? -1
                        : t % 5 == 1 ? static_cast<double>(c.vocab - 1)
                                     : static_cast<double>(t * 7919 % c.vocab));
  }
};

// With bounds of what their terms' rounding makes of them.
struct Reference {
  Values nll, loss, d_x, d_w, d_x_size, d_w_size, z_size;
  Reference(const Case& c, const Numbers& n) {
    const auto rows = static_cast<size_t>(c.rows), width = static_cast<size_t>(c.width),
               vocab = static_cast<size_t>(c.vocab);
    d_x.resize(rows * width), d_x_size.resize(rows * width);
    d_w.resize(static_cast<size_t>(c.ld) * width), d_w_size.resize(d_w.size());
    nll.resize(rows), loss.resize(rows), z_size.resize(rows);
    for (size_t t = 0; t < rows; ++t) {
      if (n.targets[t] < 0) continue;
      const auto target = static_cast<size_t>(n.targets[t]);
      Values z(vocab);
      double top = -INFINITY, mean = 0;
      for (size_t k = 0; k < vocab; ++k) {
        double size = 0;
        for (size_t i = 0; i < width; ++i) {
          const double term = n.x[t * width + i] * n.w[k * width + i];
          z[k] += term, size += std::fabs(term);
        }
        if (c.bias) z[k] += n.bias[k], size += std::fabs(n.bias[k]);
        top = std::max(top, z[k]), mean += z[k] / static_cast<double>(vocab);
        z_size[t] = std::max(z_size[t], size);
      }
      double sum = 0;
      for (const double v : z) sum += std::exp(v - top);
      const double lse = top + std::log(sum), s = c.smoothing;
      nll[t] = lse - z[target];
      loss[t] = (1 - s) * nll[t] + s * (lse - mean);
      for (size_t k = 0; k < vocab; ++k) {
        const double p = std::exp(z[k] - lse), own = k == target ? 1 - s : 0.0,
                     all = s / static_cast<double>(vocab);
        const double d_z = kScale * (p - own - all), size = kScale * (p + own + all);
        for (size_t i = 0; i < width; ++i) {
          d_x[t * width + i] += d_z * n.w[k * width + i];
          d_x_size[t * width + i] += size * std::fabs(n.w[k * width + i]);
          d_w[k * width + i] += d_z * n.x[t * width + i];
          d_w_size[k * width + i] += size * std::fabs(n.x[t * width + i]);
        }
      }
    }
  }
};

struct Results {
  Guarded e, scaled, factor, uniform, loss, nll, d_x, d_w;
  Results(const TestContext& t, const Case& c)
      : e(t.stream, c.dtype, linear_cross_entropy_rows(c.rows, c.smoothing) * c.ld),
        scaled(t.stream, c.dtype, linear_cross_entropy_rows(c.rows, c.smoothing) * c.width),
        factor(t.stream, wide_of(c.dtype), c.rows),
        uniform(t.stream, wide_of(c.dtype), c.width),
        loss(t.stream, wide_of(c.dtype), c.rows),
        nll(t.stream, wide_of(c.dtype), c.rows),
        d_x(t.stream, c.dtype, c.rows * c.width),
        d_w(t.stream, wide_of(c.dtype), c.ld * c.width) {}

  // Forward and both gradients, as a step records them.
  void run(const TestContext& t, const Case& c, const Numbers& n) {
    const Guarded x(t.stream, c.dtype, n.x), w(t.stream, c.dtype, n.w),
        bias(t.stream, c.dtype, n.bias), targets(t.stream, DType::i32, n.targets),
        scale(t.stream, DType::f32, Values{kDeviceScale});
    LinearCrossEntropyArgs a{.x = x.data(),
                             .w = w.data(),
                             .bias = c.bias ? bias.data() : nullptr,
                             .targets = targets.as<int32_t>(),
                             .e = e.data(),
                             .scaled = scaled.data(),
                             .factor = factor.data(),
                             .uniform = uniform.data(),
                             .loss = loss.data(),
                             .nll = nll.data(),
                             .rows = c.rows,
                             .width = c.width,
                             .vocab = c.vocab,
                             .ld = c.ld,
                             .dtype = c.dtype,
                             .label_smoothing = c.smoothing,
                             .grad_scale = kGradScale,
                             .device_scale = scale.as<float>()};
    const Buffer scratch(
        t.stream.device(),
        static_cast<size_t>(linear_cross_entropy_scratch_bytes(t.stream.device(), a)) + 16);
    fill_bytes(t.stream, scratch.data(), 0xFF, scratch.bytes());
    a.scratch = scratch.data();
    linear_cross_entropy(t.get(), a);
    linear_cross_entropy_backward(t.get(), {.e = e.data(),
                                            .w = w.data(),
                                            .factor = factor.data(),
                                            .uniform = c.smoothing > 0 ? uniform.data() : nullptr,
                                            .d_x = d_x.data(),
                                            .rows = c.rows,
                                            .width = c.width,
                                            .ld = c.ld,
                                            .dtype = c.dtype});
    matmul(t.get(), {.a = e.data(),
                     .b = scaled.data(),
                     .d = d_w.data(),
                     .m = c.ld,
                     .n = c.width,
                     .k = linear_cross_entropy_rows(c.rows, c.smoothing),
                     .lda = c.ld,
                     .ldb = c.width,
                     .ldd = c.width,
                     .ta = Transpose::yes,
                     .ab_type = c.dtype,
                     .d_type = wide_of(c.dtype)});
    t.stream.synchronize();
  }
  std::vector<std::vector<char>> bytes() const {
    std::vector<std::vector<char>> all;
    for (const Guarded* g : {&e, &scaled, &factor, &loss, &nll, &d_x, &d_w})
      all.push_back(g->bytes());
    return all;
  }
};

class LinearCrossEntropy : public ::testing::TestWithParam<Case> {
 protected:
  static void check(Device device) {
    const Case& c = GetParam();
    const TestContext t(device);
    const Numbers n(c);
    const Reference want(c, n);
    Results got(t, c), again(t, c);
    got.run(t, c, n);
    again.run(t, c, n);
    EXPECT_TRUE(got.bytes() == again.bytes()) << "differs run to run";

    // Sums of fp32, on tensor cores cut off instead of rounded; a logit's error is its exponential's relative one.
    const double wide = epsilon_of(wide_of(c.dtype)), eps = epsilon_of(c.dtype);
    const Values nll = got.nll.values(), loss = got.loss.values();
    double worst_z = 0;
    for (size_t r = 0; r < nll.size(); ++r) {
      const double z = wide * (4 + static_cast<double>(c.width) / 8) * want.z_size[r];
      const double sums = wide * (8 + std::sqrt(static_cast<double>(c.vocab)));
      worst_z = std::max(worst_z, z + sums);
      ASSERT_NEAR(nll[r], want.nll[r], 2 * (z + sums) * (1 + want.nll[r])) << r;
      ASSERT_NEAR(loss[r], want.loss[r], 4 * (z + sums) * (1 + want.nll[r])) << r;
    }
    // Exponentials, x times its factor and the result are each rounded once.
    const double each = 2 * eps + 2 * worst_z;
    const Values d_x = got.d_x.values(), d_w = got.d_w.values();
    for (size_t i = 0; i < d_x.size(); ++i)
      ASSERT_NEAR(d_x[i], want.d_x[i], each * want.d_x_size[i] + 1e-30)
          << i / static_cast<size_t>(c.width);
    for (size_t i = 0; i < d_w.size(); ++i)
      ASSERT_NEAR(d_w[i], want.d_w[i], each * want.d_w_size[i] + 1e-30)
          << i / static_cast<size_t>(c.width);
    const Values e = got.e.values();
    for (size_t i = 0; i < e.size(); ++i) {
      if (static_cast<int64_t>(i) % c.ld < c.vocab) continue;
      ASSERT_EQ(e[i], 0.0) << i;
    }
  }
};

TEST_P(LinearCrossEntropy, MatchesDoubles) {
  const bool cpu = size_of(GetParam().dtype) >= 4;
  if (!cpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    const Fit fit =
        linear_cross_entropy_fits({.device = {DeviceKind::cuda, 0}},
                                  {.width = 8, .vocab = 8, .ld = 8, .dtype = GetParam().dtype});
    if (!fit) GTEST_SKIP() << fit.reason;
  }
  check(cpu ? Device{} : Device{DeviceKind::cuda, 0});
}

constexpr DType bf16 = DType::bf16;
INSTANTIATE_TEST_SUITE_P(
    Cases, LinearCrossEntropy,
    ::testing::Values(Case{"doubles", DType::f64, 9, 12, 30, 32, 0.1f, true},
                      Case{"floats", DType::f32, 9, 12, 32, 32, 0.0f},
                      Case{"floats_far_down", DType::f32, 9, 12, 30, 32, 0.1f, true, 0.3, -300},
                      Case{"small", bf16, 9, 16, 30, 32, 0.1f, true},
                      Case{"tiles", bf16, 300, 136, 1000, 1024, 0.1f},
                      Case{"no_smoothing", bf16, 257, 64, 520, 520, 0.0f},
                      Case{"sharp", bf16, 130, 64, 300, 320, 0.0f, false, 1.0},
                      Case{"far_up", bf16, 130, 64, 300, 320, 0.1f, true, 0.3, 256},
                      Case{"far_down", bf16, 130, 64, 300, 320, 0.1f, true, 0.3, -256},
                      Case{"one_row", bf16, 1, 8, 8, 8, 0.0f}),
    [](const auto& i) { return std::string(i.param.name); });

// A loss above 69 nats is a bound from below, and nothing overflows.
void check_far_target(Device device, DType type) {
  const TestContext t(device);
  const Case c{"far", type, 2, 8, 8, 8, 0.0f, true};
  Numbers n(c);
  n.targets = {3, 3};
  n.bias.assign(8, 0.0);
  n.bias[3] = -400;
  Results got(t, c);
  got.run(t, c, n);
  for (const Guarded* g : {&got.nll, &got.loss, &got.d_x, &got.d_w})
    for (const double v : g->values()) EXPECT_TRUE(std::isfinite(v));
  for (const double v : got.nll.values()) EXPECT_GE(v, 69.0);
}
TEST(LinearCrossEntropyRange, FarTargetsAreBoundedOnCpu) { check_far_target({}, DType::f32); }
TEST(LinearCrossEntropyRange, FarTargetsAreBoundedOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  if (const Fit fit = linear_cross_entropy_fits({.device = {DeviceKind::cuda, 0}},
                                                {.width = 8, .vocab = 8, .ld = 8, .dtype = bf16});
      !fit)
    GTEST_SKIP() << fit.reason;
  check_far_target({DeviceKind::cuda, 0}, bf16);
}

// A target that is no class shows, as it does in cross_entropy().
TEST(LinearCrossEntropyRange, WrongTargetsShow) {
  const TestContext t({});
  const Case c{"wrong", DType::f32, 2, 8, 6, 8, 0.0f};
  Numbers n(c);
  n.targets = {1, 6};
  Results got(t, c);
  got.run(t, c, n);
  EXPECT_FALSE(std::isnan(got.loss.values()[0]));
  EXPECT_TRUE(std::isnan(got.loss.values()[1]));
  EXPECT_TRUE(std::isnan(got.d_x.values()[8]));
}

TEST(LinearCrossEntropyRange, RefusesWrongArguments) {
  const TestContext t({});
  float some[64] = {};
  int32_t targets[1] = {};
  LinearCrossEntropyArgs a{.x = some,
                           .w = some,
                           .targets = targets,
                           .e = some,
                           .scaled = some,
                           .factor = some,
                           .uniform = some,
                           .loss = some,
                           .nll = some,
                           .rows = 1,
                           .width = 8,
                           .vocab = 8,
                           .ld = 8};
  LinearCrossEntropyArgs wrong = a;
  wrong.vocab = 9;
  EXPECT_THROW(linear_cross_entropy(t.get(), wrong), Error);
  wrong = a, wrong.label_smoothing = 1;
  EXPECT_THROW(linear_cross_entropy(t.get(), wrong), Error);
  wrong = a, wrong.e = nullptr;
  EXPECT_THROW(linear_cross_entropy(t.get(), wrong), Error);
}

}  // namespace
}  // namespace saturate::kernels
