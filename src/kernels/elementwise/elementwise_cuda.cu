// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/flat.cuh"
#include "kernels/elementwise/elementwise_impl.h"

namespace saturate::kernels {
namespace {

template <class T>
struct AddBody {
  AddArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    float x[N], y[N];
    load(x, static_cast<const T*>(a.a) + first);
    load(y, static_cast<const T*>(a.b) + first);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += y[i];
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
    launch_flat(ctx, "add", a.count, aligned16(a.a, a.b, a.y),
                AddBody<typename decltype(tag)::type>{a});
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
