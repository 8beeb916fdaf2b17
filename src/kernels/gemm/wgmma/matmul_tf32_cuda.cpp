// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_tf32.h"

#include <algorithm>

#include "kernels/gemm/wgmma/promoted_host.h"
#include "kernels/gemm/wgmma/wgmma_host.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

int64_t copied_row(const MatmulArgs& x) { return (x.k + 31) / 32 * 32; }
bool copies_a(const MatmulArgs& x) { return x.ta == Transpose::yes; }
bool copies_b(const MatmulArgs& x) { return x.tb == Transpose::no; }

// The operand (rows, k) with k innermost; where it is not stored so, its copy at `copy`.
wgmma::Operand operand(const float* data, int64_t ld, bool copied, int64_t rows,
                       const MatmulArgs& x, float* copy, cudaStream_t stream) {
  if (copied) {
    wgmma::transpose_f32(data, ld, x.k, rows, copy, copied_row(x), stream);
    SAT_CUDA_LAUNCHED("transpose_f32");
  }
  return {.data = copied ? copy : data,
          .type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
          .type_bytes = 4,
          .rows = rows,
          .k = x.k,
          .ld = copied ? copied_row(x) : ld};
}

}  // namespace

Fit matmul_tf32_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 || x.d_type != DType::f32 || !x.allow_tf32)
    return {"multiplies f32 with allow_tf32 only"};
  if (x.batch != 1) return {"one product at a time"};
  if (!x.epilogue.is_plain()) return {"has no epilogue but the bias"};
  if (x.k == 0) return {"nothing to multiply (k = 0)"};
  const auto aligned = [](const void* p, int64_t ld, size_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0 && static_cast<size_t>(ld) * 4 % bytes == 0;
  };
  if (!aligned(x.d, x.ldd, 8)) return {"D is not aligned to 8 bytes in every row"};
  if (!(copies_a(x) || aligned(x.a, x.lda, 16)) || !(copies_b(x) || aligned(x.b, x.ldb, 16)))
    return {"A or B is not aligned to 16 bytes in every row"};
  if (std::max(x.m, x.n) >= int64_t{1} << 22 || x.k >= int64_t{1} << 28)
    return {"m or n exceeds 2^22, or k 2^28"};
  const int64_t rows = (copies_a(x) ? x.m : 0) + (copies_b(x) ? x.n : 0);
  if (static_cast<size_t>(rows * copied_row(x)) * 4 > ctx.workspace_bytes)
    return {"the workspace has no room for a transposed copy"};
  return wgmma::device_fits(ctx);
}

void matmul_tf32_cuda(const Context& ctx, const MatmulArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  auto* const copy_a = static_cast<float*>(ctx.workspace);
  float* const copy_b = copy_a + (copies_a(x) ? x.m * copied_row(x) : 0);
  const auto a =
      operand(static_cast<const float*>(x.a), x.lda, copies_a(x), x.m, x, copy_a, stream);
  const auto b =
      operand(static_cast<const float*>(x.b), x.ldb, copies_b(x), x.n, x, copy_b, stream);
  wgmma::PromotedProblem p = wgmma::promoted_problem(a, b);
  p.out = x.d;
  p.c = x.c;
  p.bias = x.bias;
  p.ldc = x.ldc;
  p.ldd = x.ldd;
  p.alpha = x.alpha;
  p.beta = x.beta;
  SAT_CUDA(wgmma::launch_tf32(p, wgmma::promoted_blocks(ctx, p), stream));
}

}  // namespace saturate::kernels
