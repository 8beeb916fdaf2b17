// SPDX-License-Identifier: Apache-2.0
// The epilogue of epilogue.h on the GPU, eight columns of one row at a time.
//
// A kernel brings its sums to eight consecutive columns a thread (through shared memory) and calls
// EpilogueRow::apply. Products of kind gated arrange their columns so that the thread holds gate
// and up of the same eight: gated_column says where a column of the arranged product lies in B.
#pragma once
#include "kernels/activation/activation_curve.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// Column of op(B) that the arranged product has at t: eight of the gate, the eight of up that
// belong to them, the next eight of the gate... n columns of each.
__device__ __forceinline__ int gated_column(int t, int n) {
  const int j = t / 16 * 8 + t % 8;
  return t / 8 % 2 == 0 ? j : n + j;
}

// What is left of a row at one column: where, and how much of it in 16-byte accesses.
struct Span8 {
  int count;  // 1..8 elements exist
  bool wide;  // all eight exist and are aligned
};

// T is float or a 16-bit type; elements beyond the count read as 0.
template <class T>
__device__ __forceinline__ void load_some(float (&v)[8], const T* from, Span8 s) {
  if (s.wide) return load(v, from);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < s.count ? to_float(from[i]) : 0.0f;
}
template <class T>
__device__ __forceinline__ void store_some(T* to, const float (&v)[8], Span8 s) {
  if (s.wide) return store(to, v);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < s.count) to[i] = from_float<T>(v[i]);
}

// c, d and aux are f32 or of the type T of a, b and bias.
struct EpilogueRow {
  const void* c;
  void* d;
  const void* bias;
  int64_t ldc, ldd;
  int n;  // MatmulArgs::n
  float alpha, beta;
  bool d_is_f32;
  bool wide;  // c, d, aux and bias: 16-byte accesses at every eighth column
  Epilogue e;

  // v: sums of columns col..col+7 (col a multiple of 8) of `row`; kGated: up has those of N + col.
  // On return v (and up, for gated_derivative) holds what was stored, 0 beyond column n.
  template <class T, bool kGated>
  __device__ __forceinline__ void apply(int64_t row, int col, float (&v)[8], float (&up)[8]) const {
    const int count = min(8, n - col);
    const Span8 here{count, wide && count == 8};
    const Span8 there{count, here.wide && n % 8 == 0};  // the second half starts at n
    scale<T>(v, col, here);
    if constexpr (kGated) scale<T>(up, n + col, there);
    if (kGated || e.kind != EpilogueKind::plain) {
      float x[8];
      if (!kGated && e.kind != EpilogueKind::activation) {
        load_any<T>(x, e.aux, row * e.ld_aux + col, here);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = v[i];
        if (e.aux != nullptr && !e.slopes) store_any<T>(e.aux, row * e.ld_aux + col, v, here);
        if (kGated && e.aux != nullptr) store_any<T>(e.aux, row * e.ld_aux + n + col, up, there);
      }
      Curve f[8];
      curves(f, x);
      if constexpr (kGated) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = f[i].value * up[i];
      } else if (e.kind == EpilogueKind::activation) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = f[i].value;
        if (e.aux != nullptr && e.slopes) {
#pragma unroll
          for (int i = 0; i < 8; ++i) x[i] = f[i].slope;
          store_any<T>(e.aux, row * e.ld_aux + col, x, here);
        }
      } else if (e.kind == EpilogueKind::derivative) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] *= e.slopes ? x[i] : f[i].slope;
      } else {
        float y[8];
        load_any<T>(y, e.aux, row * e.ld_aux + n + col, there);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          up[i] = v[i] * f[i].value;
          v[i] *= y[i] * f[i].slope;
        }
        finish<T>(row, n + col, up, there);
      }
    }
    finish<T>(row, col, v, here);
  }

 private:
  __device__ __forceinline__ void curves(Curve (&f)[8], const float (&x)[8]) const {
    const auto each = [&](auto kind) {
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i] = curve<kind.value>(x[i]);
    };
    switch (e.activation) {
      case ActivationKind::relu:
        return each(std::integral_constant<ActivationKind, ActivationKind::relu>{});
      case ActivationKind::silu:
        return each(std::integral_constant<ActivationKind, ActivationKind::silu>{});
      case ActivationKind::gelu_tanh:
        return each(std::integral_constant<ActivationKind, ActivationKind::gelu_tanh>{});
      default:
        return each(std::integral_constant<ActivationKind, ActivationKind::gelu_erf>{});
    }
  }
  template <class T>
  __device__ __forceinline__ void load_any(float (&v)[8], const void* from, int64_t at,
                                           Span8 s) const {
    d_is_f32 ? load_some(v, static_cast<const float*>(from) + at, s)
             : load_some(v, static_cast<const T*>(from) + at, s);
  }
  template <class T>
  __device__ __forceinline__ void store_any(void* to, int64_t at, const float (&v)[8],
                                            Span8 s) const {
    d_is_f32 ? store_some(static_cast<float*>(to) + at, v, s)
             : store_some(static_cast<T*>(to) + at, v, s);
  }
  template <class T>
  __device__ __forceinline__ void scale(float (&v)[8], int col, Span8 s) const {
    float b[8] = {};
    if (bias != nullptr) load_some(b, static_cast<const T*>(bias) + col, s);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] * alpha + b[i];
  }
  template <class T>
  __device__ __forceinline__ void finish(int64_t row, int col, float (&v)[8], Span8 s) const {
    if (beta != 0.0f) {
      float old[8];
      load_any<T>(old, c, row * ldc + col, s);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += beta * old[i];
    }
    store_any<T>(d, row * ldd + col, v, s);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < s.count ? v[i] : 0.0f;
  }
};

}  // namespace saturate::kernels
