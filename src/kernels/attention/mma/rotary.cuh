// SPDX-License-Identifier: Apache-2.0
// Rotary positions on tiles of q and k: the halves of a head are spread to the halves of the tile's
// row (HeadColumns), so that partners lie kD / 2 columns apart whatever the head size, and a
// gradient's partners lie in one thread.
//
// The rotated rows are rounded to their type before the product, as where a model rotates them
// itself; angles and gradients are in fp32.
#pragma once
#include "kernels/attention/mma/tiles.cuh"

namespace saturate::kernels::attention {

// -log2(base) / (half a head): times d, the exponent of 2 of pair d's angle a position.
__device__ __forceinline__ float rotary_turn(const AttentionArgs& a) {
  return -2.0f * log2f(a.rotary_base) / static_cast<float>(a.head_size);
}

// Rotates all kRows rows of a tile, row r by position first + r. A barrier before it must have
// shown the tile to all threads; one after it must show its result.
template <class T, int kD, int kRows, int kThreads>
__device__ void rotate_rows(unsigned char* tile, const AttentionArgs& a, int first) {
  constexpr int kPitch = pitch_of(kD);
  // A thread keeps four neighbouring pairs and goes down the rows: their angle grows by the same
  // amount at each step, so a product of complex numbers takes the place of sine and cosine.
  const int groups = static_cast<int>(a.head_size) / 8;
  const int rows_at_once = kThreads / groups;
  const int group = static_cast<int>(threadIdx.x) % groups;
  int row = static_cast<int>(threadIdx.x) / groups;
  if (row >= rows_at_once) return;
  const float turn = rotary_turn(a);
  float sine[4], cosine[4], step_sine[4], step_cosine[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float wheel = exp2f(turn * static_cast<float>(group * 4 + i));
    sincosf(static_cast<float>(first + row) * wheel, &sine[i], &cosine[i]);
    sincosf(static_cast<float>(rows_at_once) * wheel, &step_sine[i], &step_cosine[i]);
  }
  for (; row < kRows; row += rows_at_once) {
    auto* low = reinterpret_cast<uint2*>(tile + chunk_at<kPitch>(row, group / 2) + group % 2 * 8);
    auto* high =
        reinterpret_cast<uint2*>(tile + chunk_at<kPitch>(row, group / 2 + kD / 16) + group % 2 * 8);
    const uint2 low_bits = *low, high_bits = *high;
    T x[4], y[4];
    memcpy(x, &low_bits, 8);
    memcpy(y, &high_bits, 8);
    float u[4], v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u[i] = to_float(x[i]) * cosine[i] - to_float(y[i]) * sine[i];
      v[i] = to_float(y[i]) * cosine[i] + to_float(x[i]) * sine[i];
      const float c = cosine[i] * step_cosine[i] - sine[i] * step_sine[i];
      sine[i] = sine[i] * step_cosine[i] + cosine[i] * step_sine[i];
      cosine[i] = c;
    }
    *low = make_uint2(pack<T>(u[0], u[1]), pack<T>(u[2], u[3]));
    *high = make_uint2(pack<T>(v[0], v[1]), pack<T>(v[2], v[3]));
  }
}

// Rotates the gradients of a warp's 16 rotated rows back; the first has position `first`.
template <int kD>
__device__ void rotate_back(float (&sum)[kD / 8][4], const AttentionArgs& a, int first) {
  const float turn = rotary_turn(a);
  const int l = lane();
#pragma unroll
  for (int n = 0; n < kD / 16; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float wheel = exp2f(turn * static_cast<float>(n * 8 + l % 4 * 2 + e % 2));
      float s, c;
      sincosf(static_cast<float>(first + l / 4 + e / 2 * 8) * wheel, &s, &c);
      const float x = sum[n][e], y = sum[n + kD / 16][e];
      sum[n][e] = x * c + y * s;
      sum[n + kD / 16][e] = y * c - x * s;
    }
}

}  // namespace saturate::kernels::attention
