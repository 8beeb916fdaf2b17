// SPDX-License-Identifier: Apache-2.0
// What a launch of the Hopper kernels gets, and their list.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace saturate::kernels::wgmma {

constexpr int kTileK = 64;  // values of k in a block: 128 bytes, one row of the swizzle

struct Problem {
  CUtensorMap a, b;
  void* out;
  const void* c;     // read when beta != 0
  const void* bias;  // (n) in the operands' type, or null
  float*
      partial;  // sums of splits 1, 2, ...: (splits - 1, m, n); launch_slopes(): of columns;
                // launch_exponentials(): of rows
  int64_t ldc, ldd;
  float alpha, beta;
  int m, n;
  int k_blocks, split_blocks;         // of 64 (tf32: 32) values: in all, and in one split
  int part_k;                         // operands in two parts: values of k from one to the next
  const uint32_t *peaks_a, *peaks_b;  // operands in two parts: what cut_in_parts() found
  int pairs_m, tiles_n;               // tiles: pairs of rows of tiles, columns of tiles
  int units;                          // pairs of tiles times splits
  int band;                           // pairs of rows that are walked together
  int classes;                        // launch_exponentials(): columns that count
};

// Tiles of products that end in work on their results: shared by both consumers where a block has few tiles, of one
// consumer each, by turns, where it has several.
constexpr int kEpilogueTileM = 128, kSharedTileN = 256, kTurnTileN = 192;

enum class Form : uint8_t { forward, input_gradient, weight_gradient };  // A B^T, A B, A^T B
enum class Shape : uint8_t { cooperative_128x256, ping_pong_128x192, cooperative_256x192 };
constexpr int kShapes = 3;
struct ShapeInfo {
  const char* name;
  int m, n;
};
constexpr ShapeInfo kShapeInfo[kShapes] = {{"cooperative 128x256", 128, 256},
                                           {"ping-pong 128x192", 128, 192},
                                           {"cooperative 256x192", 256, 192}};

// Launches on `blocks` blocks (an even number). T: __nv_bfloat16 or __half; forward and input
// gradient with results in T, weight gradient with results in f32 (instances:
// cmake/gemm_instances.cmake). Returns the launch's error.
template <class T, Form kForm>
cudaError_t launch_form(Shape shape, const Problem& p, int blocks, cudaStream_t stream);

// d (m, n) += the `count` matrices (m, n) of `partial`, in order; n is even, rows of d 8-byte
// aligned.
void add_partials(const float* partial, int count, float* d, int64_t ldd, int m, int n,
                  cudaStream_t stream);

// An fp32 operand: k along its rows (k_major) or along its columns.
struct PartsIn {
  const float* data;
  bool k_major;
  int64_t rows, cols, ld;
};
// Its two fp16 parts, (rows, cols) each with zeros where the operand ends; the second begins `part`
// elements behind `data`, rows are `ld` apart. cols, ld and part are multiples of 4, data of 8 bytes.
struct PartsOut {
  void* data;
  int64_t rows, cols, ld, part;
};
// `peaks` gets the bits of the largest magnitude of each row (k_major) or column, which the parts are scaled by. Two
// launches more where k goes along the columns. Returns the launches' error.
cudaError_t cut_in_parts(const PartsIn& from, const PartsOut& to, uint32_t* peaks,
                         cudaStream_t stream);
// The product of operands in two parts, in square tiles; results, C and bias in fp32.
constexpr int kPartsTile = 128;
cudaError_t launch_parts(Form form, const Problem& p, int blocks, cudaStream_t stream);

// fp32 operands, both with k innermost and rounded to tf32 by their maps; results, C and bias in
// fp32. Tiles and blocks of k as here.
constexpr int kTf32TileM = 128, kTf32TileN = 256, kTf32TileK = 32;
cudaError_t launch_tf32(const Problem& p, int blocks, cudaStream_t stream);
// to (columns, rows) with `ld_to` = from (rows, columns)^T.
void transpose_f32(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to,
                   int64_t ld_to, cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
