// SPDX-License-Identifier: Apache-2.0
// Grouped products for every GPU, type and size: tiles of 64 x 64 in shared memory, fp32
// multiply-adds.
#include "kernels/device/vector.cuh"
#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/host/validate.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256;  // 16 x 16 threads of 4 x 4 sums

// op(A)[i][p] = a[i * a_row + p * a_col] for i < m, p < depth; op(B)[p][j] = b[p * b_row + j *
// b_col]; result at d[i * n + j].
template <class T, class D>
__device__ void tile(const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t b_row,
                     int64_t b_col, D* d, int64_t m, int64_t n, int64_t depth, float beta,
                     int64_t first_i, int64_t first_j) {
  __shared__ float sa[kDepth][kTile + 1], sb[kDepth][kTile + 1];
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16, col = thread % 16;
  float sum[4][4] = {};
  for (int64_t p0 = 0; p0 < depth; p0 += kDepth) {
    for (int e = thread; e < kTile * kDepth; e += kThreads) {
      // Neighbouring threads read along the direction in which the operand is contiguous.
      const int ai = a_col == 1 ? e / kDepth : e % kTile, ap = a_col == 1 ? e % kDepth : e / kTile;
      const int bj = b_row == 1 ? e / kDepth : e % kTile, bp = b_row == 1 ? e % kDepth : e / kTile;
      const bool in_a = first_i + ai < m && p0 + ap < depth;
      const bool in_b = first_j + bj < n && p0 + bp < depth;
      sa[ap][ai] = in_a ? to_float(a[(first_i + ai) * a_row + (p0 + ap) * a_col]) : 0.0f;
      sb[bp][bj] = in_b ? to_float(b[(p0 + bp) * b_row + (first_j + bj) * b_col]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kDepth; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += sa[p][row + 16 * i] * sb[p][col + 16 * j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t r = first_i + row + 16 * i, c = first_j + col + 16 * j;
      if (r >= m || c >= n) continue;
      const float before = beta != 0.0f ? beta * to_float(d[r * n + c]) : 0.0f;
      d[r * n + c] = from_float<D>(sum[i][j] + before);
    }
  }
}

struct Range {
  int64_t first, rows;
};
__device__ Range group(const int32_t* offsets, int64_t g, int64_t rows) {
  const int64_t first = min(max(int64_t{offsets[g]}, int64_t{0}), rows);
  return {first, max(int64_t{0}, min(int64_t{offsets[g + 1]}, rows) - first)};
}

// blockIdx.x counts the tile rows of all groups in order; those beyond the last have no work.
template <class T, bool kForward>
__global__ void grouped_rows_kernel(const T* a, const T* b, T* d, const int32_t* offsets,
                                    int64_t groups, int64_t rows, int64_t n, int64_t k) {
  int64_t t = blockIdx.x;
  for (int64_t g = 0; g < groups; ++g) {
    const Range r = group(offsets, g, rows);
    const int64_t tiles = (r.rows + kTile - 1) / kTile;
    if (t >= tiles) {
      t -= tiles;
      continue;
    }
    const T* w = b + g * n * k;
    const int64_t j = int64_t{blockIdx.y} * kTile;
    if (kForward)
      tile(a + r.first * k, k, 1, w, 1, k, d + r.first * n, r.rows, n, k, 0.0f, t * kTile, j);
    else
      tile(a + r.first * n, n, 1, w, k, 1, d + r.first * k, r.rows, k, n, 0.0f, t * kTile, j);
    return;
  }
}

// grid: tiles of columns, tiles of rows, groups (in a loop beyond the grid's limit).
template <class T>
__global__ void grouped_weights_kernel(const T* a, const T* b, float* d, const int32_t* offsets,
                                       int64_t groups, int64_t rows, int64_t n, int64_t k,
                                       float beta) {
  for (int64_t g = blockIdx.z; g < groups; g += gridDim.z) {
    const Range r = group(offsets, g, rows);
    tile(a + r.first * n, int64_t{1}, n, b + r.first * k, k, int64_t{1}, d + g * n * k, n, k,
         r.rows, beta, int64_t{blockIdx.y} * kTile, int64_t{blockIdx.x} * kTile);
  }
}

int64_t tiles_of(int64_t size) { return (size + kTile - 1) / kTile; }

}  // namespace

Fit grouped_gemm_plain_cuda_fits(const Context&, const GroupedGemmArgs& x) noexcept {
  if (x.n > 65535 * int64_t{kTile} || x.k > 65535 * int64_t{kTile})
    return {"n or k exceeds 65535 tiles of 64"};
  if (x.rows / kTile + x.groups >= int64_t{1} << 31) return {"2^31 or more tiles of rows"};
  return fits_cuda(x.dtype);
}

void grouped_gemm_plain_cuda(const Context& ctx, const GroupedGemmArgs& x) {
  cudaStream_t stream = cuda::stream_of(ctx);
  with_device_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *a = static_cast<const T*>(x.a), *b = static_cast<const T*>(x.b);
    if (x.form == GroupedForm::weight_gradient) {
      const dim3 grid(static_cast<unsigned>(tiles_of(x.k)), static_cast<unsigned>(tiles_of(x.n)),
                      static_cast<unsigned>(x.groups < 65535 ? x.groups : 65535));
      grouped_weights_kernel<<<grid, kThreads, 0, stream>>>(
          a, b, static_cast<float*>(x.d), x.offsets, x.groups, x.rows, x.n, x.k, x.beta);
      return;
    }
    const bool forward = x.form == GroupedForm::forward;
    const dim3 grid(static_cast<unsigned>(x.rows / kTile + x.groups),
                    static_cast<unsigned>(tiles_of(forward ? x.n : x.k)));
    const auto kernel = forward ? grouped_rows_kernel<T, true> : grouped_rows_kernel<T, false>;
    kernel<<<grid, kThreads, 0, stream>>>(a, b, static_cast<T*>(x.d), x.offsets, x.groups, x.rows,
                                          x.n, x.k);
  });
  SAT_CUDA_LAUNCHED("grouped_gemm_plain_cuda");
}

}  // namespace saturate::kernels
