// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace saturate::kernels {

constexpr int kEight = 8;

// Eight neighbouring elements as memory has them: two of 16 bits are one register, taken apart where
// they are used. As values of T each would take a register of its own.
template <class T>
struct Eight {
  uint32_t word[kEight * sizeof(T) / 4];

  __device__ __forceinline__ void read(const T* from) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(word)) / 16; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(from)[i];
      word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
    }
  }
  __device__ __forceinline__ void write(T* to) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(word)) / 16; ++i)
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t& w : word) w = 0;
  }
  __device__ __forceinline__ float at(int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[i]);
    } else if constexpr (std::is_same_v<T, __half>) {
      const __half2 two = reinterpret_cast<const __half2&>(word[i / 2]);
      return i % 2 == 0 ? __low2float(two) : __high2float(two);
    } else {
      return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
    }
  }
};

}  // namespace saturate::kernels
