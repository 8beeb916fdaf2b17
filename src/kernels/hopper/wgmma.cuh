// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async of 64 x N x 16 with fp32 sums, for the N that tiles use. Each thread of the
// warpgroup holds N / 2 sums: of rows r and r + 8 with r = 16 warp + lane / 4, columns 8 j + 2
// (lane % 4) + {0, 1}, in the order (j, row, column). Two neighbouring j, packed in pairs, are the
// left operand of a next product. Semantics: PTX ISA 9.0, "wgmma".
#pragma once
#include <type_traits>

#include "kernels/hopper/instructions.cuh"
#include "kernels/hopper/wgmma_list.h"

namespace saturate::kernels::wgmma {

// A and B: descriptors, the operands after the sums in the order a, b, add, transposes.
#define SAT_WGMMA(SUMS, N, TYPE, A, B, ADD, TRANSPOSE_A, TRANSPOSE_B)                              \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD                                         \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" SAT_LIST_##SUMS \
               "}, " A ", " B ", add, 1, 1, " TRANSPOSE_A ", " TRANSPOSE_B ";\n}"                  \
               : SAT_SUMS_##SUMS                                                                   \
               : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))
#define SAT_WGMMAS(TYPE)                                                                   \
  if constexpr (kN == 64) SAT_WGMMA(32, "64", TYPE, "%32", "%33", "%34", "%35", "%36");    \
  if constexpr (kN == 128) SAT_WGMMA(64, "128", TYPE, "%64", "%65", "%66", "%67", "%68");  \
  if constexpr (kN == 192) SAT_WGMMA(96, "192", TYPE, "%96", "%97", "%98", "%99", "%100"); \
  if constexpr (kN == 256) SAT_WGMMA(128, "256", TYPE, "%128", "%129", "%130", "%131", "%132")

// D = A B, or D += A B when add != 0. kTransposeX: 1 for an MN-major operand, 0 for a K-major one.
template <class T, int kN, int kTransposeA, int kTransposeB>
__device__ inline void mma(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
  static_assert(kN == 64 || kN == 128 || kN == 192 || kN == 256);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    SAT_WGMMAS("bf16");
  } else {
    SAT_WGMMAS("f16");
  }
}

// The same of 64 x 8, K-major B: four sums, of rows r and r + 8 and columns 2 (lane % 4) + {0, 1}.
#define SAT_WGMMA_8(TYPE)                                        \
  asm volatile(                                                  \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"            \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE \
      " {%0, %1, %2, %3}, %4, %5, add, 1, 1, %7, 0;\n}"          \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])           \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposeA))
template <class T, int kTransposeA>
__device__ inline void mma_8(float (&d)[4], uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    SAT_WGMMA_8("bf16");
  } else {
    SAT_WGMMA_8("f16");
  }
}

#define SAT_WGMMA_A(SUMS, N, TYPE, A, B, ADD, TRANSPOSE_B)                                         \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD                                         \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" SAT_LIST_##SUMS \
               "}, {" A "}, " B ", add, 1, 1, " TRANSPOSE_B ";\n}"                                 \
               : SAT_SUMS_##SUMS                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposeB))
#define SAT_WGMMAS_A(TYPE)                                                                        \
  if constexpr (kN == 64) SAT_WGMMA_A(32, "64", TYPE, "%32, %33, %34, %35", "%36", "%37", "%38"); \
  if constexpr (kN == 128) SAT_WGMMA_A(64, "128", TYPE, "%64, %65, %66, %67", "%68", "%69", "%70")

// The same with A (64 x 16) in registers, of each warp 16 rows as for mma.m16n8k16; they must not
// change until the product has been waited for.
template <class T, int kN, int kTransposeB>
__device__ inline void mma_from_registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                          int add) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    SAT_WGMMAS_A("bf16");
  } else {
    SAT_WGMMAS_A("f16");
  }
}

#undef SAT_WGMMA
#undef SAT_WGMMAS
#undef SAT_WGMMA_8
#undef SAT_WGMMA_A
#undef SAT_WGMMAS_A

}  // namespace saturate::kernels::wgmma

#include "kernels/hopper/wgmma_unlist.h"
