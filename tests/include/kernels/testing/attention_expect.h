// SPDX-License-Identifier: Apache-2.0
// For the tests: error bounds derived from the number formats, and the comparison with the truth.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/testing/attention_run.h"

namespace saturate::kernels {

// Bounds on the error of each row of the results, from the rounding of the formats: u is the unit
// of the stored type, f of fp32 sums over the head and of exp. Products of independent roundings
// along the head grow with the root of the sum of squares; sums over keys or queries are taken in
// full.
struct Bounds {
  Values o, lse, d_q, d_k, d_v;  // (heads or kv_heads, rows)
  Values d_bias, d_per_head;     // as they lie in a Result
};

struct RowSizes {
  double sum = 0, root = 0;  // of products x[d] y[d]: the sum, and the root of the sum of squares
};
inline RowSizes sizes_of(const double* x, const double* y, int64_t n) {
  RowSizes s;
  for (int64_t d = 0; d < n; ++d) s.sum += x[d] * y[d], s.root += x[d] * y[d] * x[d] * y[d];
  s.root = std::sqrt(s.root);
  return s;
}

// How far one angle unit of 2^-24 radians, once for each position, moves the score: the wheels turn
// base^(-2d/D) a position, and arithmetic in fp32 leaves that relative error in each angle.
inline double rotary_error(const AttentionArgs& a, const AttentionTerm& t) {
  if (a.rotary_base == 0.0f) return 0;
  const int64_t half = a.head_size / 2;
  double sum = 0;
  for (int64_t d = 0; d < half; ++d) {
    const double turn = std::pow(static_cast<double>(a.rotary_base),
                                 -static_cast<double>(d) / static_cast<double>(half));
    sum += turn * std::hypot(t.q[d], t.q[d + half]) * std::hypot(t.k[d], t.k[d + half]);
  }
  const double positions = static_cast<double>(2 * t.j) + t.distance;
  return 4 * epsilon_of(wide_of(a.dtype)) * positions * static_cast<double>(a.scale) * sum;
}

// Tensor cores take the rotated q and k in the stored type, rounded once more: how far the score
// moves, with u the unit of that type.
inline double rotary_rounding(const AttentionArgs& a, double u, double root) {
  return a.rotary_base == 0.0f || u < 0x1p-20 ? 0 : 4 * u * static_cast<double>(a.scale) * root;
}

// Half the distance between the smallest values: what is added to a relative bound of a probability
// or of a stored result. fp32 without subnormals; fp16 is stored with them.
inline double smallest_of(DType t) {
  if (t == DType::f64) return 0x1p-1022;
  return t == DType::f16 ? 0x1p-25 : 0x1p-126;
}

inline Bounds bounds_of(const Problem& p, const Result& truth) {
  const AttentionArgs& a = p.args.forward;
  const int64_t D = a.head_size, V = attention_v_head_size(a);
  const double u = epsilon_of(p.dtype), keep_scale = 1 / (1 - static_cast<double>(a.dropout));
  const double f =
      8 * epsilon_of(wide_of(p.dtype)) * std::sqrt(static_cast<double>(std::max(D, V)));
  const double scale = static_cast<double>(a.scale);
  const double input = a.rotary_base > 0.0f ? std::sqrt(2.0) : 1.0;  // largest |q| or |k|
  Bounds b{Values(a.heads * a.q_rows),    Values(a.heads * a.q_rows),    Values(a.heads * a.q_rows),
           Values(a.kv_heads * a.k_rows), Values(a.kv_heads * a.k_rows), Values(p.bias_size),
           Values(p.per_head.size())};
  Result r = truth;
  const auto add = [&](const AttentionTerm& t) {
    const int64_t at = t.head * a.q_rows + t.q_row, key = t.kv_head * a.k_rows + t.k_row;
    const double lse = truth.lse[at];
    const RowSizes qk = sizes_of(t.q, t.k, D), pv = sizes_of(t.d_o, t.v, V),
                   od = sizes_of(t.d_o, t.o, V);
    // Relative error of p: of the score, of lse (at most log of the keys plus it) and of exp.
    // The sum q.k, the capped score, and what bias and distance add are each rounded at their size.
    const double e = f * (1 + 2 * std::fabs(t.product) + std::fabs(t.score) + std::fabs(lse) +
                          std::fabs(t.score - t.product) + scale * qk.root) +
                     rotary_error(a, t) + rotary_rounding(a, u, qk.root);
    const double p_error = keep_scale * (t.p * (u + e) + smallest_of(p.dtype));
    const double size = keep_scale * (std::fabs(pv.sum) + pv.root) + std::fabs(t.delta) + od.root;
    const double d_score = size * (t.p * (u + e) + smallest_of(p.dtype));
    // The cap's derivative 1 - tanh^2 carries twice the relative error of the product.
    const double d_product = scale * d_score * input * (a.soft_cap > 0.0f ? 3 : 1);
    b.o[at] += p_error;
    b.lse[at] = std::max(b.lse[at], 2 * e);
    b.d_q[at] += d_product;
    b.d_k[key] += d_product;
    b.d_v[key] += p_error;
    if (!b.d_bias.empty())
      b.d_bias[t.sequence * p.args.d_bias_sequence_stride + t.head * p.args.d_bias_head_stride +
               t.i * p.args.d_bias_row_stride + t.j] += d_score;
    b.d_per_head[t.head] += d_score * t.distance;
    // The sink's part is spread over the terms: p_sink |delta| of each row belongs to its keys.
    if (a.sinks || p.shape.features.sinks) {
      const double p_sink = std::exp(p.per_head[a.heads + t.head] - lse);
      const double share = t.p / (1 - p_sink);
      b.d_per_head[a.heads + t.head] +=
          share * (std::fabs(t.delta) + od.root) * (p_sink * (u + 3 * e) + smallest_of(p.dtype));
    }
  };
  with_reference_args(
      p, r, [&](const AttentionBackwardArgs& args) { attention_visit_reference(args, add); });
  return b;
}

// `rows` rows of `heads` heads of D: near the truth, and every other element still the poison.
inline void expect_near(const char* what, const Values& got, const Values& want, int64_t first,
                        int64_t rows, int64_t stride, int64_t heads, int64_t D, const Values& bound,
                        double unit, double smallest) {
  int reported = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t x = 0; x < heads * D; ++x) {
      const int64_t at = first + r * stride + x;
      // The inputs are in [-1, 1], which the bound stands for; storing the result costs `unit`
      // more.
      const double tolerance = bound[x / D * rows + r] + unit * std::fabs(want[at]) + smallest;
      if (std::fabs(got[at] - want[at]) <= tolerance) continue;
      ADD_FAILURE() << what << " row " << r << " head " << x / D << " element " << x % D << ": "
                    << got[at] << ", expected " << want[at] << " +- " << tolerance;
      if (++reported == 3) return;
    }
}

// Elements one by one, where the truth is a number.
inline void expect_each(const char* what, const Values& got, const Values& want,
                        const Values& bound, double unit) {
  for (size_t i = 0; i < bound.size(); ++i) {
    if (std::isnan(want[i])) continue;
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << what << " " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], bound[i] + unit * std::fabs(want[i])) << what << " " << i;
    }
  }
}

// What a problem's results must be. Costs far more than the results, so one for all of them.
struct Expected {
  Result want;
  Bounds bounds;

  explicit Expected(const Problem& p) : want(truth(p)), bounds(bounds_of(p, want)) {}
};

inline void expect_right(const Problem& p, const Result& got, const Expected& expected) {
  const AttentionArgs& a = p.args.forward;
  const Result& want = expected.want;
  const Bounds& b = expected.bounds;
  const double u = epsilon_of(p.dtype), wide = epsilon_of(wide_of(p.dtype));
  const double tiny = smallest_of(p.dtype);
  const int64_t V = attention_v_head_size(a);
  expect_near("o", got.o, want.o, 0, a.q_rows, a.o_stride, a.heads, V, b.o, u, tiny);
  expect_each("lse", got.lse, want.lse, b.lse, wide);
  expect_near("d_q", got.d_input, want.d_input, 0, a.q_rows, a.q_stride, a.heads, a.head_size,
              b.d_q, u, tiny);
  expect_near("d_k", got.d_input, want.d_input, p.k_at, a.k_rows, a.k_stride, a.kv_heads,
              a.head_size, b.d_k, u, tiny);
  expect_near("d_v", got.d_input, want.d_input, p.v_at, a.k_rows, a.v_stride, a.kv_heads, V, b.d_v,
              u, tiny);
  expect_each("d_bias", got.d_bias, want.d_bias, b.d_bias, wide);
  expect_each("d_slopes and d_sinks", got.d_per_head, want.d_per_head, b.d_per_head, wide);
  // What the reference leaves as poison (gaps between rows, guards) every implementation must
  // leave.
  const auto expect_untouched = [](const char* what, const Values& g, const Values& w) {
    for (size_t i = 0; i < w.size(); ++i)
      ASSERT_EQ(std::isnan(g[i]), std::isnan(w[i])) << what << " element " << i << " is " << g[i];
  };
  expect_untouched("o", got.o, want.o);
  expect_untouched("lse", got.lse, want.lse);
  expect_untouched("d_input", got.d_input, want.d_input);
  expect_untouched("d_bias", got.d_bias, want.d_bias);
  expect_untouched("d_slopes and d_sinks", got.d_per_head, want.d_per_head);
}

inline void expect_right(const Problem& p, const Result& got) { expect_right(p, got, Expected(p)); }

inline bool same_bits(const Values& x, const Values& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

// Each direction of every implementation that fits, the other direction by the first that fits.
inline void expect_all_right(const Problem& p, Device device) {
  const Context ctx{device, nullptr, nullptr, 0};
  const Expected expected(p);
  int tried = 0;
  // Whether an implementation fits depends on pointers too: any that are set and aligned will do.
  AttentionBackwardArgs args = p.with_any_pointers();
  args.workspace = args.delta;  // run() gives one
  args.workspace_bytes = attention_backward_hopper_workspace(args.forward);
  for (const auto& f : attention_forward_impls()) {
    if (f.device != device.kind || !f.fits(ctx, args.forward)) continue;
    SCOPED_TRACE(f.name);
    ++tried;
    const Result first = run(p, device, &f, nullptr), again = run(p, device, &f, nullptr);
    expect_right(p, first, expected);
    EXPECT_TRUE(same_bits(first.o, again.o)) << "differs run to run";
  }
  for (const auto& b : attention_backward_impls()) {
    if (b.device != device.kind || !b.fits(ctx, args)) continue;
    SCOPED_TRACE(b.name);
    ++tried;
    const Result first = run(p, device, nullptr, &b), again = run(p, device, nullptr, &b);
    expect_right(p, first, expected);
    EXPECT_TRUE(same_bits(first.d_input, again.d_input) && same_bits(first.d_bias, again.d_bias) &&
                same_bits(first.d_per_head, again.d_per_head))
        << "differs run to run";
  }
  EXPECT_GE(tried, 2);
}

}  // namespace saturate::kernels
