// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/activation/activation_impl.h"
#include "kernels/activation/curve_cpu.h"
#include "kernels/host/dropout.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrainElements = 16384;

// Calls body(first, n, x offset, factors): stretches of one row, at most HostDropout::kChunk long.
template <class T, class Body>
void for_chunks(const ActivationArgs& a, const Body& body) {
  const HostDropout drop(a.rng, a.dropout);
  // Rows that follow each other without a gap, in x and in the random numbers, are one long row.
  const bool dense = !a.gated && a.rng.columns == a.cols;
  const int64_t used = a.used_rows != nullptr ? std::min<int64_t>(*a.used_rows, a.rows) : a.rows;
  const int64_t rows = dense ? 1 : used, cols = dense ? used * a.cols : a.cols;
  if (rows * cols == 0) return;
  const int64_t chunks = (cols + HostDropout::kChunk - 1) / HostDropout::kChunk;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::min(cols, HostDropout::kChunk));
  parallel_for(rows * chunks, grain, [&](int64_t begin, int64_t end) {
    T factor[HostDropout::kChunk];
    std::fill_n(factor, HostDropout::kChunk, T(1));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / chunks, c = i % chunks * HostDropout::kChunk;
      const int64_t n = std::min(HostDropout::kChunk, cols - c);
      if (drop.active()) drop.factors(drop.row(r) + c, n, factor);
      body(r * cols + c, n, a.gated ? 2 * r * cols + c : r * cols + c, factor);
    }
  });
}

template <ActivationKind kKind, class T>
void forward(const ActivationArgs& a) {
  for_chunks<T>(a, [&a](int64_t first, int64_t n, int64_t at, const T* factor) {
    const T* x = static_cast<const T*>(a.x) + at;
    T* y = static_cast<T*>(a.y) + first;
    if (!a.gated) {
      for (int64_t i = 0; i < n; ++i) y[i] = curve<kKind>(x[i]).value * factor[i];
      return;
    }
    const T* up = x + a.cols;
    for (int64_t i = 0; i < n; ++i) y[i] = curve<kKind>(x[i]).value * up[i] * factor[i];
  });
}

template <ActivationKind kKind, class T>
void backward(const ActivationBackwardArgs& b) {
  const ActivationArgs& a = b.forward;
  for_chunks<T>(a, [&a, &b](int64_t first, int64_t n, int64_t at, const T* factor) {
    const T* x = static_cast<const T*>(a.x) + at;
    const T* d_y = static_cast<const T*>(b.d_y) + first;
    T* d_x = static_cast<T*>(b.d_x) + at;
    if (!a.gated) {
      for (int64_t i = 0; i < n; ++i) d_x[i] = d_y[i] * factor[i] * curve<kKind>(x[i]).slope;
      return;
    }
    const T* up = x + a.cols;
    T* d_up = d_x + a.cols;
    for (int64_t i = 0; i < n; ++i) {
      const Curve<T> f = curve<kKind>(x[i]);
      const T g = d_y[i] * factor[i];
      d_x[i] = g * up[i] * f.slope;
      d_up[i] = g * f.value;
    }
  });
}

template <class T>
void forward_of_kind(const ActivationArgs& a) {
  switch (a.kind) {
    case ActivationKind::relu:
      return forward<ActivationKind::relu, T>(a);
    case ActivationKind::gelu_tanh:
      return forward<ActivationKind::gelu_tanh, T>(a);
    case ActivationKind::gelu_erf:
      return forward<ActivationKind::gelu_erf, T>(a);
    case ActivationKind::silu:
      return forward<ActivationKind::silu, T>(a);
    case ActivationKind::identity:
      return forward<ActivationKind::identity, T>(a);
  }
}

template <class T>
void backward_of_kind(const ActivationBackwardArgs& b) {
  switch (b.forward.kind) {
    case ActivationKind::relu:
      return backward<ActivationKind::relu, T>(b);
    case ActivationKind::gelu_tanh:
      return backward<ActivationKind::gelu_tanh, T>(b);
    case ActivationKind::gelu_erf:
      return backward<ActivationKind::gelu_erf, T>(b);
    case ActivationKind::silu:
      return backward<ActivationKind::silu, T>(b);
    case ActivationKind::identity:
      return backward<ActivationKind::identity, T>(b);
  }
}

}  // namespace

void activation_forward_cpu(const Context&, const ActivationArgs& args) {
  args.dtype == DType::f64 ? forward_of_kind<double>(args) : forward_of_kind<float>(args);
}

void activation_backward_cpu(const Context&, const ActivationBackwardArgs& args) {
  args.forward.dtype == DType::f64 ? backward_of_kind<double>(args) : backward_of_kind<float>(args);
}

}  // namespace saturate::kernels
