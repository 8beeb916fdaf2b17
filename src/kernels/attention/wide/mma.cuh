// SPDX-License-Identifier: Apache-2.0
// More shapes of wgmma (hopper/wgmma.cuh has the layout of sums and operands), for the
// tiles of wide heads.
#pragma once
#include "kernels/hopper/wgmma.cuh"

#include "kernels/hopper/wgmma_list.h"

namespace saturate::kernels::attention::wide {

#define SAT_SUMS_40 SAT_SUMS_32, SAT_D4(32), SAT_D4(36)
#define SAT_SUMS_48 SAT_SUMS_32, SAT_D16(32)
#define SAT_LIST_40 SAT_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SAT_LIST_48 SAT_LIST_40 ", %40, %41, %42, %43, %44, %45, %46, %47"

// The instruction's text: sums, then operand A (text), B, whether to add, transposes (text).
#define SAT_WGMMA_TEXT(SUMS, N, TYPE, A, B, ADD, TRANSPOSES)                              \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
  "k16.f32." TYPE "." TYPE " {" SAT_LIST_##SUMS "}, " A ", " B ", add, 1, 1, " TRANSPOSES ";\n}"

#define SAT_WGMMA_K(SUMS, N, TYPE, A, B, ADD)                   \
  asm volatile(SAT_WGMMA_TEXT(SUMS, N, TYPE, A, B, ADD, "0, 0") \
               : SAT_SUMS_##SUMS                                \
               : "l"(a), "l"(b), "r"(add))
#define SAT_WGMMAS_K(TYPE)                                                  \
  if constexpr (kN == 80) SAT_WGMMA_K(40, "80", TYPE, "%40", "%41", "%42"); \
  if constexpr (kN == 96) SAT_WGMMA_K(48, "96", TYPE, "%48", "%49", "%50")

// D = A B, or D += A B when add != 0, both operands K-major in shared memory.
template <class T, int kN>
__device__ __forceinline__ void mma(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
  if constexpr (kN != 80 && kN != 96) {
    wgmma::mma<T, kN, 0, 0>(d, a, b, add);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    SAT_WGMMAS_K("bf16");
  } else {
    SAT_WGMMAS_K("f16");
  }
}

#define SAT_WGMMA_R(SUMS, N, TYPE, A, B, ADD)                        \
  asm volatile(SAT_WGMMA_TEXT(SUMS, N, TYPE, "{" A "}", B, ADD, "1") \
               : SAT_SUMS_##SUMS                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define SAT_WGMMAS_R(TYPE)                                                                     \
  if constexpr (kN == 192) SAT_WGMMA_R(96, "192", TYPE, "%96, %97, %98, %99", "%100", "%101"); \
  if constexpr (kN == 256) SAT_WGMMA_R(128, "256", TYPE, "%128, %129, %130, %131", "%132", "%133")

// D += A B, A in registers, B MN-major in shared memory.
template <class T, int kN>
__device__ __forceinline__ void mma_from_registers(float (&d)[kN / 2], const uint32_t (&a)[4],
                                                   uint64_t b, int add) {
  if constexpr (kN != 192 && kN != 256) {
    wgmma::mma_from_registers<T, kN, 1>(d, a, b, add);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    SAT_WGMMAS_R("bf16");
  } else {
    SAT_WGMMAS_R("f16");
  }
}

#undef SAT_SUMS_40
#undef SAT_SUMS_48
#undef SAT_LIST_40
#undef SAT_LIST_48
#undef SAT_WGMMA_TEXT
#undef SAT_WGMMA_K
#undef SAT_WGMMAS_K
#undef SAT_WGMMA_R
#undef SAT_WGMMAS_R

}  // namespace saturate::kernels::attention::wide

#include "kernels/hopper/wgmma_unlist.h"
