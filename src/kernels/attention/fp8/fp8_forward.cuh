// SPDX-License-Identifier: Apache-2.0
// 64 queries of a head to a block, 16 to a warp, over tiles of 64 keys.
//
// The probabilities of a row leave the first product two neighbours a lane and enter the second
// four a lane. No lane needs to move them: the order of keys within a product is free as long as v
// has the same, so v is stored transposed with its keys in that order.
#pragma once
#include <math_constants.h>

#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/fp8/fp8.h"
#include "kernels/attention/fp8/fp8_device.cuh"

namespace saturate::kernels::attention {

constexpr int kFp8Queries = 64, kFp8Keys = 64, kFp8Threads = 128;
constexpr float kFp8Raise = 8.0f;  // log2 of what probabilities are multiplied with before rounding

// Words between rows of the tiles in shared memory: the eight rows that a load of a fragment
// touches start four banks apart.
template <int kD>
constexpr int kFp8KeyWords = kD / 4 + 4;
constexpr int kFp8ValueWords = kFp8Keys / 4 + 4;

template <int kD>
__device__ void load_keys_e4m3(uint32_t* tile, const AttentionArgs& a, Rows keys, int first,
                               int head) {
  constexpr int kChunks = kD / 16;  // of 16 bytes a row
  for (int n = threadIdx.x; n < kFp8Keys * kChunks; n += kFp8Threads) {
    const int key = n / kChunks, chunk = n % kChunks;
    uint4 bytes = {};
    if (first + key < keys.count)
      bytes = *reinterpret_cast<const uint4*>(
          row_of<uint8_t>(a.k, keys.first + first + key, a.k_stride, head, kD) + chunk * 16);
    *reinterpret_cast<uint4*>(tile + key * kFp8KeyWords<kD> + chunk * 4) = bytes;
  }
}

// Row d of the tile has word (8 * half + 4 * part + lane) = keys 32 * half + 16 * part + 2 * lane +
// {0, 1, 8, 9}: what lane l % 4 = lane holds of four columns' blocks of eight scores.
template <int kD>
__device__ void load_values_e4m3(uint32_t* tile, const AttentionArgs& a, Rows keys, int first,
                                 int head) {
  for (int n = threadIdx.x; n < kD / 4 * (kFp8Keys / 4); n += kFp8Threads) {
    const int word = n % 4 + n / kD * 4, d = n / 4 % (kD / 4) * 4;
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + word / 4 * 16 + word % 4 * 2 + i % 2 + i / 2 * 8;
      w[i] = key < keys.count
                 ? *reinterpret_cast<const uint32_t*>(
                       row_of<uint8_t>(a.v, keys.first + key, a.v_stride, head, kD) + d)
                 : 0;
    }
    transpose_bytes(w);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[(d + i) * kFp8ValueWords + word] = w[i];
  }
}

// Largest score of a row so far and the sum of 2^(score - top + kFp8Raise), rows l/4 and l/4 + 8.
struct Fp8Rows {
  float top[2], sum[2];
};

// Scores (in units of log2) become probabilities; returns by what the sums so far shrink.
__device__ __forceinline__ float2 softmax_of_tile(float (&s)[kFp8Keys / 8][4], Fp8Rows& rows) {
  float shrink[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = rows.top[r];
#pragma unroll
    for (int n = 0; n < kFp8Keys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    const float shift = top == -CUDART_INF_F ? 0.0f : top;  // no key seen yet
    shrink[r] = exp2f(rows.top[r] - shift);
    rows.top[r] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kFp8Keys / 8; ++n)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) sum += s[n][i] = exp2f(s[n][i] - shift + kFp8Raise);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    rows.sum[r] = rows.sum[r] * shrink[r] + sum;
  }
  return make_float2(shrink[0], shrink[1]);
}

template <int kD>
__global__ void __launch_bounds__(kFp8Threads) forward_fp8_kernel(AttentionFp8Args x, int tiles) {
  const AttentionArgs& a = x.attention;
  const int head = blockIdx.y, sequence = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  if (sequence == a.sequences) return zero_tail<__nv_bfloat16>(a, head, tile, tiles);
  const Rows queries = rows_of(a.cu_q, sequence), keys = rows_of(a.cu_k, sequence);
  const int first_query = tile * kFp8Queries;
  if (first_query >= queries.count) return;
  const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);

  __shared__ uint4 key_storage[kFp8Keys * kFp8KeyWords<kD> / 4];
  __shared__ uint4 value_storage[kD * kFp8ValueWords / 4];
  uint32_t* key_tile = reinterpret_cast<uint32_t*>(key_storage);
  uint32_t* value_tile = reinterpret_cast<uint32_t*>(value_storage);

  const int l = threadIdx.x % 32, in_quad = l % 4, in_eight = l / 4;
  const int row = first_query + static_cast<int>(threadIdx.x) / 32 * 16 + in_eight;  // and row + 8
  uint32_t q[kD / 32][4];
#pragma unroll
  for (int k = 0; k < kD / 32; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      q[k][i] =
          row + i % 2 * 8 < queries.count
              ? *reinterpret_cast<const uint32_t*>(
                    row_of<uint8_t>(a.q, queries.first + row + i % 2 * 8, a.q_stride, head, kD) +
                    k * 32 + i / 2 * 16 + in_quad * 4)
              : 0;
  const float to_log2 = a.scale * kLog2e * (x.q_scales ? x.q_scales[head] : 1.0f) *
                        (x.k_scales ? x.k_scales[kv_head] : 1.0f);

  Fp8Rows rows{{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}};
  float o[kD / 8][4] = {};
  const int last = first_query + kFp8Queries;
  const int seen = a.causal && last < keys.count ? last : keys.count;
  for (int first = 0; first < seen; first += kFp8Keys) {
    __syncthreads();  // the tiles before have been read
    load_keys_e4m3<kD>(key_tile, a, keys, first, kv_head);
    load_values_e4m3<kD>(value_tile, a, keys, first, kv_head);
    __syncthreads();

    float s[kFp8Keys / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kFp8Keys / 8; ++n) {
      const uint32_t* key = key_tile + (8 * n + in_eight) * kFp8KeyWords<kD> + in_quad;
#pragma unroll
      for (int k = 0; k < kD / 32; ++k) multiply_add_e4m3(s[n], q[k], key[8 * k], key[8 * k + 4]);
    }
#pragma unroll
    for (int n = 0; n < kFp8Keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + 8 * n + 2 * in_quad + i % 2;
        const bool hidden = key >= keys.count || (a.causal && key > row + i / 2 * 8);
        s[n][i] = hidden ? -CUDART_INF_F : s[n][i] * to_log2;
      }
    const float2 shrink = softmax_of_tile(s, rows);

    uint32_t p[kFp8Keys / 32][4];
#pragma unroll
    for (int k = 0; k < kFp8Keys / 32; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&even)[4] = s[4 * k + i / 2 * 2], (&odd)[4] = s[4 * k + i / 2 * 2 + 1];
        const int r = i % 2 * 2;
        p[k][i] = pack_e4m3(even[r], even[r + 1], odd[r], odd[r + 1]);
      }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      // Added in fp32: tensor cores keep too few bits of a long sum.
      float part[4] = {};
      const uint32_t* value = value_tile + (8 * n + in_eight) * kFp8ValueWords + in_quad;
#pragma unroll
      for (int k = 0; k < kFp8Keys / 32; ++k)
        multiply_add_e4m3(part, p[k], value[8 * k], value[8 * k + 4]);
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = o[n][i] * (i < 2 ? shrink.x : shrink.y) + part[i];
    }
  }

  const float v_scale = x.v_scales ? x.v_scales[kv_head] : 1.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = row + 8 * r;
    if (query >= queries.count) continue;
    const bool any = rows.sum[r] > 0.0f;
    const float scale = any ? v_scale / rows.sum[r] : 0.0f;
    auto* to = row_of<__nv_bfloat16>(a.o, queries.first + query, a.o_stride, head, kD);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      *reinterpret_cast<__nv_bfloat162*>(to + 8 * n + 2 * in_quad) =
          __floats2bfloat162_rn(o[n][2 * r] * scale, o[n][2 * r + 1] * scale);
    if (in_quad == 0)
      static_cast<float*>(a.lse)[head * a.q_rows + queries.first + query] =
          any ? (rows.top[r] + log2f(rows.sum[r]) - kFp8Raise) * kLn2 : -CUDART_INF_F;
  }
}

}  // namespace saturate::kernels::attention
