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

template <class T>
void row(const CrossEntropyArgs& x, T* z, int32_t target, T& loss, T& nll, double gradient_scale) {
  if (target < 0) {
    loss = nll = T{0};
    if (x.write_gradient) std::fill_n(z, x.ld, T{0});
    return;
  }
  const T bad = std::numeric_limits<T>::quiet_NaN();
  const T z_target = target < x.vocab ? z[target] : bad;
  const auto smoothing = static_cast<double>(x.label_smoothing);
  const auto vocab = static_cast<double>(x.vocab);
  const T top = max_of(z, x.vocab);
  const double mean =
      smoothing > 0
          ? static_cast<double>(lane_sum<T>(x.vocab, [z](int64_t c) { return z[c]; })) / vocab
          : 0.0;
  double sum = 0;
  if (x.write_gradient) {
    // The exponentials stay in place of the logits: the gradient needs them and nothing else.
    sum = static_cast<double>(
        lane_sum<T>(x.vocab, [z, top](int64_t c) { return z[c] = vector_exp(z[c] - top); }));
  } else {
    sum = static_cast<double>(
        lane_sum<T>(x.vocab, [z, top](int64_t c) { return vector_exp(z[c] - top); }));
  }
  const double lse = static_cast<double>(top) + std::log(sum);
  const double plain = lse - static_cast<double>(z_target);
  nll = static_cast<T>(plain);
  loss =
      static_cast<T>((1.0 - smoothing) * plain + (smoothing > 0 ? smoothing * (lse - mean) : 0.0));
  if (!x.write_gradient) return;
  const double g = target < x.vocab ? gradient_scale : static_cast<double>(bad);
  const T scale = static_cast<T>(g / sum), shift = static_cast<T>(-g * smoothing / vocab);
  for (int64_t c = 0; c < x.vocab; ++c) z[c] = z[c] * scale + shift;
  if (target < x.vocab) {
    // exp / sum - 1 without rounding exp * scale first.
    z[target] = static_cast<T>(g * (std::exp(static_cast<double>(z_target) - lse) -
                                    (1.0 - smoothing) - smoothing / vocab));
  }
  std::fill(z + x.vocab, z + x.ld, T{0});
}

template <class T>
void run(const CrossEntropyArgs& x) {
  const double scale = static_cast<double>(x.grad_scale) *
                       (x.device_scale ? static_cast<double>(*x.device_scale) : 1.0);
  parallel_for(x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      row(x, static_cast<T*>(x.logits) + t * x.ld, x.targets[t], static_cast<T*>(x.loss)[t],
          static_cast<T*>(x.nll)[t], scale);
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

void loss_totals_cpu(const Context&, const LossTotalsArgs& x) {
  x.dtype == DType::f64 ? totals<double>(x) : totals<float>(x);
}

}  // namespace saturate::kernels
