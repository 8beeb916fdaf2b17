// SPDX-License-Identifier: Apache-2.0
// What threads do with 16-bit values in their registers: conversion, packing, exchange in a quad.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace saturate::kernels::wgmma {

template <class T>
__device__ inline float to_float(T x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else {
    return __bfloat162float(x);
  }
}
template <class T>
__device__ inline uint32_t pack(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 v = __floats2half2_rn(low, high);
    r = reinterpret_cast<const uint32_t&>(v);
  } else {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    r = reinterpret_cast<const uint32_t&>(v);
  }
  return r;
}

// Transposes a 4 x 4 matrix whose column t the four registers of lane t of a quad hold.
__device__ inline void transpose_quad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = got;
  }
}

}  // namespace saturate::kernels::wgmma
