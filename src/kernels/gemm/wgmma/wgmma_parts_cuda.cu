// SPDX-License-Identifier: Apache-2.0
// fp32 products on bf16 tensor cores: operands cut in three parts, and their product.
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {
namespace {

// Two neighbours of a row. h has the 8 leading bits of x, m those of x - h, l those of what is
// left; the differences are exact. Where rounding h would overflow it is cut off; infinities and
// NaN stay in h alone.
__global__ void cut_kernel(const float* from, int64_t rows, int64_t cols, int64_t ld,
                           __nv_bfloat16* to, int64_t padded_rows, int64_t padded_cols,
                           int64_t to_ld, int64_t to_part) {
  const int64_t pairs = padded_cols / 2;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < padded_rows * pairs;
       i += step) {
    const int64_t row = i / pairs, col = i % pairs * 2;
    __nv_bfloat16 part[3][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float x = row < rows && col + j < cols ? from[row * ld + col + j] : 0.0f;
      __nv_bfloat16 h = __float2bfloat16_rn(x);
      if (__hisinf(h) && isfinite(x)) h = __float2bfloat16_rz(x);
      const float rest = isfinite(x) ? x - __bfloat162float(h) : 0.0f;
      const __nv_bfloat16 m = __float2bfloat16_rn(rest);
      part[0][j] = h;
      part[1][j] = m;
      part[2][j] = __float2bfloat16_rn(rest - __bfloat162float(m));
    }
#pragma unroll
    for (int q = 0; q < 3; ++q) {
      *reinterpret_cast<__nv_bfloat162*>(to + row * to_ld + q * to_part + col) =
          __nv_bfloat162(part[q][0], part[q][1]);
    }
  }
}

template <bool kKMajorA, bool kKMajorB>
using PartsTile = Tile<__nv_bfloat16, float, 128, 128, 2, false, kKMajorA, kKMajorB, 3>;

}  // namespace

cudaError_t cut_in_parts(const float* from, int64_t rows, int64_t cols, int64_t ld, void* to,
                         int64_t padded_rows, int64_t padded_cols, int64_t to_ld, int64_t to_part,
                         cudaStream_t stream) {
  constexpr int kBlock = 256;
  const int64_t blocks = (padded_rows * padded_cols / 2 + kBlock - 1) / kBlock;
  cut_kernel<<<static_cast<unsigned>(blocks < 8192 ? blocks : 8192), kBlock, 0, stream>>>(
      from, rows, cols, ld, static_cast<__nv_bfloat16*>(to), padded_rows, padded_cols, to_ld,
      to_part);
  return cudaGetLastError();
}

cudaError_t launch_parts(Form form, const Problem& p, int blocks, cudaStream_t stream) {
  switch (form) {
    case Form::forward:
      return launch<PartsTile<true, true>>(p, blocks, stream);
    case Form::input_gradient:
      return launch<PartsTile<true, false>>(p, blocks, stream);
    case Form::weight_gradient:
      return launch<PartsTile<false, false>>(p, blocks, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace saturate::kernels::wgmma
