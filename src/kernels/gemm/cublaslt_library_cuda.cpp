// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's functions, from a library that the first call loads. Loaded with the program it would
// take 0.1 s of every start (LADDER.md), also of those that never multiply with it.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "base/error.h"

#define SAT_TEXT_OF(x) #x
#define SAT_TEXT(x) SAT_TEXT_OF(x)

namespace {

constexpr const char* kLibrary = "libcublasLt.so." SAT_TEXT(CUBLAS_VER_MAJOR);

// Stays until the process ends. Errors: unsupported.
void* function_named(const char* name) {
  using saturate::Errc;
  using saturate::Error;
  static void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    throw Error(Errc::unsupported, "matmul",
                std::string("cuBLASLt cannot be loaded: ") + (why != nullptr ? why : kLibrary) +
                    "; install CUDA's libcublas, or name its folder in LD_LIBRARY_PATH");
  }
  void* const found = dlsym(library, name);
  if (found != nullptr) return found;
  throw Error(Errc::unsupported, "matmul",
              std::string(kLibrary) + " has no " + name + "; install that of CUDA " +
                  SAT_TEXT(CUBLAS_VER_MAJOR));
}

template <class F>
F* found(F*, const char* name) {
  return reinterpret_cast<F*>(function_named(name));
}

}  // namespace

// The parameters are those of cublasLt.h, which checks them.
#define SAT_LT(result, name, parameters, ...)          \
  result name parameters {                             \
    static auto* const function = found(&name, #name); \
    return function(__VA_ARGS__);                      \
  }

extern "C" {

SAT_LT(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), handle)
SAT_LT(const char*, cublasLtGetStatusName, (cublasStatus_t status), status)
SAT_LT(size_t, cublasLtGetVersion, (), )
SAT_LT(cublasStatus_t, cublasLtMatmul,
       (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
        const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
        size_t workspace_bytes, cudaStream_t stream),
       handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
       workspace, workspace_bytes, stream)
SAT_LT(cublasStatus_t, cublasLtMatmulAlgoCheck,
       (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
        const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result),
       handle, desc, a, b, c, d, algo, result)
SAT_LT(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
       (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
        cublasLtMatmulPreference_t preference, int asked, cublasLtMatmulHeuristicResult_t* results,
        int* returned),
       handle, desc, a, b, c, d, preference, asked, results, returned)
SAT_LT(cublasStatus_t, cublasLtMatmulDescInit_internal,
       (cublasLtMatmulDesc_t desc, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
       desc, size, compute, scale)
SAT_LT(cublasStatus_t, cublasLtMatmulDescSetAttribute,
       (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value,
        size_t size),
       desc, attribute, value, size)
SAT_LT(cublasStatus_t, cublasLtMatmulPreferenceInit_internal,
       (cublasLtMatmulPreference_t preference, size_t size), preference, size)
SAT_LT(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
       (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
        const void* value, size_t size),
       preference, attribute, value, size)
SAT_LT(cublasStatus_t, cublasLtMatrixLayoutInit_internal,
       (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows, uint64_t cols,
        int64_t ld),
       layout, size, type, rows, cols, ld)
SAT_LT(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
       (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value,
        size_t size),
       layout, attribute, value, size)

}  // extern "C"
