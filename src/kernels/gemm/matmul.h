// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/epilogue.h"
#include "runtime/context.h"

namespace saturate::kernels {

enum class Transpose : uint8_t { no, yes };

// D[m][n] = alpha * sum_k op(A)[m][k] op(B)[k][n] + beta * C[m][n] + bias[n]
//
// Shapes    D, C (m, n); op(A) (m, k); op(B) (k, n); all row-major with leading dimensions in
//           elements. ta == yes: A is stored (k, m). tb == yes: B is stored (n, k), as a linear
//           layer's weight. bias (n), or null. m, n or k may be 0 (k == 0 gives beta * C + bias).
//           batch products, each operand stride_* elements after that of the product before; the
//           bias serves all. epilogue.h says what an epilogue makes of D and of these shapes.
// Types     A, B in ab_type; C, D in d_type, equal to ab_type or f32; bias in ab_type. Sums in fp32
//           (f64 for f64); for sizes or pointers off 16 bytes cuBLASLt may round to d_type once
//           before it adds the bias. allow_tf32 lets f32 use tensor cores with 10-bit mantissas.
//           On Hopper large f32 products run as sums of bf16 products, more accurate than fp32
//           arithmetic (docs/adr/0022); an infinity in A or B may then give NaN. allow_bf16 lets a
//           CPU that has the instructions round f32 operands to bf16 (docs/adr/0087).
// Aliasing  D may be C. Nothing else may overlap.
// Stream    enqueued on ctx.stream; never synchronises; uses ctx.workspace.
// Order     bitwise equal run to run for the same shapes on one device.
// Errors    invalid_argument for shapes; unsupported when no implementation fits; device.
// Cost      2 m n k flops.
// Source    gemm of the BLAS (Dongarra et al., ACM TOMS 16, 1990); epilogues as cuBLASLt's.
struct MatmulArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // read only when beta != 0; null means d
  void* d = nullptr;
  const void* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;
  Transpose ta = Transpose::no, tb = Transpose::no;
  DType ab_type = DType::f32, d_type = DType::f32;
  float alpha = 1.0f, beta = 0.0f;
  bool allow_tf32 = false, allow_bf16 = false;
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0, stride_d = 0;  // read only when batch > 1
  Epilogue epilogue = {};
};

// The most bytes of workspace that products of `type` on the device have a use for: 0 on the CPU; on
// Hopper 512 MiB for f32, for the parts of operands (gemm/wgmma/matmul_fp16x3.h). A plan
// (matmul_plan.h) says what one product takes.
size_t matmul_workspace_bytes(Device device, DType type);

// Loads the library that the device's first product would load (cuBLASLt, 0.1 s). Any thread may
// call, whose current device it is then. Errors: unsupported without the library; device.
void load_matmul_library(Device device);

// Plans the product for the workspace of `ctx`, without tuned choices, and runs it. Who repeats a
// product keeps the plan instead.
void matmul(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
