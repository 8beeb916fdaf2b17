// SPDX-License-Identifier: Apache-2.0
// What the rungs share: the problem as a kernel sees it, and how a result is written.
#pragma once
#include "kernels/gemm/sgemm/sgemm.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

struct Sgemm {
  const float *a, *b, *c;
  float* d;
  int64_t m, n, k, lda, ldb, ldc, ldd;
  float alpha, beta;
};

inline Sgemm sgemm_problem(const MatmulArgs& x) {
  const auto f32 = [](const void* p) { return static_cast<const float*>(p); };
  return {f32(x.a),
          f32(x.b),
          x.c == nullptr ? f32(x.d) : f32(x.c),
          static_cast<float*>(x.d),
          x.m,
          x.n,
          x.k,
          x.lda,
          x.ldb,
          x.c == nullptr ? x.ldd : x.ldc,
          x.ldd,
          x.alpha,
          x.beta};
}

// Blocks of a grid of rows x cols tiles: one axis, because the others end at 65,535.
inline unsigned sgemm_blocks(const Sgemm& p, int64_t rows, int64_t cols) {
  return static_cast<unsigned>(((p.m + rows - 1) / rows) * ((p.n + cols - 1) / cols));
}

// The first row and column of this block's tile; neighbours in the grid share their rows of A.
template <int kRows, int kCols>
__device__ __forceinline__ void sgemm_origin(const Sgemm& p, int64_t* row, int64_t* col) {
  const int64_t across = (p.n + kCols - 1) / kCols;
  *row = blockIdx.x / across * kRows;
  *col = blockIdx.x % across * kCols;
}

__device__ __forceinline__ void sgemm_store(const Sgemm& p, int64_t row, int64_t col, float sum) {
  if (row >= p.m || col >= p.n) return;
  float v = p.alpha * sum;
  if (p.beta != 0.0f) v += p.beta * p.c[row * p.ldc + col];
  p.d[row * p.ldd + col] = v;
}

// Elements outside the matrices count as 0.
__device__ __forceinline__ float sgemm_a(const Sgemm& p, int64_t row, int64_t k) {
  return row < p.m && k < p.k ? p.a[row * p.lda + k] : 0.0f;
}
__device__ __forceinline__ float sgemm_b(const Sgemm& p, int64_t k, int64_t col) {
  return k < p.k && col < p.n ? p.b[k * p.ldb + col] : 0.0f;
}

}  // namespace saturate::kernels
