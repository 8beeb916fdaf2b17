// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async of 64 x N x 16 with fp32 sums: left operand from shared
// memory or from registers. Each thread of the warpgroup holds N / 2 sums: of rows r and r + 8 with
// r = 16 warp + lane / 4, columns 8 j + 2 (lane % 4) + {0, 1}, in the order (j, row, column). Two
// neighbouring j, packed in pairs, are the left operand of the next product. Semantics: PTX
// ISA 9.0, "wgmma".
#pragma once
#include <type_traits>

#include "kernels/gemm/wgmma/wgmma_device.cuh"

namespace saturate::kernels::attention::hopper {

#define SAT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SAT_D16(i) SAT_D4(i), SAT_D4(i + 4), SAT_D4(i + 8), SAT_D4(i + 12)

#define SAT_ATTENTION_SS_64(TYPE)                                                      \
  asm volatile(                                                                        \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                      \
      " {"                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, %32, %33, add, 1, 1, %35, %36;\n}"                                           \
      : SAT_D16(0), SAT_D16(16)                                                        \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))

#define SAT_ATTENTION_SS_128(TYPE)                                                       \
  asm volatile(                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, %64, %65, add, 1, 1, %67, %68;\n}"                                             \
      : SAT_D16(0), SAT_D16(16), SAT_D16(32), SAT_D16(48)                                \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))

#define SAT_ATTENTION_RS_64(TYPE)                                                      \
  asm volatile(                                                                        \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                      \
      " {"                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"                               \
      : SAT_D16(0), SAT_D16(16)                                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposeB))

#define SAT_ATTENTION_RS_128(TYPE)                                                       \
  asm volatile(                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"                                 \
      : SAT_D16(0), SAT_D16(16), SAT_D16(32), SAT_D16(48)                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposeB))

// d = a b, or d += a b when add != 0; a and b in shared memory. kTransposeX: 1 for an operand whose
// consecutive elements run along its rows (a) or columns (b), 0 for one where they follow k.
template <class T, int kN, int kTransposeA, int kTransposeB>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kN == 64) SAT_ATTENTION_SS_64("bf16");
    if constexpr (kN == 128) SAT_ATTENTION_SS_128("bf16");
  } else {
    if constexpr (kN == 64) SAT_ATTENTION_SS_64("f16");
    if constexpr (kN == 128) SAT_ATTENTION_SS_128("f16");
  }
}

// The same with a (64 x 16) in registers; they may change again after wgmma.wait_group.
template <class T, int kN, int kTransposeB>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                         int add) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kN == 64) SAT_ATTENTION_RS_64("bf16");
    if constexpr (kN == 128) SAT_ATTENTION_RS_128("bf16");
  } else {
    if constexpr (kN == 64) SAT_ATTENTION_RS_64("f16");
    if constexpr (kN == 128) SAT_ATTENTION_RS_128("f16");
  }
}

#undef SAT_ATTENTION_SS_64
#undef SAT_ATTENTION_SS_128
#undef SAT_ATTENTION_RS_64
#undef SAT_ATTENTION_RS_128
#undef SAT_D16
#undef SAT_D4

}  // namespace saturate::kernels::attention::hopper
