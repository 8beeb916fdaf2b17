// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/host/vector_math.h"
#include "kernels/loss/cross_entropy_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
T max_of(const T* z, int64_t n) {
  constexpr int64_t kLanes = 16;  // independent maxima, so that the loop vectorises
  T lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<T>::infinity());
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = z[c + l] > lanes[l] ? z[c + l] : lanes[l];
  }
  T m = *std::max_element(lanes, lanes + kLanes);
  for (; c < n; ++c) m = z[c] > m ? z[c] : m;
  return m;
}

// Loss and gradient of a row from its sums. With write_gradient the first n places of z hold
// exp(logit - sums.top); the target is class `target` of all, column `column` here (outside 0 to n:
// another rank's).
template <class T>
struct RowSums {
  T top = 0, target = 0;
  double sum = 0, mean = 0;
};
template <class T>
void finish(const CrossEntropyArgs& x, const RowSums<T>& sums, T* z, int64_t n, int64_t column,
            bool valid, T& loss, T& nll, double gradient_scale) {
  const auto smoothing = static_cast<double>(x.label_smoothing);
  const auto vocab = static_cast<double>(x.vocab);
  const double lse = static_cast<double>(sums.top) + std::log(sums.sum);
  const double plain = lse - static_cast<double>(sums.target);
  nll = static_cast<T>(plain);
  loss = static_cast<T>((1.0 - smoothing) * plain +
                        (smoothing > 0 ? smoothing * (lse - sums.mean) : 0.0));
  if (!x.write_gradient) return;
  const double g = valid ? gradient_scale : std::numeric_limits<double>::quiet_NaN();
  const T scale = static_cast<T>(g / sums.sum), shift = static_cast<T>(-g * smoothing / vocab);
  for (int64_t c = 0; c < n; ++c) z[c] = z[c] * scale + shift;
  if (column >= 0 && column < n) {
    // exp / sum - 1 without rounding exp * scale first.
    z[column] = static_cast<T>(g * (std::exp(static_cast<double>(sums.target) - lse) -
                                    (1.0 - smoothing) - smoothing / vocab));
  }
  std::fill(z + n, z + x.ld, T{0});
}

template <class T>
void no_loss(const CrossEntropyArgs& x, T* z, T& loss, T& nll) {
  loss = nll = T{0};
  if (x.write_gradient) std::fill_n(z, x.ld, T{0});
}

template <class T>
void row(const CrossEntropyArgs& x, T* z, int32_t target, T& loss, T& nll, double gradient_scale) {
  if (target < 0) return no_loss(x, z, loss, nll);
  const bool valid = target < x.vocab;
  RowSums<T> sums{.top = max_of(z, x.vocab),
                  .target = valid ? z[target] : std::numeric_limits<T>::quiet_NaN()};
  const T top = sums.top;
  if (x.label_smoothing > 0) {
    sums.mean = static_cast<double>(lane_sum<T>(x.vocab, [z](int64_t c) { return z[c]; })) /
                static_cast<double>(x.vocab);
  }
  if (x.write_gradient) {
    // The exponentials stay in place of the logits: the gradient needs them and nothing else.
    sums.sum = static_cast<double>(
        lane_sum<T>(x.vocab, [z, top](int64_t c) { return z[c] = vector_exp(z[c] - top); }));
  } else {
    sums.sum = static_cast<double>(
        lane_sum<T>(x.vocab, [z, top](int64_t c) { return vector_exp(z[c] - top); }));
  }
  finish(x, sums, z, x.vocab, target, valid, loss, nll, gradient_scale);
}

double scale_of(const CrossEntropyArgs& x) {
  return static_cast<double>(x.grad_scale) *
         (x.device_scale ? static_cast<double>(*x.device_scale) : 1.0);
}

template <class T>
void run(const CrossEntropyArgs& x) {
  const double scale = scale_of(x);
  parallel_for(x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      row(x, static_cast<T*>(x.logits) + t * x.ld, x.targets[t], static_cast<T*>(x.loss)[t],
          static_cast<T*>(x.nll)[t], scale);
    }
  });
}

template <class T>
void statistics(const LossStatisticsArgs& x) {
  const int64_t n = classes_among(x.ld, x.first_class, x.vocab);
  parallel_for(x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* z = static_cast<const T*>(x.logits) + t * x.ld;
      RowStatistics<T> s{-std::numeric_limits<T>::infinity(), 0, 0, 0};
      const int64_t column = x.targets[t] - x.first_class;
      if (x.targets[t] >= 0 && n > 0) {
        s.top = max_of(z, n);
        const T top = s.top;
        s.sum = lane_sum<T>(n, [z, top](int64_t c) { return vector_exp(z[c] - top); });
        s.total = lane_sum<T>(n, [z](int64_t c) { return z[c]; });
        if (column >= 0 && column < n) s.target = z[column];
      }
      static_cast<RowStatistics<T>*>(x.statistics)[t] = s;
    }
  });
}

template <class T>
void finish_rows(const CrossEntropyFinishArgs& a) {
  const CrossEntropyArgs& x = a.forward;
  const double scale = scale_of(x);
  const int64_t n = classes_among(x.ld, a.first_class, x.vocab);
  parallel_for(x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* z = static_cast<T*>(x.logits) + t * x.ld;
      T &loss = static_cast<T*>(x.loss)[t], &nll = static_cast<T*>(x.nll)[t];
      const int32_t target = x.targets[t];
      if (target < 0) {
        no_loss(x, z, loss, nll);
        continue;
      }
      const auto* parts = static_cast<const RowStatistics<T>*>(a.statistics) + t;
      RowSums<T> sums{.top = parts[0].top};
      for (int64_t p = 1; p < a.parts; ++p) sums.top = std::max(sums.top, parts[p * x.rows].top);
      double total = 0;
      for (int64_t p = 0; p < a.parts; ++p) {
        const RowStatistics<T>& s = parts[p * x.rows];
        sums.sum += static_cast<double>(s.sum) * std::exp(static_cast<double>(s.top - sums.top));
        sums.target += s.target;
        total += static_cast<double>(s.total);
      }
      sums.mean = total / static_cast<double>(x.vocab);
      const bool valid = target < x.vocab;
      if (!valid) sums.target = std::numeric_limits<T>::quiet_NaN();
      const T top = sums.top;
      if (x.write_gradient)
        for (int64_t c = 0; c < n; ++c) z[c] = vector_exp(z[c] - top);
      finish(x, sums, z, n, target - a.first_class, valid, loss, nll, scale);
    }
  });
}

template <class T>
void totals(const LossTotalsArgs& x) {
  double sums[3] = {};
  for (int64_t t = 0; t < x.rows; ++t) {
    sums[0] += static_cast<double>(static_cast<const T*>(x.loss)[t]);
    sums[1] += static_cast<double>(static_cast<const T*>(x.nll)[t]);
    sums[2] += x.targets[t] >= 0 ? 1.0 : 0.0;
  }
  for (int i = 0; i < 3; ++i) x.totals[i] = (x.accumulate ? x.totals[i] : 0.0) + sums[i];
}

}  // namespace

void cross_entropy_cpu(const Context&, const CrossEntropyArgs& x) {
  x.dtype == DType::f64 ? run<double>(x) : run<float>(x);
}

void loss_statistics_cpu(const Context&, const LossStatisticsArgs& x) {
  x.dtype == DType::f64 ? statistics<double>(x) : statistics<float>(x);
}

void cross_entropy_finish_cpu(const Context&, const CrossEntropyFinishArgs& x) {
  x.forward.dtype == DType::f64 ? finish_rows<double>(x) : finish_rows<float>(x);
}

void loss_totals_cpu(const Context&, const LossTotalsArgs& x) {
  x.dtype == DType::f64 ? totals<double>(x) : totals<float>(x);
}

}  // namespace saturate::kernels
