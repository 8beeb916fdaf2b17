// SPDX-License-Identifier: Apache-2.0
// cuBLASLt reads matrices by columns, so d^T = b a^T: its first operand is our b, transposed, its second
// our a, and m and n change places. That is the one layout in which Hopper multiplies 8-bit operands.
#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "kernels/fp8/fp8_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

void lt_check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Errc::device, "fp8_matmul",
              fmt::format("{} returned {}", call, cublasLtGetStatusName(status)));
}
#define LT_CHECK(call) lt_check((call), #call)

// Device, place in cuBLASLt's list, sizes, types, which pointers there are, the workspace.
using Key = std::array<int64_t, 11>;
Key key_of(const Context& ctx, const Fp8MatmulArgs& x, int candidate) {
  return {ctx.device.index,
          candidate,
          x.m,
          x.n,
          x.k,
          static_cast<int64_t>(x.a_format),
          static_cast<int64_t>(x.dtype),
          x.fast,
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

  // Under the mutex.
  cublasLtHandle_t handle(const Context& ctx) {
    cublasLtHandle_t& h = handles[ctx.device.index];
    if (h == nullptr) LT_CHECK(cublasLtCreate(&h));
    return h;
  }
};
Library& library() {
  static Library* const instance = new Library;
  return *instance;
}

class Problem {
 public:
  explicit Problem(const Fp8MatmulArgs& x) {
    LT_CHECK(cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(x.fast));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(&x.b_site->inverse));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(&x.a_site->inverse));
    if (x.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    layout(first, CUDA_R_8F_E4M3, x.k, x.n);
    layout(second, x.a_format == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2, x.k, x.m);
    layout(result, x.dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF, x.n, x.m);
  }

  // The algorithm at place `candidate` of cuBLASLt's list, best first by its own estimate.
  cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, const Context& ctx, const Fp8MatmulArgs& x,
                              int candidate) {
    cublasLtMatmulPreferenceOpaque_t preference;
    LT_CHECK(cublasLtMatmulPreferenceInit(&preference));
    const auto bytes = static_cast<uint64_t>(ctx.workspace_bytes);
    LT_CHECK(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(candidate) + 1);
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, &desc, &first, &second, &result, &result,
                                       &preference, candidate + 1, found.data(), &count);
    if (count <= candidate) {
      throw Error(Errc::unsupported, "fp8_matmul",
                  fmt::format("cuBLASLt offers {} algorithms for (m {}, n {}, k {}) ({}); "
                              "use train.precision = bf16",
                              count, x.m, x.n, x.k, cublasLtGetStatusName(status)));
    }
    return found.back().algo;
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

void fp8_matmul_cuda(const Context& ctx, const Fp8MatmulArgs& x) {
  fp8_matmul_candidate_cuda(ctx, x, 0);
}

void fp8_matmul_candidate_cuda(const Context& ctx, const Fp8MatmulArgs& x, int candidate) {
  Problem problem(x);
  Library& lib = library();
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulAlgo_t algo;
  {
    const std::lock_guard lock(lib.mutex);
    handle = lib.handle(ctx);
    const Key key = key_of(ctx, x, candidate);
    auto known = lib.algorithms.find(key);
    if (known == lib.algorithms.end())
      known = lib.algorithms.emplace(key, problem.choose(handle, ctx, x, candidate)).first;
    algo = known->second;
  }
  const float one = 1.0f, beta = x.c != nullptr ? 1.0f : 0.0f;
  const void* const c = x.c != nullptr ? x.c : x.d;
  LT_CHECK(cublasLtMatmul(handle, &problem.desc, &one, x.b, &problem.first, x.a, &problem.second,
                          &beta, c, &problem.result, x.d, &problem.result, &algo, ctx.workspace,
                          ctx.workspace_bytes, cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
