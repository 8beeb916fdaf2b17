// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/muon.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;
using Values = std::vector<double>;

// One matrix, (rows, cols): x after five steps of the published iteration, in doubles.
Values orthogonal(Values x, int64_t rows, int64_t cols) {
  const auto at = [&](int64_t r, int64_t c) -> double& {
    return x[static_cast<size_t>(r * cols + c)];
  };
  double sum = 0;
  for (const double v : x) sum += v * v;
  for (double& v : x) v /= std::max(std::sqrt(sum), 1e-7);
  for (int step = 0; step < 5; ++step) {
    // x x^T whatever the shape: the polynomial is the same.
    Values gram(static_cast<size_t>(rows * rows)), poly(gram.size()), next = x;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j)
        for (int64_t k = 0; k < cols; ++k)
          gram[static_cast<size_t>(i * rows + j)] += at(i, k) * at(j, k);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j) {
        double square = 0;
        for (int64_t k = 0; k < rows; ++k)
          square +=
              gram[static_cast<size_t>(i * rows + k)] * gram[static_cast<size_t>(k * rows + j)];
        poly[static_cast<size_t>(i * rows + j)] =
            -4.775 * gram[static_cast<size_t>(i * rows + j)] + 2.0315 * square;
      }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < cols; ++c) {
        double v = 3.4445 * at(i, c);
        for (int64_t k = 0; k < rows; ++k) v += poly[static_cast<size_t>(i * rows + k)] * at(k, c);
        next[static_cast<size_t>(i * cols + c)] = v;
      }
    x = next;
  }
  return x;
}

struct Shape {
  const char* name;
  int64_t batch, rows, cols;
};
void PrintTo(const Shape& s, std::ostream* out) { *out << s.name; }

class Muon : public ::testing::TestWithParam<Shape> {
 protected:
  static void run(Device device) {
    const Shape s = GetParam();
    const TestContext t(device);
    struct Types {
      DType wide, product;
    };
    const std::vector<Types> types =
        device.is_cuda() ? std::vector<Types>{{DType::f32, DType::f32},
                                              {DType::f32, DType::bf16},
                                              {DType::f32, DType::f16}}
                         : std::vector<Types>{{DType::f32, DType::f32}, {DType::f64, DType::f64}};
    const int64_t count = s.batch * s.rows * s.cols, matrix = s.rows * s.cols;
    for (const auto [wide, product] : types) {
      Values w = testing::random_values(count, DType::f32, 1), m(w.size()), ema = w;
      const Guarded d_w(t.stream, wide, w), d_m(t.stream, wide, m), d_ema(t.stream, wide, ema),
          grad(t.stream, wide, count),
          compute(t.stream, product == wide ? DType::bf16 : product, count);
      Buffer state(device, sizeof(StepState));
      constexpr double mu = 0.9f, lr = 0.02f, decay = 0.1f;
      MuonArgs args{
          .master = d_w.data(),
          .m = d_m.data(),
          .grad = grad.data(),
          .ema = d_ema.data(),
          .compute = product == wide ? nullptr : compute.data(),
          .batch = s.batch,
          .rows = s.rows,
          .cols = s.cols,
          .dtype = wide,
          .compute_type = product == wide ? DType::bf16 : product,
          .momentum = 0.9f,
          .weight_decay = 0.1f,
          .clip_norm = 2.0f,
          .ema_decay = 0.5f,
          .schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.02f, .warmup_steps = 0},
          .state = state.as<StepState>()};
      const Buffer scratch(device, muon_scratch_bytes(args));
      args.scratch = scratch.data();
      int updates = 0;
      for (int step = 0; step < 4; ++step) {
        const bool bad = step == 1;
        const Values g =
            testing::random_values(count, DType::f32, static_cast<uint64_t>(20 + step));
        grad.set(g);
        StepState now;
        now.step = step;
        now.updates = updates;
        now.totals[2] = 1;
        now.grad_square_sum = bad ? static_cast<double>(INFINITY) : 16.0;  // clipped to a half
        copy_to_device(t.stream, state.data(), &now, sizeof now);
        const Values before = d_w.values();
        muon(t.get(), args);
        t.stream.synchronize();
        if (bad) {
          EXPECT_EQ(d_w.values(), before);
          continue;
        }
        ++updates;
        const double ema_t = std::min(0.5, (1.0 + updates) / (10.0 + updates));
        for (int64_t b = 0; b < s.batch; ++b) {
          const auto first = static_cast<size_t>(b * matrix),
                     end = first + static_cast<size_t>(matrix);
          Values x;
          for (size_t i = first; i < end; ++i) {
            m[i] = mu * m[i] + (1 - mu) * 0.5 * g[i];
            x.push_back((1 - mu) * 0.5 * g[i] + mu * m[i]);
          }
          x = orthogonal(std::move(x), s.rows, s.cols);
          for (size_t i = first; i < end; ++i) {
            w[i] -= lr *
                    (0.2 * std::sqrt(static_cast<double>(std::max(s.rows, s.cols))) * x[i - first] +
                     decay * w[i]);
            ema[i] = ema_t * ema[i] + (1 - ema_t) * w[i];
          }
        }
        // Each iteration rounds terms with factors 3.4, 4.8 and 2.0; x is of size 1 / sqrt(longest)
        // and the step of 0.2 lr. Steps add up; weights are rounded at their own size.
        const double eps = epsilon_of(product),
                     bound = updates * (5 * 10.3 * eps * lr * 0.2 + 1e-6 * lr);
        const Values got_w = d_w.values(), got_m = d_m.values(), got_ema = d_ema.values();
        double off = 0, off_ema = 0;
        for (size_t i = 0; i < w.size(); ++i) {
          ASSERT_NEAR(got_m[i], m[i], 1e-6 * (1 + std::fabs(m[i]))) << i;
          off += (got_w[i] - w[i]) * (got_w[i] - w[i]);
          off_ema += (got_ema[i] - ema[i]) * (got_ema[i] - ema[i]);
        }
        const double n = static_cast<double>(w.size()), rounding = updates * 2 * epsilon_of(wide);
        EXPECT_LT(std::sqrt(off / n), bound + rounding) << name_of(product) << " step " << step;
        EXPECT_LT(std::sqrt(off_ema / n), bound + rounding) << name_of(product);
        if (args.compute != nullptr) {
          const Values copy = compute.values();
          for (size_t i = 0; i < w.size(); ++i)
            ASSERT_EQ(copy[i], testing::value_of(testing::bits_of(got_w[i], product), product));
        }
      }
      d_w.bytes(), d_m.bytes(), d_ema.bytes();  // check the guards
    }
  }
};

TEST_P(Muon, MatchesThePublishedIterationInDoublesOnCpu) { run({}); }
TEST_P(Muon, MatchesThePublishedIterationInDoublesOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  run({DeviceKind::cuda, 0});
}
INSTANTIATE_TEST_SUITE_P(Shapes, Muon,
                         ::testing::Values(Shape{"wide", 1, 24, 64}, Shape{"tall", 1, 64, 24},
                                           Shape{"packed", 3, 32, 32}, Shape{"long", 1, 72, 80},
                                           Shape{"row", 1, 1, 40}),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(MuonRules, RejectsWhatIsMissing) {
  const TestContext t({});
  float x[16] = {};
  MuonArgs args{.master = x, .m = x, .grad = x, .rows = 4, .cols = 4};
  EXPECT_THROW(muon(t.get(), args), Error);
  StepState state;
  args.scratch = x;
  args.state = &state;
  args.compute = x;
  args.compute_type = DType::bf16;
  EXPECT_THROW(muon(t.get(), args), Error);  // on the CPU
  args.rows = -1;
  EXPECT_THROW(muon(t.get(), args), Error);
}

}  // namespace
}  // namespace saturate::kernels
