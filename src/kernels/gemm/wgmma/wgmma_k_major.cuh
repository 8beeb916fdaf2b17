// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async of 64 x N x 32 bytes with fp32 sums, both operands K-major: for the types that
// allow no other layout (tf32, fp8). Sums lie as wgmma_mma.cuh says.
#pragma once
#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/gemm/wgmma/wgmma_device.cuh"

namespace saturate::kernels::wgmma {

struct Tf32 {};  // fp32 in memory, of which the tensor cores read 10 bits of mantissa

#define SAT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SAT_D16(i) SAT_D4(i), SAT_D4(i + 4), SAT_D4(i + 8), SAT_D4(i + 12)
#define SAT_D64(i) SAT_D16(i), SAT_D16(i + 16), SAT_D16(i + 32), SAT_D16(i + 48)
#define SAT_WGMMA_128(KIND)                                                              \
  asm volatile(                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n128" KIND                                        \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, %64, %65, add, 1, 1;\n}"                                                       \
      : SAT_D64(0)                                                                       \
      : "l"(a), "l"(b), "r"(add))
#define SAT_WGMMA_256(KIND)                                                                        \
  asm volatile(                                                                                    \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                            \
      "wgmma.mma_async.sync.aligned.m64n256" KIND                                                  \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127"                                                                                       \
      "}, %128, %129, add, 1, 1;\n}"                                                               \
      : SAT_D64(0), SAT_D64(64)                                                                    \
      : "l"(a), "l"(b), "r"(add))
#define SAT_WGMMA(KIND)      \
  if constexpr (kN == 128) { \
    SAT_WGMMA_128(KIND);     \
  } else {                   \
    SAT_WGMMA_256(KIND);     \
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
#undef SAT_WGMMA_256
#undef SAT_WGMMA_128
#undef SAT_D64
#undef SAT_D16
#undef SAT_D4

}  // namespace saturate::kernels::wgmma
