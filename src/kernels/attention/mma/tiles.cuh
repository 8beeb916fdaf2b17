// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernels for features and all head sizes: rows of kD elements that count, padded
// to whole groups of 64, and the products of a warp's 16 rows with them.
//
// The layout is chunk_at's; here the addresses are written so that what a lane adds to them is one
// register a tile and the rest constants: these kernels have no registers to spare.
#pragma once
#include "kernels/attention/mma/device.cuh"

namespace saturate::kernels::attention {

// Elements of a tile's row.
constexpr int pitch_of(int size) { return (size + 63) / 64 * 64; }

// Where the elements of a head, in chunks of 8, lie in a tile's row: from its begin, or with
// `split` one half of them from its begin and one from its middle. Columns without one are zero.
struct HeadColumns {
  int chunks;
  bool split;
  __device__ int64_t elements() const { return int64_t{8} * chunks; }
  // Which of the head's chunks lies at `chunk` of a row for kD elements; -1: none.
  template <int kD>
  __device__ __forceinline__ int source(int chunk) const {
    if (!split) return chunk < chunks ? chunk : -1;
    const int in_half = chunk < kD / 16 ? chunk : chunk - kD / 16;
    if (in_half >= chunks / 2) return -1;
    return chunk < kD / 16 ? in_half : in_half + chunks / 2;
  }
};
__device__ __forceinline__ HeadColumns head_columns(const AttentionArgs& a, bool rotates) {
  return {static_cast<int>(a.head_size) / 8, rotates};
}
__device__ __forceinline__ HeadColumns value_columns(const AttentionArgs& a) {
  return {static_cast<int>(a.v_head_size == 0 ? a.head_size : a.v_head_size) / 8, false};
}

template <int kD>
struct Tile {
  static constexpr int kPitch = pitch_of(kD), kRowBytes = kPitch * 2;

  uint32_t at;  // shared address, a multiple of 128

  static constexpr int bytes(int rows) { return rows * kRowBytes; }

  // Starts copying kRows rows of a head; rows from `valid` on become zero and are not read.
  // Finished after copy_commit and copy_wait, for all after a barrier.
  template <int kRows, int kThreads, class T>
  __device__ __forceinline__ void copy(const T* src, int64_t stride, int valid,
                                       HeadColumns columns) const {
    constexpr int kStep = kThreads / 8;  // rows at once: eight threads a row
    static_assert(kStep % 8 == 0 && kRows % kStep == 0);
    const int row = static_cast<int>(threadIdx.x) / 8, in_group = static_cast<int>(threadIdx.x) % 8;
    const uint32_t to = at + row * kRowBytes + (in_group ^ (row & 7)) * 16;
    const T* from = src + row * stride;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
#pragma unroll
      for (int group = 0; group < kPitch / 64; ++group) {
        const int source = columns.template source<kD>(group * 8 + in_group);
        const bool read = row + i * kStep < valid && source >= 0;
        copy_chunk(to + i * kStep * kRowBytes + group * 128, read ? from + source * 8 : src,
                   read ? 16 : 0);
      }
      from += kStep * stride;
    }
  }

  // As the functions of mma.cuh of these names, with rows and columns that are constants.
  __device__ __forceinline__ void load_left(uint32_t (&f)[4], int row, int k) const {
    load_matrices(f, across(lane() % 16, lane() / 16, row, k));
  }
  __device__ __forceinline__ void load_right_rows(uint32_t (&f)[4], int row, int k) const {
    const int l = lane();
    load_matrices(f, across(l % 8 + l / 16 * 8, l / 8 % 2, row, k));
  }
  __device__ __forceinline__ void load_right_columns(uint32_t (&f)[4], int row, int n) const {
    load_matrices_transposed(f, across(lane() % 16, lane() / 16, row, n));
  }
  // The tile that begins `row` rows further.
  __device__ Tile from_row(int row) const { return {at + row * kRowBytes}; }

  // Writes a warp's 16 rows of accumulators times `factor` (of the upper and lower row of each
  // lane) to memory through the first 16 rows of this tile at `bytes`, which no other warp may use.
  template <class T>
  static __device__ __forceinline__ void write(unsigned char* bytes, T* dst, int64_t stride,
                                               int rows, HeadColumns columns,
                                               const float (&c)[kD / 8][4], float upper,
                                               float lower) {
    const int l = lane();
    __syncwarp();  // the warp's fragments of these rows have been read
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      unsigned char* to = bytes + chunk_at<kPitch>(l / 4, n) + l % 4 * 4;
      *reinterpret_cast<uint32_t*>(to) = pack<T>(c[n][0] * upper, c[n][1] * upper);
      *reinterpret_cast<uint32_t*>(to + 8 * kRowBytes) = pack<T>(c[n][2] * lower, c[n][3] * lower);
    }
    __syncwarp();  // the rows are complete
#pragma unroll 4
    for (int e = l; e < 16 * (kPitch / 8); e += 32) {
      const int row = e / (kPitch / 8), chunk = e % (kPitch / 8);
      const int source = chunk < kD / 8 ? columns.template source<kD>(chunk) : -1;
      if (row < rows && source >= 0)
        *reinterpret_cast<uint4*>(dst + row * stride + source * 8) =
            *reinterpret_cast<const uint4*>(bytes + chunk_at<kPitch>(row, chunk));
    }
  }

 private:
  // Address of chunk 2 k + half of row (row + own), where own and half are the lane's.
  __device__ __forceinline__ uint32_t across(int own, int half, int row, int k) const {
    const uint32_t base = at + own * kRowBytes + (half ^ (own & 7)) * 16;
    return (base ^ (k % 4 * 32)) + k / 4 * 128 + row * kRowBytes;
  }
};

// The left fragments of a warp's 16 rows, in registers if kKeep, else read from the tile at each
// use.
template <int kD, bool kKeep>
struct LeftTile {
  Tile<kD> tile;
  uint32_t kept[kKeep ? kD / 16 : 1][4];

  __device__ __forceinline__ void load() {
    if constexpr (kKeep)
#pragma unroll
      for (int c = 0; c < kD / 16; ++c) tile.load_left(kept[c], 0, c);
  }
  __device__ __forceinline__ void get(uint32_t (&f)[4], int c) const {
    if constexpr (kKeep) {
#pragma unroll
      for (int i = 0; i < 4; ++i) f[i] = kept[c][i];
    } else {
      tile.load_left(f, 0, c);
    }
  }
};

// s (16, kCols) = left rows times the transpose of the tile's kCols rows.
template <class T, int kD, int kCols, bool kKeep>
__device__ __forceinline__ void product_rows(float (&s)[kCols / 8][4],
                                             const LeftTile<kD, kKeep>& left, Tile<kD> tile) {
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
#pragma unroll
  for (int c = 0; c < kD / 16; ++c) {
    uint32_t a[4];
    left.get(a, c);
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t b[4];
      tile.load_right_rows(b, n * 16, c);
      multiply_add<T>(s[2 * n], a, b[0], b[1]);
      multiply_add<T>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// sum (16, kD) += s (16, kCols), rounded to T, times the tile's kCols rows.
template <class T, int kD, int kCols>
__device__ __forceinline__ void add_product(float (&sum)[kD / 8][4], const float (&s)[kCols / 8][4],
                                            Tile<kD> tile) {
#pragma unroll
  for (int c = 0; c < kCols / 16; ++c) {
    uint32_t a[4];
    to_left<T>(a, s[2 * c], s[2 * c + 1]);
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
      uint32_t b[4];
      tile.load_right_columns(b, c * 16, n);
      multiply_add<T>(sum[2 * n], a, b[0], b[1]);
      multiply_add<T>(sum[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace saturate::kernels::attention
