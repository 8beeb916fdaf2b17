// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gemm/matmul.h"
#include "kernels/loss/linear_cross_entropy_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

double scale_of(const LinearCrossEntropyArgs& x) {
  return static_cast<double>(x.grad_scale) *
         (x.device_scale != nullptr ? static_cast<double>(*x.device_scale) : 1.0);
}

// From a row of z to all that comes of it.
template <class T>
void finish_row(const LinearCrossEntropyArgs& a, int64_t t, double scale) {
  T* const e = static_cast<T*>(a.e) + t * a.ld;
  const T* const x = static_cast<const T*>(a.x) + t * a.width;
  T* const scaled = static_cast<T*>(a.scaled) + t * a.width;
  T &loss = static_cast<T*>(a.loss)[t], &nll = static_cast<T*>(a.nll)[t],
    &factor = static_cast<T*>(a.factor)[t];
  const int32_t target = a.targets[t];
  if (target < 0) {
    loss = nll = factor = T{0};
    std::fill_n(e, a.ld, T{0});
    std::fill_n(scaled, a.width, T{0});
    return;
  }
  const auto s = static_cast<double>(a.label_smoothing);
  const bool valid = target < a.vocab;
  const double z_target =
      valid ? static_cast<double>(e[target]) : std::numeric_limits<double>::quiet_NaN();
  double sum = 0, mean = 0;
  const double most = static_cast<double>(kMostExponent) * std::log(2.0);
  for (int64_t c = 0; c < a.vocab; ++c) {
    const auto z = static_cast<double>(e[c]);
    mean += z / static_cast<double>(a.vocab);
    const double one = std::exp(std::min(z - z_target, most));
    sum += one;
    e[c] = static_cast<T>(one);
  }
  std::fill(e + a.vocab, e + a.ld, T{0});
  if (valid) e[target] = static_cast<T>(1.0 - (1.0 - s) * sum);
  const double plain = std::log(sum);
  nll = static_cast<T>(plain);
  loss = static_cast<T>(plain + (s > 0 ? s * (z_target - mean) : 0.0));
  factor = static_cast<T>(scale / sum);
  for (int64_t k = 0; k < a.width; ++k) scaled[k] = factor * x[k];
}

// What smoothing takes from every class alike.
template <class T>
void finish_uniform(const LinearCrossEntropyArgs& a, double scale) {
  const double share =
      -scale * static_cast<double>(a.label_smoothing) / static_cast<double>(a.vocab);
  const auto *const w = static_cast<const T*>(a.w), *const x = static_cast<const T*>(a.x);
  T* const e = static_cast<T*>(a.e) + a.rows * a.ld;
  T* const scaled = static_cast<T*>(a.scaled) + a.rows * a.width;
  const int64_t more = linear_cross_entropy_rows(a.rows, a.label_smoothing) - a.rows;
  std::fill_n(e, more * a.ld, T{0});
  std::fill_n(e, a.vocab, T{1});
  std::fill_n(scaled, more * a.width, T{0});
  for (int64_t k = 0; k < a.width; ++k) {
    double classes = 0, rows = 0;
    for (int64_t c = 0; c < a.vocab; ++c) classes += static_cast<double>(w[c * a.width + k]);
    for (int64_t t = 0; t < a.rows; ++t)
      if (a.targets[t] >= 0) rows += static_cast<double>(x[t * a.width + k]);
    static_cast<T*>(a.uniform)[k] = static_cast<T>(share * classes);
    scaled[k] = static_cast<T>(share * rows);
  }
}

template <class T>
void run(const Context& ctx, const LinearCrossEntropyArgs& a) {
  matmul(ctx, {.a = a.x,
               .b = a.w,
               .d = a.e,
               .bias = a.bias,
               .m = a.rows,
               .n = a.ld,
               .k = a.width,
               .lda = a.width,
               .ldb = a.width,
               .ldc = a.ld,
               .ldd = a.ld,
               .tb = Transpose::yes,
               .ab_type = a.dtype,
               .d_type = a.dtype});
  const double scale = scale_of(a);
  parallel_for(a.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) finish_row<T>(a, t, scale);
  });
  if (a.label_smoothing > 0.0f) finish_uniform<T>(a, scale);
}

template <class T>
void run(const Context& ctx, const LinearCrossEntropyBackwardArgs& a) {
  matmul(ctx, {.a = a.e,
               .b = a.w,
               .d = a.d_x,
               .m = a.rows,
               .n = a.width,
               .k = a.ld,
               .lda = a.ld,
               .ldb = a.width,
               .ldc = a.width,
               .ldd = a.width,
               .ab_type = a.dtype,
               .d_type = a.dtype});
  const auto *const factor = static_cast<const T*>(a.factor), *const uniform =
                                                                  static_cast<const T*>(a.uniform);
  parallel_for(a.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* const d_x = static_cast<T*>(a.d_x) + t * a.width;
      for (int64_t k = 0; k < a.width; ++k) {
        const T all = factor[t] != T{0} && uniform != nullptr ? uniform[k] : T{0};
        d_x[k] = d_x[k] * factor[t] + all;
      }
    }
  });
}

}  // namespace

void linear_cross_entropy_cpu(const Context& ctx, const LinearCrossEntropyArgs& args) {
  args.dtype == DType::f64 ? run<double>(ctx, args) : run<float>(ctx, args);
}

void linear_cross_entropy_backward_cpu(const Context& ctx,
                                       const LinearCrossEntropyBackwardArgs& args) {
  args.dtype == DType::f64 ? run<double>(ctx, args) : run<float>(ctx, args);
}

}  // namespace saturate::kernels
