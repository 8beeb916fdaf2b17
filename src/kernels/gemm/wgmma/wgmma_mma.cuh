// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async of 64 x N x 16 with fp32 sums, for the N that tiles use. Each thread of the
// warpgroup holds N / 2 sums: of rows r and r + 8 with r = 16 warp + lane / 4, columns 8 j + 2
// (lane % 4) + {0, 1}, in the order (j, row, column).
#pragma once
#include <type_traits>

#include "kernels/gemm/wgmma/wgmma_device.cuh"

namespace saturate::kernels::wgmma {

#define SAT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SAT_D16(i) SAT_D4(i), SAT_D4(i + 4), SAT_D4(i + 8), SAT_D4(i + 12)
#define SAT_D64(i) SAT_D16(i), SAT_D16(i + 16), SAT_D16(i + 32), SAT_D16(i + 48)

#define SAT_WGMMA_128(TYPE)                                                              \
  asm volatile(                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, %64, %65, add, 1, 1, %67, %68;\n}"                                             \
      : SAT_D64(0)                                                                       \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))

#define SAT_WGMMA_192(TYPE)                                                              \
  asm volatile(                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"   \
      "}, %96, %97, add, 1, 1, %99, %100;\n}"                                            \
      : SAT_D64(0), SAT_D16(64), SAT_D16(80)                                             \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))

#define SAT_WGMMA_256(TYPE)                                                                        \
  asm volatile(                                                                                    \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                            \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                 \
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
      "}, %128, %129, add, 1, 1, %131, %132;\n}"                                                   \
      : SAT_D64(0), SAT_D64(64)                                                                    \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))

// D = A B, or D += A B when add != 0. kTransposeX: 1 for an MN-major operand, 0 for a K-major one.
template <class T, int kN, int kTransposeA, int kTransposeB>
__device__ inline void mma(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
  if constexpr (sizeof(T) == 2) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if constexpr (kN == 128) SAT_WGMMA_128("bf16");
      if constexpr (kN == 192) SAT_WGMMA_192("bf16");
      if constexpr (kN == 256) SAT_WGMMA_256("bf16");
    } else {
      if constexpr (kN == 128) SAT_WGMMA_128("f16");
      if constexpr (kN == 192) SAT_WGMMA_192("f16");
      if constexpr (kN == 256) SAT_WGMMA_256("f16");
    }
  }
}

#undef SAT_WGMMA_128
#undef SAT_WGMMA_192
#undef SAT_WGMMA_256
#undef SAT_D64
#undef SAT_D16
#undef SAT_D4

}  // namespace saturate::kernels::wgmma
