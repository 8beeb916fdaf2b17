// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/flat.cuh"
#include "kernels/elementwise/elementwise_impl.h"

namespace saturate::kernels {
namespace {

template <class T, bool kRepeats>
struct AddBody {
  AddArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    float x[N], y[N];
    load(x, static_cast<const T*>(a.a) + first);
    load(y, static_cast<const T*>(a.b) + (kRepeats ? first % a.b_count : first));
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += y[i];
    store(static_cast<T*>(a.y) + first, x);
  }
};

template <class T>
struct SoftCapBody {
  SoftCapArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    float x[N];
    load(x, static_cast<const T*>(a.x) + first);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = a.cap * tanhf(x[i] / a.cap);
    store(static_cast<T*>(a.y) + first, x);
  }
};

template <class From, class To>
struct CastBody {
  CastArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    float x[N];
    load(x, static_cast<const From*>(a.x) + first);
    store(static_cast<To*>(a.y) + first, x);
  }
};

}  // namespace

void add_cuda(const Context& ctx, const AddArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool wide = aligned16(a.a, a.b, a.y) && a.b_count % kFlatWidth == 0;
    if (a.b_count > 0) return launch_flat(ctx, "add", a.count, wide, AddBody<T, true>{a});
    launch_flat(ctx, "add", a.count, wide, AddBody<T, false>{a});
  });
}

void soft_cap_cuda(const Context& ctx, const SoftCapArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_flat(ctx, "soft_cap", a.count, aligned16(a.x, a.y), SoftCapBody<T>{a});
  });
}

void cast_cuda(const Context& ctx, const CastArgs& a) {
  with_device_type(a.x_type, [&](auto from) {
    with_device_type(a.y_type, [&](auto to) {
      launch_flat(ctx, "cast", a.count, aligned16(a.x, a.y),
                  CastBody<typename decltype(from)::type, typename decltype(to)::type>{a});
    });
  });
}

}  // namespace saturate::kernels
