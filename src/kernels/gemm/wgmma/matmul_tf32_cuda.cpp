// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_tf32.h"

#include <algorithm>

#include "kernels/gemm/wgmma/wgmma_args.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

int64_t copied_row(const MatmulArgs& x) { return (x.k + 31) / 32 * 32; }
bool copies_a(const MatmulArgs& x) { return x.ta == Transpose::yes; }
bool copies_b(const MatmulArgs& x) { return x.tb == Transpose::no; }

// TMA's map of the operand (rows, k) with k innermost; where it is not stored so, of its copy at
// `copy`.
CUtensorMap operand(const void* data, int64_t ld, bool copied, int64_t rows, const MatmulArgs& x,
                    float* copy, int box_rows, cudaStream_t stream) {
  if (!copied) return wgmma::tf32_map_of(data, rows, x.k, ld, box_rows);
  wgmma::transpose_f32(static_cast<const float*>(data), ld, x.k, rows, copy, copied_row(x), stream);
  SAT_CUDA_LAUNCHED("transpose_f32");
  return wgmma::tf32_map_of(copy, rows, x.k, copied_row(x), box_rows);
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
  if (matmul_tf32_workspace(x) > ctx.workspace_bytes)
    return {"the workspace has no room for a transposed copy"};
  return wgmma::device_fits(ctx);
}

size_t matmul_tf32_workspace(const MatmulArgs& x) noexcept {
  const int64_t rows = (copies_a(x) ? x.m : 0) + (copies_b(x) ? x.n : 0);
  return static_cast<size_t>(rows * copied_row(x)) * sizeof(float);
}

void matmul_tf32_cuda(const Context& ctx, const MatmulArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  auto* const copy_a = static_cast<float*>(ctx.workspace);
  float* const copy_b = copy_a + (copies_a(x) ? x.m * copied_row(x) : 0);
  wgmma::Problem p =
      wgmma::problem_of(x, wgmma::kTf32TileM, wgmma::kTf32TileN, wgmma::kTf32TileK, 1, 8);
  p.a = operand(x.a, x.lda, copies_a(x), x.m, x, copy_a, wgmma::kTf32TileM, stream);
  p.b = operand(x.b, x.ldb, copies_b(x), x.n, x, copy_b, wgmma::kTf32TileN / 2, stream);
  SAT_CUDA(wgmma::launch_tf32(p, wgmma::blocks_for(ctx, p), stream));
}

}  // namespace saturate::kernels
