// SPDX-License-Identifier: Apache-2.0
// fp32 products of square tiles in shared memory by 16 x 16 threads, for the plain kernels.
//
// Thread (x, y) holds rows y + 16 m and, of a score tile, columns x + 16 n; of a tile as wide as
// the head, columns 4 x + 64 n. Rows are padded by 4 floats: 16-byte reads of 8 neighbouring rows
// then touch all 32 banks once.
#pragma once
#include "kernels/attention/device.cuh"
#include "kernels/attention/dropout.h"

namespace saturate::kernels::attention {

constexpr int kPlainThreads = 256;
constexpr int kPad = 4;

// Dropout of one element at a time. Made once a thread, because it reads the counters from device
// memory; without dropout it reads nothing.
struct PlainDropout {
  const AttentionArgs& a;
  uint64_t seed = 0, micro_step = 0;
  uint32_t least = 0;
  float scale = 1.0f;

  __device__ __forceinline__ explicit PlainDropout(const AttentionArgs& args) : a(args) {
    if (a.dropout == 0.0f) return;
    seed = a.rng.state[0], micro_step = a.rng.state[1];
    least = attention_dropout_least(a.dropout);
    scale = 1.0f / (1.0f - a.dropout);
  }
  // What p[i][j] is multiplied with; first_row: of the sequence's queries.
  __device__ __forceinline__ float factor(int head, int first_row, int i, int j) const {
    if (least == 0) return scale;
    const int64_t first = head * a.rng.rows + a.rng.first_row + first_row;
    return keeps(seed, micro_step, a.rng.site, least, first, i, j) ? scale : 0.0f;
  }
  // Not inlined: the numbers of a thread's 16 elements side by side would fill the registers.
  static __device__ __noinline__ bool keeps(uint64_t seed, uint64_t micro_step, uint32_t op,
                                            uint32_t least, int64_t first_row, int i, int j) {
    return attention_dropout_keeps(seed, micro_step, op, least, first_row, i, j);
  }
};

// kD: head size rounded up to 64, 128 or 256 (columns beyond the true size are zero); kB: tile
// rows.
template <int kD, int kB>
struct PlainTile {
  static constexpr int kM = kB / 16;  // rows, and score columns, of one thread
  static constexpr int kN = kD / 64;  // groups of four head columns of one thread
  static constexpr int kLd = kD + kPad, kScoreLd = kB + kPad;
  static constexpr int kFloats = kB * kLd, kScoreFloats = kB * kScoreLd;

  static __device__ int x() { return static_cast<int>(threadIdx.x) % 16; }
  static __device__ int y() { return static_cast<int>(threadIdx.x) / 16; }

  // Rows beyond `rows` and columns beyond head_size become zero.
  template <class T>
  static __device__ void load(float* dst, const T* src, int64_t stride, int rows, int head_size) {
    for (int e = static_cast<int>(threadIdx.x); e < kB * kD; e += kPlainThreads) {
      const int r = e / kD, d = e % kD;
      dst[r * kLd + d] = r < rows && d < head_size ? to_float(src[r * stride + d]) : 0.0f;
    }
  }

  // sum[m][n] = row (y + 16 m) of a . row (x + 16 n) of b.
  static __device__ void dots(const float* a, const float* b, float (&sum)[kM][kM]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kM; ++n) sum[m][n] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < kD; d += 4) {
      float4 av[kM], bv[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        av[m] = *reinterpret_cast<const float4*>(a + (y() + 16 * m) * kLd + d);
        bv[m] = *reinterpret_cast<const float4*>(b + (x() + 16 * m) * kLd + d);
      }
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kM; ++n)
          sum[m][n] +=
              av[m].x * bv[n].x + av[m].y * bv[n].y + av[m].z * bv[n].z + av[m].w * bv[n].w;
    }
  }

  static __device__ void put_scores(float* tile, const float (&s)[kM][kM]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kM; ++n) tile[(y() + 16 * m) * kScoreLd + x() + 16 * n] = s[m][n];
  }

  // sum[m][n] += row (y + 16 m) of the score tile s times v.
  static __device__ void add_product(const float* s, const float* v, float4 (&sum)[kM][kN]) {
#pragma unroll 4
    for (int j = 0; j < kB; ++j) {
      float4 vv[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n)
        vv[n] = *reinterpret_cast<const float4*>(v + j * kLd + 4 * x() + 64 * n);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float w = s[(y() + 16 * m) * kScoreLd + j];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          sum[m][n].x += w * vv[n].x;
          sum[m][n].y += w * vv[n].y;
          sum[m][n].z += w * vv[n].z;
          sum[m][n].w += w * vv[n].w;
        }
      }
    }
  }

  // Rows y + 16 m of the tile = sum * factor[m].
  static __device__ void put_rows(float* tile, const float4 (&sum)[kM][kN],
                                  const float (&factor)[kM]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float4 v = sum[m][n];
        const float f = factor[m];
        *reinterpret_cast<float4*>(tile + (y() + 16 * m) * kLd + 4 * x() + 64 * n) = {
            v.x * f, v.y * f, v.z * f, v.w * f};
      }
  }

  // dst[row][d] = sum * factor[m] for the rows below `rows`; dst points at the tile's first row.
  template <class T>
  static __device__ void write(T* dst, int64_t stride, int rows, int head_size,
                               const float4 (&sum)[kM][kN], const float (&factor)[kM]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int r = y() + 16 * m;
      if (r >= rows) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float value[4] = {sum[m][n].x, sum[m][n].y, sum[m][n].z, sum[m][n].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int d = 4 * x() + 64 * n + i;
          if (d < head_size) dst[r * stride + d] = from_float<T>(value[i] * factor[m]);
        }
      }
    }
  }
};

// Calls body with a tile for the head size; smem of three tiles and one of scores stays below the
// 64 KiB that compute capability 7.5 grants a block.
template <class Body>
void with_plain_tile(int64_t head_size, const Body& body) {
  if (head_size <= 64) return body(PlainTile<64, 32>{});
  if (head_size <= 128) return body(PlainTile<128, 32>{});
  body(PlainTile<256, 16>{});
}

}  // namespace saturate::kernels::attention
