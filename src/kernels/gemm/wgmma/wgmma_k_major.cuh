// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async of 64 x N x 32 bytes with fp32 sums, both operands K-major: for the types that
// allow no other layout (tf32, fp8). Sums lie as wgmma_mma.cuh says.
#pragma once
#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/gemm/wgmma/wgmma_device.cuh"
#include "kernels/gemm/wgmma/wgmma_list.h"

namespace saturate::kernels::wgmma {

struct Tf32 {};  // fp32 in memory, of which the tensor cores read 10 bits of mantissa

#define SAT_WGMMA_K(SUMS, N, KIND, A, B, ADD)                                                    \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD                                       \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" N KIND " {" SAT_LIST_##SUMS "}, " A ", " B    \
                                                                               ", add, 1, 1;\n}" \
               : SAT_SUMS_##SUMS                                                                 \
               : "l"(a), "l"(b), "r"(add))
#define SAT_WGMMA(KIND)                                    \
  if constexpr (kN == 128) {                               \
    SAT_WGMMA_K(64, "128", KIND, "%64", "%65", "%66");     \
  } else {                                                 \
    SAT_WGMMA_K(128, "256", KIND, "%128", "%129", "%130"); \
  }

// D = A B^T, or D += A B^T when add != 0; N is 128 or 256.
template <class A, class B, int kN>
__device__ inline void mma_k_major(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
  static_assert(kN == 128 || kN == 256);
  constexpr bool kWideA = std::is_same_v<A, __nv_fp8_e5m2>;
  constexpr bool kWideB = std::is_same_v<B, __nv_fp8_e5m2>;
  if constexpr (std::is_same_v<A, Tf32>) {
    SAT_WGMMA("k8.f32.tf32.tf32");
  } else if constexpr (!kWideA && !kWideB) {
    SAT_WGMMA("k32.f32.e4m3.e4m3");
  } else if constexpr (!kWideA) {
    SAT_WGMMA("k32.f32.e4m3.e5m2");
  } else if constexpr (!kWideB) {
    SAT_WGMMA("k32.f32.e5m2.e4m3");
  } else {
    SAT_WGMMA("k32.f32.e5m2.e5m2");
  }
}

#undef SAT_WGMMA
#undef SAT_WGMMA_K

}  // namespace saturate::kernels::wgmma

#include "kernels/gemm/wgmma/wgmma_unlist.h"
