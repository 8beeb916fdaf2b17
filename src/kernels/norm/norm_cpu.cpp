// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/host/dropout.h"
#include "kernels/host/vector_math.h"
#include "kernels/norm/norm_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrainElements =
    16384;  // about 10 us of work, well above the cost of a hand-over

// y[c] = a[c] + b[c] * factor of element number first + c. `a` null counts as zeros.
template <class T>
void add_dropped(const HostDropout& drop, int64_t first, int64_t cols, const T* a, const T* b,
                 T* y) {
  for (int64_t c0 = 0; c0 < cols; c0 += HostDropout::kChunk) {
    const int64_t n = std::min(HostDropout::kChunk, cols - c0);
    T factor[HostDropout::kChunk];
    if (drop.active()) {
      drop.factors(first + c0, n, factor);
    } else {
      std::fill_n(factor, n, T(1));
    }
    if (a != nullptr) {
      for (int64_t c = 0; c < n; ++c) y[c0 + c] = a[c0 + c] + b[c0 + c] * factor[c];
    } else {
      for (int64_t c = 0; c < n; ++c) y[c0 + c] = b[c0 + c] * factor[c];
    }
  }
}

template <class T>
void forward_row(const NormForwardArgs& a, const HostDropout& drop, int64_t r) {
  const int64_t cols = a.cols;
  const T* s = static_cast<const T*>(a.x) + r * cols;
  if (a.branch != nullptr) {
    T* sum = static_cast<T*>(a.sum) + r * cols;
    add_dropped(drop, drop.row(r), cols, s, static_cast<const T*>(a.branch) + r * cols, sum);
    s = sum;
  }
  const T count = static_cast<T>(cols);
  T mean = 0;
  if (a.kind == NormKind::layer_norm) {
    mean = lane_sum<T>(cols, [s](int64_t c) { return s[c]; }) / count;
    static_cast<T*>(a.mean)[r] = mean;
  }
  const T square =
      lane_sum<T>(cols, [s, mean](int64_t c) { return (s[c] - mean) * (s[c] - mean); });
  const T rstd = T(1) / std::sqrt(square / count + static_cast<T>(a.eps));
  static_cast<T*>(a.rstd)[r] = rstd;

  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  T* y = static_cast<T*>(a.y) + r * cols;
  if (bias != nullptr) {
    for (int64_t c = 0; c < cols; ++c) y[c] = (s[c] - mean) * rstd * weight[c] + bias[c];
  } else {
    for (int64_t c = 0; c < cols; ++c) y[c] = (s[c] - mean) * rstd * weight[c];
  }
}

template <class T>
void forward(const NormForwardArgs& a) {
  const HostDropout drop(a.rng, a.branch != nullptr ? a.dropout : 0.0f);
  parallel_for(a.rows, std::max<int64_t>(1, kGrainElements / a.cols),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) forward_row<T>(a, drop, r);
               });
}

// Writes d_x and d_branch of row r and adds its share to the column sums (null: not wanted).
template <class T>
void backward_row(const NormBackwardArgs& a, const HostDropout& drop, int64_t r, T* d_weight,
                  T* d_bias, T* d_branch_sum) {
  const int64_t cols = a.cols;
  const T* d_y = static_cast<const T*>(a.d_y) + r * cols;
  const T* s = static_cast<const T*>(a.sum) + r * cols;
  const T* weight = static_cast<const T*>(a.weight);
  const bool centred = a.kind == NormKind::layer_norm;
  const T mean = centred ? static_cast<const T*>(a.mean)[r] : T(0);
  const T rstd = static_cast<const T*>(a.rstd)[r];
  const T count = static_cast<T>(cols);
  const T along = lane_sum<T>(cols, [&](int64_t c) { return d_y[c] * weight[c] * (s[c] - mean); }) *
                  rstd / count;
  const T level =
      centred ? lane_sum<T>(cols, [&](int64_t c) { return d_y[c] * weight[c]; }) / count : 0;

  T* d_x = static_cast<T*>(a.d_x) + r * cols;
  for (int64_t c = 0; c < cols; ++c) {
    d_x[c] = rstd * (d_y[c] * weight[c] - level - (s[c] - mean) * rstd * along);
  }
  if (a.d_sum != nullptr) {
    const T* d_sum = static_cast<const T*>(a.d_sum) + r * cols;
    for (int64_t c = 0; c < cols; ++c) d_x[c] += d_sum[c];
  }
  if (a.d_branch != nullptr) {
    add_dropped<T>(drop, drop.row(r), cols, nullptr, d_x, static_cast<T*>(a.d_branch) + r * cols);
  }
  if (d_weight != nullptr) {
    for (int64_t c = 0; c < cols; ++c) d_weight[c] += d_y[c] * ((s[c] - mean) * rstd);
  }
  if (d_bias != nullptr) {
    for (int64_t c = 0; c < cols; ++c) d_bias[c] += d_y[c];
  }
  if (d_branch_sum != nullptr) {
    const T* got = a.d_branch != nullptr ? static_cast<const T*>(a.d_branch) + r * cols : d_x;
    for (int64_t c = 0; c < cols; ++c) d_branch_sum[c] += got[c];
  }
}

template <class T>
void fold_groups(const NormBackwardArgs& a, const T* partial, int64_t groups, int64_t which,
                 void* out, bool accumulate) {
  if (out == nullptr) return;
  T* total = static_cast<T*>(out);
  if (!accumulate) std::fill_n(total, a.cols, T(0));
  for (int64_t g = 0; g < groups; ++g) {
    const T* from = partial + (3 * g + which) * a.cols;
    for (int64_t c = 0; c < a.cols; ++c) total[c] += from[c];
  }
}

template <class T>
void backward(const NormBackwardArgs& a) {
  const HostDropout drop(a.rng, a.d_branch != nullptr ? a.dropout : 0.0f);
  const int64_t groups = std::min(kNormCpuGroups, a.rows);
  T* partial = static_cast<T*>(a.partial);
  parallel_for(
      groups, std::max<int64_t>(1, kGrainElements * groups / std::max<int64_t>(1, a.rows * a.cols)),
      [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const auto sums = [&](const void* wanted, int64_t which) -> T* {
            if (wanted == nullptr) return nullptr;
            T* const to = partial + (3 * g + which) * a.cols;
            std::fill_n(to, a.cols, T(0));
            return to;
          };
          T *const d_weight = sums(a.d_weight, 0), *const d_bias = sums(a.d_bias, 1),
                   *const d_branch = sums(a.d_branch_sum, 2);
          for (int64_t r = a.rows * g / groups; r < a.rows * (g + 1) / groups; ++r) {
            backward_row<T>(a, drop, r, d_weight, d_bias, d_branch);
          }
        }
      });
  fold_groups<T>(a, partial, groups, 0, a.d_weight, a.accumulate);
  fold_groups<T>(a, partial, groups, 1, a.d_bias, a.accumulate);
  fold_groups<T>(a, partial, groups, 2, a.d_branch_sum, a.accumulate_branch_sum);
}

}  // namespace

void norm_forward_cpu(const Context&, const NormForwardArgs& args) {
  args.dtype == DType::f64 ? forward<double>(args) : forward<float>(args);
}

void norm_backward_cpu(const Context&, const NormBackwardArgs& args) {
  args.dtype == DType::f64 ? backward<double>(args) : backward<float>(args);
}

}  // namespace saturate::kernels
