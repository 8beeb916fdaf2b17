// SPDX-License-Identifier: Apache-2.0
// fp32 products on the bf16 tensor cores. A value is cut in three bf16 parts, x = h + m + l to 24
// bits; of the nine products of parts the six largest are added up, the smallest first, which
// leaves out less than 2^-23 of the product. Tensor cores cut sums off instead of rounding them, so
// sums over many keys are made of short ones, added in fp32.
#pragma once
#include "kernels/attention/mma/device.cuh"

namespace saturate::kernels::attention {

constexpr int kParts = 3;

// Two neighbouring values, cut; the first in the low halves.
__device__ __forceinline__ void cut(uint32_t (&parts)[kParts], float x, float y) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    parts[i] = pack<__nv_bfloat16>(x, y);
    if (i + 1 < kParts) {
      x -= __uint_as_float(parts[i] << 16);
      y -= __uint_as_float(parts[i] & 0xFFFF0000u);
    }
  }
}

// Two neighbouring accumulators (16 x 16), cut, as left operands.
__device__ __forceinline__ void cut_left(uint32_t (&f)[kParts][4], const float (&a)[4],
                                         const float (&b)[4]) {
  const float pairs[4][2] = {{a[0], a[1]}, {a[2], a[3]}, {b[0], b[1]}, {b[2], b[3]}};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    uint32_t parts[kParts];
    cut(parts, pairs[e][0], pairs[e][1]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) f[i][e] = parts[i];
  }
}

// kRows rows of kD fp32 values on their way to the three tiles of a matrix: fetch() starts reading
// them into registers, put() cuts and stores them. Rows from `valid` on are zero and not read.
template <int kD, int kRows, int kThreads>
struct CutTile {
  static constexpr int kChunks = kRows * kD / 8, kEach = (kChunks + kThreads - 1) / kThreads;
  static constexpr uint32_t kBytes = kRows * kD * 2;  // of one part
  float4 value[kEach][2];

  static __device__ __forceinline__ int chunk(int n) {
    return n * kThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ void fetch(const float* src, int64_t stride, int valid) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int row = chunk(n) / (kD / 8), column = chunk(n) % (kD / 8) * 8;
      value[n][0] = value[n][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row < valid && (kChunks % kThreads == 0 || chunk(n) < kChunks)) {
        const auto* from = reinterpret_cast<const float4*>(src + row * stride + column);
        value[n][0] = from[0], value[n][1] = from[1];
      }
    }
  }
  __device__ __forceinline__ void put(unsigned char* tile) const {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      if (kChunks % kThreads != 0 && chunk(n) >= kChunks) break;
      const uint32_t at = chunk_at<kD>(chunk(n) / (kD / 8), chunk(n) % (kD / 8));
      uint32_t parts[4][kParts];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        cut(parts[2 * h], value[n][h].x, value[n][h].y);
        cut(parts[2 * h + 1], value[n][h].z, value[n][h].w);
      }
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        *reinterpret_cast<uint4*>(tile + i * kBytes + at) =
            make_uint4(parts[0][i], parts[1][i], parts[2][i], parts[3][i]);
    }
  }
};

// c[n] += a b[n] for kN / 8 neighbouring columns; b as load_right_* gives it for 16 each. The
// products of one pair of parts follow one another, so that no product waits for the last.
template <int kN>
__device__ __forceinline__ void multiply_cut(float (&c)[kN / 8][4], const uint32_t (&a)[kParts][4],
                                             const uint32_t (&b)[kParts][kN / 16][4]) {
  constexpr int kPairs[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
#pragma unroll
  for (int p = 0; p < 6; ++p)
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      const uint32_t(&right)[4] = b[kPairs[p][1]][n];
      multiply_add<__nv_bfloat16>(c[2 * n], a[kPairs[p][0]], right[0], right[1]);
      multiply_add<__nv_bfloat16>(c[2 * n + 1], a[kPairs[p][0]], right[2], right[3]);
    }
}

// Columns of a product of kCols that are computed together: that many independent sums keep the
// tensor cores busy.
constexpr int together(int cols) { return cols < 32 ? cols : 32; }

// s (16, kCols) = 16 rows from `row` of the left tile times the transpose of kCols rows of the
// right one.
template <int kD, int kCols>
__device__ __forceinline__ void product_rows_cut(float (&s)[kCols / 8][4], uint32_t left,
                                                 uint32_t left_bytes, int row, uint32_t right,
                                                 uint32_t right_bytes) {
  constexpr int kTogether = together(kCols);
#pragma unroll
  for (int g = 0; g < kCols / kTogether; ++g) {
    float part[kTogether / 8][4] = {};
#pragma unroll
    for (int c = 0; c < kD / 16; ++c) {
      uint32_t a[kParts][4], b[kParts][kTogether / 16][4];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        load_left<kD>(a[i], left + i * left_bytes, row, c);
#pragma unroll
        for (int n = 0; n < kTogether / 16; ++n)
          load_right_rows<kD>(b[i][n], right + i * right_bytes, g * kTogether + n * 16, c);
      }
      multiply_cut<kTogether>(part, a, b);
    }
#pragma unroll
    for (int n = 0; n < kTogether / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[g * kTogether / 8 + n][e] = part[n][e];
  }
}

// sum (16, kD) = sum * factor (of the upper and the lower row) + s (16, kCols), as left operands,
// times the tile's kCols rows.
template <int kD, int kCols>
__device__ __forceinline__ void add_product_cut(float (&sum)[kD / 8][4],
                                                const uint32_t (&s)[kCols / 16][kParts][4],
                                                uint32_t tile, uint32_t bytes, float upper,
                                                float lower) {
  constexpr int kTogether = together(kD);
#pragma unroll
  for (int g = 0; g < kD / kTogether; ++g) {
    float part[kTogether / 8][4] = {};
#pragma unroll
    for (int c = 0; c < kCols / 16; ++c) {
      uint32_t b[kParts][kTogether / 16][4];
#pragma unroll
      for (int i = 0; i < kParts; ++i)
#pragma unroll
        for (int n = 0; n < kTogether / 16; ++n)
          load_right_columns<kD>(b[i][n], tile + i * bytes, c * 16, g * kTogether / 16 + n);
      multiply_cut<kTogether>(part, s[c], b);
    }
#pragma unroll
    for (int n = 0; n < kTogether / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& to = sum[g * kTogether / 8 + n][e];
        to = to * (e < 2 ? upper : lower) + part[n][e];
      }
  }
}

// Writes a warp's 16 rows of sums times `upper` and `lower` (rows of each lane) to memory; `rows`
// are valid.
template <int kD>
__device__ __forceinline__ void write_rows_f32(float* dst, int64_t stride, int rows,
                                               const float (&c)[kD / 8][4], float upper,
                                               float lower) {
  const int l = lane();
#pragma unroll
  for (int n = 0; n < kD / 8; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = l / 4 + 8 * r;
      const float factor = r == 0 ? upper : lower;
      if (row < rows)
        *reinterpret_cast<float2*>(dst + row * stride + n * 8 + l % 4 * 2) =
            make_float2(c[n][2 * r] * factor, c[n][2 * r + 1] * factor);
    }
}

}  // namespace saturate::kernels::attention
