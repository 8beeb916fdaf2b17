// SPDX-License-Identifier: Apache-2.0
// cuBLASLt reads matrices by columns, so d^T = b a^T: its first operand is our b, transposed, its second our
// a, and m and n change places. That is the one layout in which blocks lie along the inner dimension.
#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>

#include "base/error.h"
#include "kernels/block_scaled/block_scaled_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

void lt_check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Errc::device, "block_matmul",
              fmt::format("{} returned {}", call, cublasLtGetStatusName(status)));
}
#define LT_CHECK(call) lt_check((call), #call)

// Device, sizes, types, which pointers there are, the workspace.
using Key = std::array<int64_t, 9>;
Key key_of(const Context& ctx, const BlockMatmulArgs& x) {
  return {ctx.device.index,
          x.m,
          x.n,
          x.k,
          static_cast<int64_t>(x.a.format),
          static_cast<int64_t>(x.b.format),
          x.c != nullptr,
          x.bias != nullptr,
          static_cast<int64_t>(ctx.workspace_bytes)};
}

// A handle for each device and the algorithms that were chosen. Never destroyed: at exit the driver may
// already be gone.
struct Library {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;
};
Library& library() {
  static Library* const instance = new Library;
  return *instance;
}

cudaDataType_t type_of(BlockFormat f) {
  if (f == BlockFormat::mxfp8_e4m3) return CUDA_R_8F_E4M3;
  return f == BlockFormat::mxfp8_e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_4F_E2M1;
}

class Problem {
 public:
  explicit Problem(const BlockMatmulArgs& x) {
    const bool is_nv = x.a.format == BlockFormat::nvfp4;
    LT_CHECK(cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    const cublasLtMatmulMatrixScale_t mode =
        is_nv ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x.b.scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.a.scales);
    // Scales of tensors are known on the device alone, and so is the factor of their product.
    if (is_nv) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    if (x.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    layout(first, type_of(x.b.format), x.k, x.n);
    layout(second, type_of(x.a.format), x.k, x.m);
    layout(result, CUDA_R_16BF, x.n, x.m);
  }

  cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, const Context& ctx,
                              const BlockMatmulArgs& x) {
    cublasLtMatmulPreferenceOpaque_t preference;
    LT_CHECK(cublasLtMatmulPreferenceInit(&preference));
    const auto bytes = static_cast<uint64_t>(ctx.workspace_bytes);
    LT_CHECK(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, &desc, &first, &second, &result, &result, &preference, 1, &found, &count);
    if (count == 0) {
      throw Error(Errc::unsupported, "block_matmul",
                  fmt::format("cuBLASLt offers no algorithm for (m {}, n {}, k {}) ({}); "
                              "use train.precision = bf16",
                              x.m, x.n, x.k, cublasLtGetStatusName(status)));
    }
    return found.algo;
  }

  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t first, second, result;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    LT_CHECK(cublasLtMatmulDescSetAttribute(&desc, what, &value, sizeof(value)));
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& l, cudaDataType_t type, int64_t rows,
                     int64_t cols) {
    LT_CHECK(cublasLtMatrixLayoutInit(&l, type, static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(cols), rows));
  }
};

}  // namespace

void block_matmul_cuda(const Context& ctx, const BlockMatmulArgs& x) {
  Problem problem(x);
  Library& lib = library();
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulAlgo_t algo;
  {
    const std::lock_guard lock(lib.mutex);
    cublasLtHandle_t& of_device = lib.handles[ctx.device.index];
    if (of_device == nullptr) LT_CHECK(cublasLtCreate(&of_device));
    handle = of_device;
    const Key key = key_of(ctx, x);
    auto known = lib.algorithms.find(key);
    if (known == lib.algorithms.end())
      known = lib.algorithms.emplace(key, problem.choose(handle, ctx, x)).first;
    algo = known->second;
  }
  const float one = 1.0f, beta = x.c != nullptr ? 1.0f : 0.0f;
  const float *of_sum = &one, *of_c = &beta;
  if (x.a.format == BlockFormat::nvfp4) {
    auto* const factors = static_cast<float*>(x.scratch);
    block_factors_cuda(ctx, x.a.tensor, x.b.tensor, beta, factors);
    of_sum = factors, of_c = factors + 1;
  }
  const void* const c = x.c != nullptr ? x.c : x.d;
  LT_CHECK(cublasLtMatmul(handle, &problem.desc, of_sum, x.b.codes, &problem.first, x.a.codes,
                          &problem.second, of_c, c, &problem.result, x.d, &problem.result, &algo,
                          ctx.workspace, ctx.workspace_bytes, cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
