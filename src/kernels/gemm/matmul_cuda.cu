// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/vector.cuh"
#include "kernels/gemm/matmul_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

template <class D, class Bias>
__global__ void matmul_start_kernel(const D* c, const Bias* bias, D* d, int64_t m, int64_t n,
                                    int64_t ldc, int64_t ldd, float beta) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < m * n;
       e += stride) {
    const int64_t row = e / n, col = e % n;
    float v = bias != nullptr ? to_float(bias[col]) : 0.0f;
    if (beta != 0.0f) v += beta * to_float(c[row * ldc + col]);
    d[row * ldd + col] = from_float<D>(v);
  }
}

}  // namespace

void matmul_start_cuda(const Context& ctx, const MatmulArgs& x) {
  constexpr int kThreads = 256;
  const int64_t blocks = (x.m * x.n + kThreads - 1) / kThreads;
  with_device_type(x.d_type, [&](auto d_tag) {
    with_device_type(x.ab_type, [&](auto ab_tag) {
      using D = typename decltype(d_tag)::type;
      using Bias = typename decltype(ab_tag)::type;
      matmul_start_kernel<<<static_cast<unsigned>(blocks < 65536 ? blocks : 65536), kThreads, 0,
                            cuda::stream_of(ctx)>>>(
          static_cast<const D*>(x.c), static_cast<const Bias*>(x.bias), static_cast<D*>(x.d), x.m,
          x.n, x.ldc, x.ldd, x.beta);
    });
  });
  SAT_CUDA_LAUNCHED("matmul_start_kernel");
}

}  // namespace saturate::kernels
