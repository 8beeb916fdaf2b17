// SPDX-License-Identifier: Apache-2.0
// For rungs 6 and 7: four floats in one instruction where the matrix allows it.
#pragma once
#include "kernels/gemm/sgemm/sgemm_problem.cuh"

namespace saturate::kernels {

// Whether every row of a starts on 16 bytes.
inline bool sgemm_aligned(const float* p, int64_t ld) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

// Elements col .. col + 3 of a row of `cols`; those beyond the matrix are 0.
__device__ __forceinline__ float4 sgemm_load4(const float* matrix, int64_t rows, int64_t cols,
                                              int64_t ld, int64_t row, int64_t col, bool aligned) {
  float4 v = make_float4(0, 0, 0, 0);
  if (row >= rows) return v;
  const float* p = matrix + row * ld + col;
  if (aligned && col + 4 <= cols) return *reinterpret_cast<const float4*>(p);
  if (col < cols) v.x = p[0];
  if (col + 1 < cols) v.y = p[1];
  if (col + 2 < cols) v.z = p[2];
  if (col + 3 < cols) v.w = p[3];
  return v;
}

__device__ __forceinline__ void sgemm_store4(const Sgemm& p, int64_t row, int64_t col,
                                             const float* sum, bool aligned) {
  if (aligned && row < p.m && col + 4 <= p.n) {
    float4 v = make_float4(p.alpha * sum[0], p.alpha * sum[1], p.alpha * sum[2], p.alpha * sum[3]);
    if (p.beta != 0.0f) {
      const float4 c = *reinterpret_cast<const float4*>(p.c + row * p.ldc + col);
      v.x += p.beta * c.x, v.y += p.beta * c.y, v.z += p.beta * c.z, v.w += p.beta * c.w;
    }
    *reinterpret_cast<float4*>(p.d + row * p.ldd + col) = v;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) sgemm_store(p, row, col + j, sum[j]);
}

struct SgemmAlignment {
  bool a, b, d;
};
inline SgemmAlignment sgemm_alignment(const Sgemm& p) {
  return {sgemm_aligned(p.a, p.lda), sgemm_aligned(p.b, p.ldb),
          sgemm_aligned(p.d, p.ldd) && sgemm_aligned(p.c, p.ldc)};
}

}  // namespace saturate::kernels
