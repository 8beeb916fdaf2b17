// SPDX-License-Identifier: Apache-2.0
// Wide memory accesses and conversion between storage types (float, bf16, f16) and float.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace saturate::kernels {

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(v);
  } else {
    return __float2bfloat16_rn(v);
  }
}

__device__ __forceinline__ void from_pair(__nv_bfloat16* to, float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  to[0] = pair.x;
  to[1] = pair.y;
}
__device__ __forceinline__ void from_pair(__half* to, float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  to[0] = pair.x;
  to[1] = pair.y;
}

// The value as memory would hold it.
template <class T>
__device__ __forceinline__ float round_to(float v) {
  return to_float(from_float<T>(v));
}

// N consecutive elements of T as the accesses that move them: at most 16 bytes each.
template <class T, int N>
struct Packed {
  static constexpr int kPerAccess = N * sizeof(T) > 16 ? 16 / static_cast<int>(sizeof(T)) : N;
  struct alignas(kPerAccess * sizeof(T)) Access {
    T v[kPerAccess];
  };
  Access a[N / kPerAccess];
};

// `src` must be aligned to min(16, N * sizeof(T)) bytes; N is a power of two.
template <int N, class T>
__device__ __forceinline__ void load(float (&dst)[N], const T* src) {
  using P = Packed<T, N>;
  P p;
#pragma unroll
  for (int i = 0; i < N / P::kPerAccess; ++i) {
    p.a[i] = reinterpret_cast<const typename P::Access*>(src)[i];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) dst[i] = to_float(p.a[i / P::kPerAccess].v[i % P::kPerAccess]);
}

template <int N, class T>
__device__ __forceinline__ void store(T* dst, const float (&src)[N]) {
  using P = Packed<T, N>;
  P p;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    T* to = &p.a[i / P::kPerAccess].v[i % P::kPerAccess];
    if constexpr (N % 2 == 0 && sizeof(T) == 2) {  // one instruction converts a pair
      if (i % 2 == 0) from_pair(to, src[i], src[i + 1]);
    } else {
      *to = from_float<T>(src[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < N / P::kPerAccess; ++i) {
    reinterpret_cast<typename P::Access*>(dst)[i] = p.a[i];
  }
}

// Elements of a 16-byte access.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

// Whether every pointer (null counts) allows 16-byte accesses.
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ... | 0) % 16) == 0;
}

template <class T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<T>) for the device type of `dtype`: f32, bf16 or f16; fits has refused the
// rest.
template <class Body>
void with_device_type(DType dtype, const Body& body) {
  if (dtype == DType::f32) return body(TypeTag<float>{});
  if (dtype == DType::bf16) return body(TypeTag<__nv_bfloat16>{});
  if (dtype == DType::f16) return body(TypeTag<__half>{});
}

}  // namespace saturate::kernels
