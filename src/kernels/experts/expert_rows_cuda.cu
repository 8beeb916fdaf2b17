// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/flat.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/experts/experts_impl.h"

namespace saturate::kernels {
namespace {

// Element `first` of a dense matrix of `cols` columns and fewer than 2^32 elements.
struct Place {
  int64_t row, col;
  __device__ __forceinline__ Place(int64_t first, int64_t cols)
      : row(static_cast<uint32_t>(first) / static_cast<uint32_t>(cols)), col(first - row * cols) {}
};

template <class T>
struct DispatchBody {
  DispatchRowsArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    const Place p(first, a.cols);
    float x[N];
    load(x, static_cast<const T*>(a.x) + first);
    for (int64_t j = 0; j < a.k; ++j) {
      const int64_t slot = a.slots[p.row * a.k + j];
      if (slot >= 0) store(static_cast<T*>(a.y) + slot * a.cols + p.col, x);
    }
  }
};

// y[r] = sum_j gates[r][j] x[slots[r][j]]; without gates the plain sum.
template <class T>
struct SumBody {
  CombineRowsArgs a;
  template <int N>
  __device__ void at(int64_t first) const {
    const Place p(first, a.cols);
    float y[N] = {};
    for (int64_t j = 0; j < a.k; ++j) {
      const int64_t slot = a.slots[p.row * a.k + j];
      if (slot < 0) continue;
      const float gate =
          a.gates == nullptr ? 1.0f : static_cast<const float*>(a.gates)[p.row * a.k + j];
      float x[N];
      load(x, static_cast<const T*>(a.x) + slot * a.cols + p.col);
#pragma unroll
      for (int i = 0; i < N; ++i) y[i] = fmaf(gate, x[i], y[i]);
    }
    store(static_cast<T*>(a.y) + first, y);
  }
};

template <class T>
void launch_sum(const Context& ctx, const char* name, const CombineRowsArgs& a) {
  launch_flat(ctx, name, a.rows * a.cols, aligned16(a.x, a.y) && a.cols % kFlatWidth == 0,
              SumBody<T>{a});
}

constexpr int kBackwardThreads = 256;

// A warp a row: writes the gradients of its k rows and adds up the products of its gates.
template <class T, int N>
__global__ void __launch_bounds__(kBackwardThreads)
    combine_rows_bwd_kernel(CombineRowsBackwardArgs b) {
  const CombineRowsArgs& a = b.forward;
  const int lane = threadIdx.x % kWarp;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kBackwardThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const T* d_y = static_cast<const T*>(b.d_y) + row * a.cols;
  for (int64_t j = 0; j < a.k; ++j) {
    const int64_t slot = a.slots[row * a.k + j];
    float sum = 0.0f;
    if (slot >= 0) {
      const float gate = static_cast<const float*>(a.gates)[row * a.k + j];
      const T* x = static_cast<const T*>(a.x) + slot * a.cols;
      T* d_x = static_cast<T*>(b.d_x) + slot * a.cols;
      for (int64_t c = lane * N; c < a.cols; c += kWarp * N) {
        float g[N], v[N];
        load(g, d_y + c);
        load(v, x + c);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sum = fmaf(v[i], g[i], sum);
          v[i] = gate * g[i];
        }
        store(d_x + c, v);
      }
      sum = warp_sum(sum);
    }
    if (lane == 0) static_cast<float*>(b.d_gates)[row * a.k + j] = sum;
  }
}

}  // namespace

void dispatch_rows_cuda(const Context& ctx, const DispatchRowsArgs& a) {
  with_device_type(a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_flat(ctx, "dispatch_rows", a.rows * a.cols,
                aligned16(a.x, a.y) && a.cols % kFlatWidth == 0, DispatchBody<T>{a});
  });
}

void dispatch_rows_backward_cuda(const Context& ctx, const DispatchRowsBackwardArgs& b) {
  const DispatchRowsArgs& a = b.forward;
  with_device_type(a.dtype, [&](auto type) {
    launch_sum<typename decltype(type)::type>(ctx, "dispatch_rows_backward",
                                              {.x = b.d_y,
                                               .slots = a.slots,
                                               .y = b.d_x,
                                               .rows = a.rows,
                                               .cols = a.cols,
                                               .k = a.k,
                                               .dtype = a.dtype});
  });
}

void combine_rows_cuda(const Context& ctx, const CombineRowsArgs& a) {
  with_device_type(a.dtype, [&](auto type) {
    launch_sum<typename decltype(type)::type>(ctx, "combine_rows", a);
  });
}

void combine_rows_backward_cuda(const Context& ctx, const CombineRowsBackwardArgs& b) {
  const CombineRowsArgs& a = b.forward;
  constexpr int64_t kRows = kBackwardThreads / kWarp;
  const auto blocks = static_cast<unsigned>((a.rows + kRows - 1) / kRows);
  with_device_type(a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool wide = aligned16(a.x, b.d_y, b.d_x) && a.cols % kFlatWidth == 0;
    const auto kernel =
        wide ? combine_rows_bwd_kernel<T, kFlatWidth> : combine_rows_bwd_kernel<T, 1>;
    kernel<<<blocks, kBackwardThreads, 0, cuda::stream_of(ctx)>>>(b);
  });
  SAT_CUDA_LAUNCHED("combine_rows_backward");
}

}  // namespace saturate::kernels
