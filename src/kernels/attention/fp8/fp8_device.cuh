// SPDX-License-Identifier: Apache-2.0
// e4m3 on tensor cores: the 16 x 8 x 32 product (PTX ISA, "Matrix fragments for mma.m16n8k32").
//
// Lane l holds of the left operand rows l/4 and l/4 + 8, four neighbours of the summed index from
// 4*(l%4) and from 16 + 4*(l%4) in a register each; of the right operand the same places of column
// l/4; of the sum what it holds after a product of 16 bits (device/mma.cuh).
#pragma once
#include <cuda_fp8.h>

#include <cstdint>

namespace saturate::kernels::attention {

__device__ __forceinline__ void multiply_add_e4m3(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();  // the host never launches it there
#endif
}

// Nearest e4m3, the first in the lowest byte.
__device__ __forceinline__ uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x0, x1), __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x2, x3), __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// Byte i of word j becomes byte j of word i.
__device__ __forceinline__ void transpose_bytes(uint32_t (&w)[4]) {
  const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), high01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140), high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

}  // namespace saturate::kernels::attention
