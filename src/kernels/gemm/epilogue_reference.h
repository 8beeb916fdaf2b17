// SPDX-License-Identifier: Apache-2.0
// epilogue.h in double precision, for tests: naive loops, the truth for every path.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

struct ReferenceCurve {
  double value, slope;
};

inline ReferenceCurve reference_curve(ActivationKind kind, double x) {
  const double root_half = std::sqrt(0.5), pi = std::acos(-1.0);
  if (kind == ActivationKind::relu) return {x > 0 ? x : 0, x > 0 ? 1.0 : 0.0};
  if (kind == ActivationKind::silu) {
    const double s = 1 / (1 + std::exp(-x));
    return {x * s, s + x * s * (1 - s)};
  }
  if (kind == ActivationKind::gelu_tanh) {
    const double k = std::sqrt(2 / pi), t = std::tanh(k * (x + 0.044715 * x * x * x));
    return {0.5 * x * (1 + t),
            0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x)};
  }
  const double cdf = 0.5 * std::erfc(-x * root_half);
  return {x * cdf, cdf + x * std::exp(-x * x / 2) / std::sqrt(2 * pi)};
}

// What a product gives: dense arrays without padding, and for each value of them how far an
// implementation that sums in fp32 may be off.
struct ReferenceProduct {
  std::vector<double> d, aux, column_sum;
  std::vector<double> d_bound, aux_bound, column_sum_bound;
};

// One product (batch 1) from the values of its operands with x's leading dimensions; `aux` as the
// derivatives read it. The bound: every addition of the sum over k rounds (sqrt(k) of them in the
// mean, all terms at their size), what enters a function moves its value by at most its slope
// (below 1.13 for all of them), and what is stored rounds once to its type.
inline ReferenceProduct reference_product(const MatmulArgs& x, const std::vector<double>& a,
                                          const std::vector<double>& b,
                                          const std::vector<double>& c,
                                          const std::vector<double>& bias,
                                          const std::vector<double>& aux) {
  const Epilogue& e = x.epilogue;
  const int64_t n = x.n, wide_n = e.product_columns(n), out_n = e.output_columns(n);
  const auto at = [](const std::vector<double>& v, int64_t i) { return v[static_cast<size_t>(i)]; };
  const double eps = epsilon_of(DType::f32), stored = epsilon_of(x.d_type);
  // The functions themselves on the GPU: a few roundings in fp32 and __expf (2 ulp and its
  // argument's rounding).
  constexpr double kSlope = 1.13, kCurveRoundings = 16;
  ReferenceProduct r;
  r.d.resize(static_cast<size_t>(x.m * out_n));
  r.d_bound = r.d;
  r.column_sum.resize(static_cast<size_t>(out_n));
  r.column_sum_bound = r.column_sum;
  std::vector<double> v(static_cast<size_t>(wide_n)), slack(v.size());
  for (int64_t i = 0; i < x.m; ++i) {
    for (int64_t j = 0; j < wide_n; ++j) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < x.k; ++k) {
        const double p = at(a, x.ta == Transpose::yes ? k * x.lda + i : i * x.lda + k) *
                         at(b, x.tb == Transpose::yes ? j * x.ldb + k : k * x.ldb + j);
        sum += p;
        size += std::fabs(p);
      }
      const double plus = x.bias != nullptr ? at(bias, j) : 0;
      const auto q = static_cast<size_t>(j);
      v[q] = x.alpha * sum + plus;
      slack[q] = eps * (std::sqrt(static_cast<double>(x.k)) + 3) *
                 (std::fabs(x.alpha) * size + std::fabs(plus));
      if (e.writes_aux()) {
        const double kept = e.slopes ? reference_curve(e.activation, v[q]).slope : v[q];
        const double rough = e.slopes ? kCurveRoundings * eps * (1 + std::fabs(v[q])) : 0;
        r.aux.push_back(kept);  // slopes move less than what they are slopes at
        r.aux_bound.push_back(slack[q] + rough + stored * std::fabs(kept));
      }
    }
    const auto put = [&](int64_t j, double value, double bound) {
      const double old = x.beta != 0 ? x.beta * at(c, i * x.ldc + j) : 0;
      const double total = value + old;
      const double fp32 = bound + 2 * eps * (std::fabs(value) + std::fabs(old));
      const auto q = static_cast<size_t>(i * out_n + j), col = static_cast<size_t>(j);
      r.d[q] = total;
      r.d_bound[q] = fp32 + 1.01 * stored * std::fabs(total) + 1e-30;
      r.column_sum[col] += total;
      r.column_sum_bound[col] +=
          fp32 + eps * (std::sqrt(static_cast<double>(x.m)) + 3) * std::fabs(total) + 1e-30;
    };
    for (int64_t j = 0; j < n; ++j) {
      const auto q = static_cast<size_t>(j);
      const double rough = kCurveRoundings * eps;
      if (e.kind == EpilogueKind::plain) {
        put(j, v[q], slack[q]);
      } else if (e.kind == EpilogueKind::activation) {
        const double f = reference_curve(e.activation, v[q]).value;
        put(j, f, kSlope * slack[q] + rough * std::fabs(v[q]));
      } else if (e.kind == EpilogueKind::gated) {
        const auto up = static_cast<size_t>(n + j);
        const double f = reference_curve(e.activation, v[q]).value;
        put(j, f * v[up],
            (kSlope * slack[q] + rough * std::fabs(v[q])) * (std::fabs(v[up]) + slack[up]) +
                std::fabs(f) * slack[up]);
      } else if (e.kind == EpilogueKind::derivative) {
        const double g = at(aux, i * e.ld_aux + j);
        put(j, v[q] * (e.slopes ? g : reference_curve(e.activation, g).slope),
            kSlope * slack[q] + rough * (1 + std::fabs(g)) * std::fabs(v[q]));
      } else {
        const double g = at(aux, i * e.ld_aux + j), u = at(aux, i * e.ld_aux + n + j);
        const ReferenceCurve f = reference_curve(e.activation, g);
        put(j, v[q] * u * f.slope,
            std::fabs(u) * (kSlope * slack[q] + rough * (1 + std::fabs(g)) * std::fabs(v[q])));
        put(n + j, v[q] * f.value, std::fabs(f.value) * slack[q] + rough * std::fabs(g * v[q]));
      }
    }
  }
  return r;
}

}  // namespace saturate::kernels
