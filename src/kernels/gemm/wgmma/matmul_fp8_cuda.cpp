// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_fp8.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/gemm/wgmma/promoted_host.h"
#include "kernels/gemm/wgmma/wgmma_host.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

void require(bool ok, const std::string& what) {
  if (!ok) throw Error(Errc::invalid_argument, "matmul_fp8", what);
}

void require_matrix(const char* name, const void* data, int64_t rows, int64_t cols, int64_t ld) {
  require(ld >= cols,
          fmt::format("{} is ({}, {}) with leading dimension {}; it must be at least {}", name,
                      rows, cols, ld, cols));
  require(data != nullptr || rows == 0 || cols == 0,
          fmt::format("{} is ({}, {}) but its pointer is null", name, rows, cols));
}

wgmma::Operand operand(const void* data, int64_t rows, int64_t k, int64_t ld) {
  return {.data = data,
          .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
          .type_bytes = 1,
          .rows = rows,
          .k = k,
          .ld = ld};
}

}  // namespace

Fit matmul_fp8_cuda_fits(const Context& ctx, const MatmulFp8Args& x) noexcept {
  if (ctx.device.kind != DeviceKind::cuda) return {"runs on CUDA devices only"};
  if (x.d_type != DType::bf16 && x.d_type != DType::f16 && x.d_type != DType::f32)
    return {"results in bf16, f16 or f32 only"};
  const auto aligned = [](const void* p, int64_t row_bytes, size_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0 &&
           static_cast<size_t>(row_bytes) % bytes == 0;
  };
  if (!aligned(x.a, x.lda, 16) || !aligned(x.b, x.ldb, 16))
    return {"A or B is not aligned to 16 bytes in every row"};
  const bool wide = x.d_type == DType::f32;
  if (!aligned(x.d, x.ldd * static_cast<int64_t>(size_of(x.d_type)), wide ? 8 : 16))
    return {"D is not aligned to 16 bytes (f32: 8) in every row"};
  if (!wide && x.n % 8 != 0) return {"n is not a multiple of 8"};
  if (std::max({x.m, x.n, x.k}) >= int64_t{1} << 30) return {"a size exceeds 2^30"};
  return wgmma::device_fits(ctx);
}

void matmul_fp8_cuda(const Context& ctx, const MatmulFp8Args& x) {
  require(x.m >= 0 && x.n >= 0 && x.k >= 0,
          fmt::format("sizes m {}, n {}, k {} must not be negative", x.m, x.n, x.k));
  require_matrix("a", x.a, x.m, x.k, x.lda);
  require_matrix("b", x.b, x.n, x.k, x.ldb);
  require_matrix("d", x.d, x.m, x.n, x.ldd);
  if (x.m == 0 || x.n == 0) return;
  require(x.k > 0, "k is 0; there is nothing to multiply");
  const Fit fit = matmul_fp8_cuda_fits(ctx, x);
  if (!fit) throw Error(Errc::unsupported, "matmul_fp8", fit.reason);
  wgmma::PromotedProblem p =
      wgmma::promoted_problem(operand(x.a, x.m, x.k, x.lda), operand(x.b, x.n, x.k, x.ldb));
  p.out = x.d;
  p.ldd = x.ldd;
  p.scale_a = x.scale_a;
  p.scale_b = x.scale_b;
  p.amax = x.amax;
  SAT_CUDA(wgmma::launch_fp8(x.a_type == Fp8::e5m2, x.b_type == Fp8::e5m2, x.d_type, p,
                             wgmma::promoted_blocks(ctx, p), cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
