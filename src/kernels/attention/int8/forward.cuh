// SPDX-License-Identifier: Apache-2.0
// 128 queries of a head to a block over tiles of 64 keys; a warp owns 32 rows, in two blocks.
//
// The scores are sums of at most 128 * 127 * 127 < 2^22 in 32-bit integers. They start at the bits
// of the float 1.5 * 2^23, so that the same bits read as a float are that number plus the sum: what
// would be a conversion of every score (a sixteenth of the rate of additions) is nothing, and the
// offset goes away in the multiply-add that the softmax needs anyway.
#pragma once
#include <math_constants.h>

#include "kernels/attention/int8/problem.h"
#include "kernels/attention/mma/tiles.cuh"

namespace saturate::kernels::attention {

constexpr int kInt8Zero = 0x4B400000;       // the bits of kInt8Offset
constexpr float kInt8Offset = 12582912.0f;  // 1.5 * 2^23
constexpr int kInt8Queries = 128, kInt8Threads = 128;

// c += a b for 16 x 32 times 32 x 8 bytes; the fragments lie as those of 16 x 16 times 16 x 8
// 16-bit elements (device/mma.cuh), two bytes for one element.
__device__ __forceinline__ void multiply_add_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();  // the host never launches it there
#endif
}

// Bytes of shared memory of a block.
template <int kD>
constexpr int kInt8Shared = 2 * (Tile<kD / 2>::bytes(kInt8Keys) + Tile<kD>::bytes(kInt8Keys));

template <class T, int kD>
__global__ __launch_bounds__(kInt8Threads) void attention_forward_int8_kernel(
    const __grid_constant__ Int8Problem p, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kInt8Threads, kKeys = kInt8Keys;
  constexpr int kBlocks = kInt8Queries / 16 / (kThreads / 32);  // of 16 rows a warp
  // Bytes go in pairs, as elements of 16 bits.
  using KeyTile = Tile<kD / 2>;
  using ValueTile = Tile<kD>;
  constexpr int kKeyBytes = KeyTile::bytes(kKeys), kValueBytes = ValueTile::bytes(kKeys);
  const AttentionArgs& a = p.a;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;  // causal: the longest first
  const int head = static_cast<int>(blockIdx.y);
  if (sequence == a.sequences) return zero_tail<T>(a, head, tile, tiles);
  const Rows queries = rows_of(a.cu_q, sequence), keys = rows_of(a.cu_k, sequence);
  const int first = tile * kInt8Queries;
  if (first >= queries.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  // Two slots of values, which carry the output in the end, then two of keys.
  extern __shared__ __align__(128) unsigned char shared[];
  const auto v_slots = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t k_slots = v_slots + 2 * kValueBytes;
  const int64_t k_stride = a.kv_heads * kD / 2;
  const auto* k_rows = reinterpret_cast<const uint16_t*>(p.k) + keys.first * k_stride + kv * kD / 2;
  const T* v_rows = row_of<T>(a.v, keys.first, a.v_stride, kv, kD);
  const float* k_scales =
      p.k_scales + kv * p.k_blocks + keys.first / kKeys + sequence;  // one a tile
  const int end = a.causal ? min(keys.count, first + kInt8Queries) : keys.count;
  const auto bring = [&](int start, int slot) {
    KeyTile{k_slots + slot * kKeyBytes}.template copy<kKeys, kThreads>(
        k_rows + start * k_stride, k_stride, keys.count - start, {kD / 16, false});
    ValueTile{v_slots + slot * kValueBytes}.template copy<kKeys, kThreads>(
        v_rows + start * a.v_stride, a.v_stride, keys.count - start, {kD / 8, false});
    copy_commit();
  };
  if (end > 0) bring(0, 0);

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * kBlocks * 16;
  uint32_t q[kBlocks][kD / 32][4];
  float q_scale[kBlocks][2];  // with the scale of scores, for powers of two
#pragma unroll
  for (int m = 0; m < kBlocks; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + warp_row + m * 16 + l / 4 + 8 * r;
      const bool valid = row < queries.count;
      const int64_t at = queries.first + (valid ? row : 0);
      const auto* from = reinterpret_cast<const uint32_t*>(p.q + (at * a.heads + head) * kD);
#pragma unroll
      for (int c = 0; c < kD / 32; ++c) {
        q[m][c][r] = valid ? from[c * 8 + l % 4] : 0;
        q[m][c][r + 2] = valid ? from[c * 8 + 4 + l % 4] : 0;
      }
      q_scale[m][r] = valid ? p.q_scales[head * a.q_rows + at] * a.scale * kLog2e : 0.0f;
    }

  float sum[kBlocks][kD / 8][4] = {}, top[kBlocks][2], weight[kBlocks][2] = {};
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) top[m][0] = top[m][1] = -CUDART_INF_F;

  for (int start = 0; start < end; start += kKeys) {
    const int slot = start / kKeys % 2;
    const float k_scale = k_scales[start / kKeys];
    const KeyTile k_tile{k_slots + slot * kKeyBytes};
    const ValueTile v_tile{v_slots + slot * kValueBytes};
    copy_wait<0>();
    __syncthreads();  // the tile is there for all, and the other slot has been read
    if (start + kKeys < end) bring(start + kKeys, slot ^ 1);

    int scores[kBlocks][kKeys / 8][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[m][n][e] = kInt8Zero;
#pragma unroll
    for (int c = 0; c < kD / 32; ++c)
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t right[4];
        k_tile.load_right_rows(right, n * 16, c);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add_s8(scores[m][2 * n], q[m][c], right[0], right[1]);
          multiply_add_s8(scores[m][2 * n + 1], q[m][c], right[2], right[3]);
        }
      }
    float s[kBlocks][kKeys / 8][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = __int_as_float(scores[m][n][e]);

    // Keys beyond the sequence or, if causal, after the query.
    if (start + kKeys > keys.count || (a.causal && start + kKeys > first + warp_row + 1)) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int j = start + n * 8 + l % 4 * 2 + e % 2;
            const int i = first + warp_row + m * 16 + l / 4 + e / 2 * 8;
            if (j >= keys.count || (a.causal && j > i)) s[m][n][e] = -CUDART_INF_F;
          }
    }

    // Online softmax in powers of two; a lane's share of each row's sum is added up at the end.
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = s[m][0][2 * r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          high = fmaxf(high, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        // Rows that do not exist have scale 0, which would make infinity times 0.
        const float scale = fmaxf(q_scale[m][r] * k_scale, 1e-37f);
        high = fmaxf((high - kInt8Offset) * scale, top[m][r]);
        const float base = high == -CUDART_INF_F ? 0.0f : high;  // no key seen yet
        const float shift = fmaf(kInt8Offset, scale, base);
        const float shrink = exp2_fast(top[m][r] - base);
        top[m][r] = high;
        float w = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            s[m][n][e] = exp2_fast(fmaf(s[m][n][e], scale, -shift));
            w += s[m][n][e];
          }
        weight[m][r] = weight[m][r] * shrink + w;
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
          sum[m][n][2 * r] *= shrink;
          sum[m][n][2 * r + 1] *= shrink;
        }
      }
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      uint32_t left[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) to_left<T>(left[m], s[m][2 * c], s[m][2 * c + 1]);
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t right[4];
        v_tile.load_right_columns(right, c * 16, n);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add<T>(sum[m][2 * n], left[m], right[0], right[1]);
          multiply_add<T>(sum[m][2 * n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }
  __syncthreads();  // the slots of values have been read

  const float* mean = p.means + (sequence * a.kv_heads + kv) * kD;
  float* lse = static_cast<float*>(a.lse) + head * a.q_rows + queries.first;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    const int row = first + warp_row + m * 16;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + l / 4 + 8 * r;
      float w = weight[m][r], common = 0.0f;  // common: q . mean, left out of every score
      if (i < queries.count && keys.count > 0) {
        const T* from = row_of<T>(a.q, queries.first + i, a.q_stride, head, kD);
#pragma unroll 4
        for (int d = l % 4; d < kD; d += 4) common += to_float(from[d]) * mean[d];
      }
      w += __shfl_xor_sync(~0u, w, 1);
      w += __shfl_xor_sync(~0u, w, 2);
      common += __shfl_xor_sync(~0u, common, 1);
      common += __shfl_xor_sync(~0u, common, 2);
      factor[r] = w > 0.0f ? 1.0f / w : 0.0f;
      if (l % 4 == 0 && i < queries.count)
        lse[i] = w > 0.0f ? top[m][r] * kLn2 + logf(w) + a.scale * common : -CUDART_INF_F;
    }
    write_rows<T, kD>(row_of<T>(a.o, queries.first + row, a.o_stride, head, kD), a.o_stride,
                      queries.count - row, shared, warp_row + m * 16, sum[m], factor[0], factor[1]);
  }
#endif
}

}  // namespace saturate::kernels::attention
