// SPDX-License-Identifier: Apache-2.0
// Every backward pass against central differences of its forward pass, in double precision on the CPU, along a random
// direction of all inputs at once. An operation with a backward pass and no entry here fails.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <regex>
#include <set>

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/conv/conv2d.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/experts/expert_rows.h"
#include "kernels/experts/routing.h"
#include "kernels/gemm/grouped/grouped_gemm.h"
#include "kernels/gemm/matmul.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/norm/norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using Values = std::vector<double>;
using Inputs = std::vector<Values>;

constexpr int64_t kRows = 5, kCols = 8;
constexpr uint64_t kCounters[2] = {11, 3};
constexpr RngRef kRng{kCounters, 7};

struct Differentiable {
  const char* name;            // of the forward pass
  std::vector<int64_t> sizes;  // of its inputs
  std::function<Values(const Inputs&)> forward;
  // The gradient of each input, from that of the result.
  std::function<Inputs(const Inputs&, const Values& result, const Values& d_result)> backward;
};

// clang-format off
Differentiable activation_of(ActivationKind kind, bool gated) {
  const auto args = [=](const Inputs& x) {
    return ActivationArgs{.kind = kind, .gated = gated, .x = x[0].data(), .rows = kRows, .cols = kCols,
                          .dtype = DType::f64, .dropout = 0.3f, .rng = kRng};
  };
  return {"activation", {kRows * kCols * (gated ? 2 : 1)},
          [=](const Inputs& x) {
            Values y(kRows * kCols);
            ActivationArgs a = args(x);
            a.y = y.data();
            activation_forward({}, a);
            return y;
          },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(x[0].size())};
            activation_backward({}, {.forward = args(x), .d_y = d_y.data(), .d_x = d[0].data()});
            return d;
          }};
}

Differentiable norm_of(NormKind kind) {
  const bool centred = kind == NormKind::layer_norm;
  struct Saved { Values sum, y, mean, rstd; };
  const auto run = [=](const Inputs& x) {
    Saved s{Values(kRows * kCols), Values(kRows * kCols), Values(kRows), Values(kRows)};
    norm_forward({}, {.kind = kind, .x = x[0].data(), .branch = x[1].data(), .sum = s.sum.data(), .weight = x[2].data(),
                      .bias = centred ? x[3].data() : nullptr, .y = s.y.data(), .mean = s.mean.data(),
                      .rstd = s.rstd.data(), .rows = kRows, .cols = kCols, .dtype = DType::f64, .dropout = 0.3f, .rng = kRng});
    return s;
  };
  return {"norm", {kRows * kCols, kRows * kCols, kCols, centred ? kCols : 0},
          [=](const Inputs& x) {
            Saved s = run(x);
            s.y.insert(s.y.end(), s.sum.begin(), s.sum.end());
            return s.y;
          },
          [=](const Inputs& x, const Values&, const Values& d_result) {
            const Saved s = run(x);
            Inputs d{Values(kRows * kCols), Values(kRows * kCols), Values(kCols), Values(x[3].size())};
            NormBackwardArgs a{.kind = kind, .d_y = d_result.data(), .d_sum = d_result.data() + kRows * kCols,
                               .sum = s.sum.data(), .weight = x[2].data(), .mean = s.mean.data(), .rstd = s.rstd.data(),
                               .d_x = d[0].data(), .d_branch = d[1].data(), .d_weight = d[2].data(),
                               .d_bias = centred ? d[3].data() : nullptr, .rows = kRows, .cols = kCols,
                               .dtype = DType::f64, .dropout = 0.3f, .rng = kRng};
            Values partial(static_cast<size_t>(norm_backward_scratch_bytes({}, a)) / 8);
            a.partial = partial.data();
            norm_backward({}, a);
            return d;
          }};
}

Differentiable embedding() {
  static const std::vector<int32_t> ids{3, 1, 3, 0, 2}, positions{0, 1, 2, 0, 1}, order{3, 1, 4, 0, 2}, cu{0, 3, 5};
  static const int32_t valid = kRows;
  const auto args = [](const Inputs& x) {
    return EmbeddingArgs{.table = x[0].data(), .position_table = x[1].data(), .ids = ids.data(),
                         .positions = positions.data(), .rows = kRows, .cols = kCols, .vocab = 4, .max_positions = 3,
                         .dtype = DType::f64, .scale = 1.5f, .dropout = 0.3f, .rng = kRng};
  };
  return {"embedding", {4 * kCols, 3 * kCols},
          [=](const Inputs& x) {
            Values y(kRows * kCols);
            EmbeddingArgs a = args(x);
            a.y = y.data();
            embedding_forward({}, a);
            return y;
          },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(x[0].size()), Values(x[1].size())};
            embedding_backward({}, {.forward = args(x), .d_y = d_y.data(), .order = order.data(), .valid_rows = &valid,
                                    .cu = cu.data(), .sequences = 2, .d_table = d[0].data(),
                                    .d_position_table = d[1].data()});
            return d;
          }};
}

Differentiable convolution() {
  const auto args = [](const Inputs& x) {
    Conv2dArgs a{.x = x[0].data(), .w = x[1].data(), .bias = x[2].data(), .batch = 2, .height = 6, .width = 5,
                 .channels = 3, .filters = 4, .filter_height = 3, .filter_width = 2, .dtype = DType::f64};
    a.vertical = {.stride = 2, .padding = 1, .dilation = 1};
    a.horizontal = {.stride = 1, .padding = 0, .dilation = 2};
    return a;
  };
  return {"conv2d", {2 * 6 * 5 * 3, 4 * 3 * 2 * 3, 4},
          [=](const Inputs& x) {
            Conv2dArgs a = args(x);
            Values y(static_cast<size_t>(2 * a.output_height() * a.output_width() * 4));
            a.y = y.data();
            conv2d_forward({}, a);
            return y;
          },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(x[0].size()), Values(x[1].size()), Values(4)};
            conv2d_backward({}, {.forward = args(x), .d_y = d_y.data(), .d_x = d[0].data(), .d_w = d[1].data()});
            // The gradient of the bias is a sum of columns, as conv2d.h says.
            ColumnSumArgs s{.x = d_y.data(), .out = d[2].data(), .rows = static_cast<int64_t>(d_y.size()) / 4, .cols = 4,
                            .ld = 4, .dtype = DType::f64};
            Values partial(static_cast<size_t>(column_sum_scratch_bytes({}, s)) / 8);
            s.partial = partial.data();
            column_sum({}, s);
            return d;
          }};
}

// Two sequences, two heads on one key head, a window, a cap and a sink.
Differentiable attention() {
  static const std::vector<int32_t> cu{0, 3, 5};
  const auto args = [](const Inputs& x, Values& o, Values& lse) {
    return AttentionArgs{.q = x[0].data(), .k = x[1].data(), .v = x[2].data(), .o = o.data(), .lse = lse.data(),
                         .cu_q = cu.data(), .cu_k = cu.data(), .sequences = 2, .heads = 2, .kv_heads = 1, .head_size = 4,
                         .q_rows = kRows, .k_rows = kRows, .max_q = 3, .max_k = 3, .q_stride = 8, .k_stride = 4,
                         .v_stride = 4, .o_stride = 8, .dtype = DType::f64, .causal = true, .scale = 0.5f,
                         .dropout = 0.2f, .rng = kRng, .soft_cap = 2.0f, .sinks = x[3].data()};
  };
  const auto forward = [=](const Inputs& x, Values& lse) {
    Values o(kRows * 8);
    attention_forward({}, args(x, o, lse));
    return o;
  };
  return {"attention", {kRows * 8, kRows * 4, kRows * 4, 2},
          [=](const Inputs& x) {
            Values lse(2 * kRows);
            return forward(x, lse);
          },
          [=](const Inputs& x, const Values&, const Values& d_o) {
            Values lse(2 * kRows), delta(2 * kRows);
            Values o = forward(x, lse);
            Inputs d{Values(kRows * 8), Values(kRows * 4), Values(kRows * 4), Values(2)};
            attention_backward({}, {.forward = args(x, o, lse), .d_o = d_o.data(), .d_q = d[0].data(),
                                    .d_k = d[1].data(), .d_v = d[2].data(), .d_q_stride = 8, .d_k_stride = 4,
                                    .d_v_stride = 4, .delta = delta.data(), .d_sinks = d[3].data()});
            return d;
          }};
}

// Of the output layer's input and weights; the gradient of the weights is a product of what the forward pass left.
Differentiable linear_cross_entropy_of(float smoothing) {
  static const std::vector<int32_t> targets{2, 0, -1, 6, 3};
  static constexpr int64_t kVocab = 7, kLd = 9;
  struct Saved { Values e, scaled, factor, uniform, loss, nll; };
  const auto run = [=](const Inputs& x) {
    const auto rows = linear_cross_entropy_rows(kRows, smoothing);
    Saved s{Values(rows * kLd), Values(rows * kCols), Values(kRows), Values(kCols), Values(kRows), Values(kRows)};
    linear_cross_entropy({}, {.x = x[0].data(), .w = x[1].data(), .targets = targets.data(), .e = s.e.data(),
                              .scaled = s.scaled.data(), .factor = s.factor.data(), .uniform = s.uniform.data(),
                              .loss = s.loss.data(), .nll = s.nll.data(), .rows = kRows, .width = kCols,
                              .vocab = kVocab, .ld = kLd, .dtype = DType::f64, .label_smoothing = smoothing});
    return s;
  };
  return {"linear_cross_entropy", {kRows * kCols, kLd * kCols},
          [=](const Inputs& x) {
            const Saved s = run(x);
            return Values{std::accumulate(s.loss.begin(), s.loss.end(), 0.0)};
          },
          [=](const Inputs& x, const Values&, const Values& d_loss) {
            const Saved s = run(x);
            Inputs d{Values(x[0].size()), Values(x[1].size())};
            linear_cross_entropy_backward({}, {.e = s.e.data(), .w = x[1].data(), .factor = s.factor.data(),
                                               .uniform = smoothing > 0 ? s.uniform.data() : nullptr, .d_x = d[0].data(),
                                               .rows = kRows, .width = kCols, .ld = kLd, .dtype = DType::f64});
            for (size_t t = 0; t < s.scaled.size() / kCols; ++t)
              for (size_t c = 0; c < kLd; ++c)
                for (size_t k = 0; k < kCols; ++k) d[1][c * kCols + k] += s.e[t * kLd + c] * s.scaled[t * kCols + k];
            for (Values& v : d) for (double& each : v) each *= d_loss[0];
            return d;
          }};
}

// The loss sums nothing: its result is the rows' losses, and their gradient is all ones times grad_scale.
Differentiable cross_entropy_of(float smoothing) {
  static const std::vector<int32_t> targets{2, 0, -1, 6, 3};
  const auto run = [=](Values& logits, bool gradient) {
    Values loss(kRows), nll(kRows);
    cross_entropy({}, {.logits = logits.data(), .targets = targets.data(), .loss = loss.data(), .nll = nll.data(),
                       .rows = kRows, .vocab = 7, .ld = kCols, .dtype = DType::f64, .label_smoothing = smoothing,
                       .write_gradient = gradient});
    return loss;
  };
  return {"cross_entropy", {kRows * kCols},
          [=](const Inputs& x) {
            Values z = x[0];
            const Values loss = run(z, false);
            return Values{std::accumulate(loss.begin(), loss.end(), 0.0)};
          },
          [=](const Inputs& x, const Values&, const Values& d_loss) {
            Inputs d{x[0]};
            run(d[0], true);
            for (double& v : d[0]) v *= d_loss[0];
            return d;
          }};
}

// y = 0.5 a b^T + bias, whose gradients are products too, as ops/linear.cpp records them.
Differentiable linear_product() {
  constexpr int64_t m = kRows, n = 6, k = kCols;
  return {"matmul", {m * k, n * k, n},
          [](const Inputs& x) {
            Values y(m * n);
            matmul({}, {.a = x[0].data(), .b = x[1].data(), .d = y.data(), .bias = x[2].data(), .m = m, .n = n, .k = k,
                        .lda = k, .ldb = k, .ldc = n, .ldd = n, .tb = Transpose::yes, .ab_type = DType::f64,
                        .d_type = DType::f64, .alpha = 0.5f});
            return y;
          },
          [](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(m * k), Values(n * k), Values(n)};
            matmul({}, {.a = d_y.data(), .b = x[1].data(), .d = d[0].data(), .m = m, .n = k, .k = n, .lda = n, .ldb = k,
                        .ldc = k, .ldd = k, .ab_type = DType::f64, .d_type = DType::f64, .alpha = 0.5f});
            matmul({}, {.a = d_y.data(), .b = x[0].data(), .d = d[1].data(), .m = n, .n = k, .k = m, .lda = n, .ldb = k,
                        .ldc = k, .ldd = k, .ta = Transpose::yes, .ab_type = DType::f64, .d_type = DType::f64,
                        .alpha = 0.5f});
            for (size_t i = 0; i < d_y.size(); ++i) d[2][i % n] += d_y[i];
            return d;
          }};
}

Differentiable grouped_product() {
  static const std::vector<int32_t> offsets{0, 2, 2, 5};
  constexpr int64_t n = 6, k = kCols, groups = 3;
  const auto product = [](GroupedForm form, const Values& a, const Values& b, Values d) {
    grouped_gemm({}, {.form = form, .a = a.data(), .b = b.data(), .d = d.data(), .offsets = offsets.data(),
                      .groups = groups, .rows = kRows, .n = n, .k = k, .dtype = DType::f64});
    return d;
  };
  return {"grouped_gemm", {kRows * k, groups * n * k},
          [=](const Inputs& x) { return product(GroupedForm::forward, x[0], x[1], Values(kRows * n)); },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            return Inputs{product(GroupedForm::input_gradient, d_y, x[1], Values(kRows * k)),
                          product(GroupedForm::weight_gradient, d_y, x[0], Values(groups * n * k))};
          }};
}

Differentiable rotation() {
  static const std::vector<int32_t> positions{0, 1, 2, 700, 1};
  const auto turn = [](const Values& x, bool inverse) {
    Values y(x.size());
    rotary({}, {.x = x.data(), .y = y.data(), .positions = positions.data(), .rows = kRows, .heads = 2, .head_size = 4,
                .x_stride = kCols, .y_stride = kCols, .dtype = DType::f64, .inverse = inverse});
    return y;
  };
  return {"rotary", {kRows * kCols}, [=](const Inputs& x) { return turn(x[0], false); },
          [=](const Inputs&, const Values&, const Values& d_y) { return Inputs{turn(d_y, true)}; }};
}
// Row 4 has no second expert, row 3 none at all.
const std::vector<int32_t> kSlots{0, 4, 5, 1, 2, 6, -1, -1, 3, -1};

Differentiable dispatched_rows() {
  const auto args = [](const Inputs& x) {
    return DispatchRowsArgs{.x = x[0].data(), .slots = kSlots.data(), .rows = kRows, .cols = kCols, .k = 2, .dtype = DType::f64};
  };
  return {"dispatch_rows", {kRows * kCols},
          [=](const Inputs& x) {
            Values y(7 * kCols);
            DispatchRowsArgs a = args(x);
            a.y = y.data();
            dispatch_rows({}, a);
            return y;
          },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(x[0].size())};
            dispatch_rows_backward({}, {.forward = args(x), .d_y = d_y.data(), .d_x = d[0].data()});
            return d;
          }};
}

Differentiable combined_rows() {
  const auto args = [](const Inputs& x) {
    return CombineRowsArgs{.x = x[0].data(), .slots = kSlots.data(), .gates = x[1].data(), .rows = kRows, .cols = kCols,
                           .k = 2, .dtype = DType::f64};
  };
  return {"combine_rows", {7 * kCols, kRows * 2},
          [=](const Inputs& x) {
            Values y(kRows * kCols);
            CombineRowsArgs a = args(x);
            a.y = y.data();
            combine_rows({}, a);
            return y;
          },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(x[0].size()), Values(x[1].size())};
            combine_rows_backward({}, {.forward = args(x), .d_y = d_y.data(), .d_x = d[0].data(), .d_gates = d[1].data()});
            return d;
          }};
}

// The gates and, weighted by 1, the two losses of the router; the last row holds no token.
Differentiable routed_tokens(int64_t k) {
  static const int32_t valid = kRows - 1;
  static const std::vector<int32_t> counts{3, 0, 2, 1};
  constexpr int64_t experts = 4;
  constexpr float kBalance = 0.7f, kZ = 0.3f;
  const auto args = [=](const Inputs& x) {
    return RouteTokensArgs{.logits = x[0].data(), .valid = &valid, .rows = kRows, .experts = experts, .k = k, .dtype = DType::f64, .rng = {}};
  };
  return {"route_tokens", {kRows * experts},
          [=](const Inputs& x) {
            Values y(kRows * k + 1);
            std::vector<int32_t> choices(kRows * k);
            RouteTokensArgs a = args(x);
            a.choices = choices.data(), a.gates = y.data();
            route_tokens({}, a);
            for (int64_t r = 0; r < valid; ++r) {
              double sum = 0, balance = 0;
              for (int64_t e = 0; e < experts; ++e) sum += std::exp(x[0][r * experts + e]);
              for (int64_t e = 0; e < experts; ++e)
                balance += experts * counts[e] / 6.0 * std::exp(x[0][r * experts + e]) / sum;
              y.back() += double{kBalance} * balance + double{kZ} * std::log(sum) * std::log(sum);
            }
            return y;
          },
          [=](const Inputs& x, const Values&, const Values& d_y) {
            Inputs d{Values(x[0].size())}, losses{Values(x[0].size())};
            const Values none(kRows * k);
            route_tokens_backward({}, {.forward = args(x), .d_gates = d_y.data(), .counts = counts.data(), .d_logits = d[0].data()});
            route_tokens_backward({}, {.forward = args(x), .d_gates = none.data(), .counts = counts.data(), .d_logits = losses[0].data(),
                                       .balance_loss = kBalance, .z_loss = kZ});
            for (size_t i = 0; i < d[0].size(); ++i) d[0][i] += d_y.back() * losses[0][i];
            return d;
          }};
}
// clang-format on

std::vector<Differentiable> all_of_them() {
  std::vector<Differentiable> all{
      embedding(),       convolution(),          attention(),
      linear_product(),  grouped_product(),      rotation(),
      dispatched_rows(), combined_rows(),        routed_tokens(1),
      routed_tokens(3),  cross_entropy_of(0.0f), cross_entropy_of(0.2f),
      linear_cross_entropy_of(0.0f), linear_cross_entropy_of(0.2f)};
  for (const auto kind : {ActivationKind::relu, ActivationKind::gelu_tanh, ActivationKind::gelu_erf,
                          ActivationKind::silu, ActivationKind::identity})
    for (const bool gated : {false, true}) all.push_back(activation_of(kind, gated));
  for (const auto kind : {NormKind::layer_norm, NormKind::rms_norm}) all.push_back(norm_of(kind));
  return all;
}

double dot(const Values& x, const Values& y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

TEST(Gradient, EveryBackwardPassIsTheSlopeOfItsForwardPass) {
  // Central differences with this h err by about h^2 and eps / h, relative to the slope's size: 1e-10.
  constexpr double kStep = 1e-5, kBound = 1e-7;
  uint64_t seed = 0;
  for (const Differentiable& op : all_of_them()) {
    SCOPED_TRACE(op.name);
    Inputs at, direction, up, down;
    for (const int64_t size : op.sizes) {
      at.push_back(testing::random_values(size, DType::f64, ++seed));
      direction.push_back(testing::random_values(size, DType::f64, ++seed));
      up.push_back(at.back()), down.push_back(at.back());
      for (size_t i = 0; i < at.back().size(); ++i) {
        up.back()[i] += kStep * direction.back()[i];
        down.back()[i] -= kStep * direction.back()[i];
      }
    }
    const Values result = op.forward(at), above = op.forward(up), below = op.forward(down);
    const Values weight =
        testing::random_values(static_cast<int64_t>(result.size()), DType::f64, ++seed);
    const Inputs gradients = op.backward(at, result, weight);
    ASSERT_EQ(gradients.size(), at.size());
    double analytic = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      ASSERT_EQ(gradients[i].size(), at[i].size());
      analytic += dot(gradients[i], direction[i]);
      EXPECT_TRUE(at[i].empty() || dot(gradients[i], gradients[i]) > 0)
          << "no gradient of input " << i;
    }
    const double numeric = (dot(weight, above) - dot(weight, below)) / (2 * kStep);
    EXPECT_NEAR(analytic, numeric, kBound * (1 + std::fabs(numeric)));
  }
}

TEST(Gradient, CoversEveryBackwardPassOfTheHeaders) {
  std::set<std::string> entries;
  for (const Differentiable& op : all_of_them()) entries.insert(op.name);
  const std::regex declaration(
      R"(\nvoid (\w+)_backward\(const Context& ctx, const \w+Args& \w+\);)");
  size_t found = 0;
  const std::filesystem::path root = std::filesystem::path(SATURATE_SOURCE_DIR) / "src/kernels";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.path().string().ends_with(".h")) continue;
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator m(text.begin(), text.end(), declaration), end; m != end; ++m, ++found)
      EXPECT_TRUE(entries.contains((*m)[1]))
          << (*m)[1] << "_backward of " << entry.path() << " has no entry in " << __FILE__;
  }
  EXPECT_GE(found, 5u);
}

}  // namespace
}  // namespace saturate::kernels
