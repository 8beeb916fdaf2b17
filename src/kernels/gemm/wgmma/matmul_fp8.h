// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit floating-point operands.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "runtime/context.h"

namespace saturate::kernels {

enum class Fp8 : uint8_t { e4m3, e5m2 };  // as the OCP's 8-bit specification; one byte a value

// D[m][n] = scale_a scale_b sum_k A[m][k] B[n][k]
//
// Shapes    A (m, k), B (n, k), D (m, n), row-major with leading dimensions in elements. Both
//           operands have k innermost: Hopper's tensor cores read 8 bits in no other layout.
// Types     D in bf16, f16 or f32. Scales: one fp32 number on the device, read when the product
//           runs; null is 1. Sums of 128 products on the tensor cores, these added in fp32.
//           amax: one fp32 number on the device, not negative, that becomes max(*amax, |D|) of the
//           values before they round to D's type (NaN does not count); null is not wanted. For
//           the scale with which the next product reads D in fp8.
// Errors    unsupported: another device than compute capability 9.0; A, B not aligned to 16 bytes
//           in every row, D to 16 (f32: 8), n not a multiple of 8 for 16-bit D; invalid_argument
//           for shapes and null pointers.
// Stream    enqueued on ctx.stream; never synchronises. No workspace.
// Order     bitwise equal run to run for the same shapes.
// Cost      2 m n k flops; m k + n k bytes of operands.
// Source    promotion of short sums to fp32 registers: DeepSeek-V3 technical report,
//           arXiv:2412.19437, section 3.3.2.
struct MatmulFp8Args {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  float* amax = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;
  Fp8 a_type = Fp8::e4m3, b_type = Fp8::e4m3;
  DType d_type = DType::bf16;
};

Fit matmul_fp8_cuda_fits(const Context& ctx, const MatmulFp8Args& args) noexcept;
void matmul_fp8_cuda(const Context& ctx, const MatmulFp8Args& args);

}  // namespace saturate::kernels
