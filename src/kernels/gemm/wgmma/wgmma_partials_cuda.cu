// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {
namespace {

// Sums of splits 1, 2, ... in that order onto the result of split 0; two columns a thread.
__global__ void add_partials_kernel(const float* partial, int count, float* d, int64_t ldd, int m,
                                    int n) {
  const int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, row = pair / (n / 2);
  if (row >= m) return;
  const int64_t col = pair % (n / 2) * 2;
  auto* out = reinterpret_cast<float2*>(d + row * ldd + col);
  float2 sum = *out;
  for (int s = 0; s < count; ++s) {
    const float2 x = *reinterpret_cast<const float2*>(partial + (int64_t{s} * m + row) * n + col);
    sum.x += x.x;
    sum.y += x.y;
  }
  *out = sum;
}

}  // namespace

void add_partials(const float* partial, int count, float* d, int64_t ldd, int m, int n,
                  cudaStream_t stream) {
  const int64_t pairs = int64_t{m} * (n / 2);
  add_partials_kernel<<<static_cast<unsigned>((pairs + 255) / 256), 256, 0, stream>>>(
      partial, count, d, ldd, m, n);
}

}  // namespace saturate::kernels::wgmma
