// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/activation_curve.cuh"
#include "kernels/activation/activation_impl.h"
#include "kernels/device/dropout.cuh"
#include "kernels/device/flat.cuh"

namespace saturate::kernels {
namespace {

// Whether element `first` of y lies in a row that holds nothing.
__device__ __forceinline__ bool unused(const ActivationArgs& a, int64_t first) {
  return a.used_rows != nullptr && first >= *a.used_rows * a.cols;
}

// Where element `first` of y has its gate in x; the up half lies cols further.
__device__ __forceinline__ int64_t gate_of(const ActivationArgs& a, int64_t first) {
  const auto row = static_cast<uint32_t>(first) / static_cast<uint32_t>(a.cols);  // fits: < 2^32
  return first + static_cast<int64_t>(row) * a.cols;
}

template <class T, ActivationKind kKind, bool kGated>
struct ForwardBody {
  ActivationArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    if (unused(a, first)) return;
    const Dropout drop(a.rng, a.dropout);
    const T* gate = static_cast<const T*>(a.x) + (kGated ? gate_of(a, first) : first);
    float x[N], y[N];
    load(x, gate);
    if constexpr (kGated) {
      load(y, gate + a.cols);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) y[i] = 1.0f;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] *= curve<kKind>(x[i]).value;
    drop.apply(y, drop.flat(first, a.cols));
    store(static_cast<T*>(a.y) + first, y);
  }
};

template <class T, ActivationKind kKind, bool kGated>
struct BackwardBody {
  ActivationBackwardArgs b;
  template <int N>
  __device__ void at(int64_t first) const {
    const ActivationArgs& a = b.forward;
    if (unused(a, first)) return;
    const Dropout drop(a.rng, a.dropout);
    const int64_t gate = kGated ? gate_of(a, first) : first;
    const T* x_at = static_cast<const T*>(a.x) + gate;
    T* d_x = static_cast<T*>(b.d_x) + gate;
    float x[N], g[N];
    load(x, x_at);
    load(g, static_cast<const T*>(b.d_y) + first);
    drop.apply(g, drop.flat(first, a.cols));
    if constexpr (kGated) {
      float up[N], d_up[N];
      load(up, x_at + a.cols);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Curve f = curve<kKind>(x[i]);
        d_up[i] = g[i] * f.value;
        x[i] = g[i] * up[i] * f.slope;
      }
      store(d_x + a.cols, d_up);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = g[i] * curve<kKind>(x[i]).slope;
    }
    store(d_x, x);
  }
};

template <ActivationKind kKind>
struct KindTag {
  static constexpr ActivationKind value = kKind;
};

// Calls body(TypeTag, KindTag, bool constant "gated") for what the arguments say.
template <class Body>
void with_variant(const ActivationArgs& a, const Body& body) {
  with_device_type(a.dtype, [&](auto type) {
    const auto of_kind = [&](auto kind) {
      a.gated ? body(type, kind, std::true_type{}) : body(type, kind, std::false_type{});
    };
    switch (a.kind) {
      case ActivationKind::relu:
        return of_kind(KindTag<ActivationKind::relu>{});
      case ActivationKind::gelu_tanh:
        return of_kind(KindTag<ActivationKind::gelu_tanh>{});
      case ActivationKind::gelu_erf:
        return of_kind(KindTag<ActivationKind::gelu_erf>{});
      case ActivationKind::silu:
        return of_kind(KindTag<ActivationKind::silu>{});
      case ActivationKind::identity:
        return of_kind(KindTag<ActivationKind::identity>{});
    }
  });
}

// Gated, or of a part of the columns, a group of 8 must not cross the end of a row.
bool rows_allow_groups(const ActivationArgs& a) {
  const bool dense = !a.gated && a.rng.columns == a.cols;
  return (dense || a.cols % kFlatWidth == 0) && a.rng.draws_in_fours(a.cols);
}

}  // namespace

void activation_forward_cuda(const Context& ctx, const ActivationArgs& a) {
  with_variant(a, [&](auto type, auto kind, auto gated) {
    using Body =
        ForwardBody<typename decltype(type)::type, decltype(kind)::value, decltype(gated)::value>;
    launch_flat(ctx, "activation_forward", a.rows * a.cols,
                aligned16(a.x, a.y) && rows_allow_groups(a), Body{a});
  });
}

void activation_backward_cuda(const Context& ctx, const ActivationBackwardArgs& b) {
  const ActivationArgs& a = b.forward;
  with_variant(a, [&](auto type, auto kind, auto gated) {
    using Body =
        BackwardBody<typename decltype(type)::type, decltype(kind)::value, decltype(gated)::value>;
    launch_flat(ctx, "activation_backward", a.rows * a.cols,
                aligned16(a.x, b.d_y, b.d_x) && rows_allow_groups(a), Body{b});
  });
}

}  // namespace saturate::kernels
