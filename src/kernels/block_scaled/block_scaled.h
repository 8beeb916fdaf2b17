// SPDX-License-Identifier: Apache-2.0
// Operands of products in 8 and 4 bits with a scale for each block of consecutive elements. For all of it:
//
// Aliasing  none.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises.
// Order     bitwise equal run to run, and codes and scales equal on CPU and GPU.
// Errors    invalid_argument for sizes and pointers; unsupported where no implementation fits; device.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// mxfp8_*: e4m3 (up to 448) or e5m2 (up to 57344), 32 elements a block. mxfp4: e2m1 (0, 0.5, 1, 1.5, 2, 3,
// 4, 6 and their negatives), 32 a block. Scales of all three are powers of two (E8M0: 2^(code - 127), 255 NaN).
// nvfp4: e2m1, 16 a block; scales in e4m3, and one in f32 for the whole tensor.
enum class BlockFormat : uint8_t { mxfp8_e4m3, mxfp8_e5m2, mxfp4, nvfp4 };

constexpr int64_t block_size(BlockFormat f) { return f == BlockFormat::nvfp4 ? 16 : 32; }
constexpr int block_code_bits(BlockFormat f) { return f < BlockFormat::mxfp4 ? 8 : 4; }

// Bytes of the codes of a (rows, cols) matrix: rows without gaps; in 4 bits the lower half of a byte comes
// first.
constexpr int64_t block_code_bytes(BlockFormat f, int64_t rows, int64_t cols) {
  return rows * cols * block_code_bits(f) / 8;
}

// Scales lie as cuBLASLt reads them: tiles of 128 rows by 4 blocks, 512 bytes each; tiles of the same rows
// follow one another. In a tile rows r, r + 32, r + 64 and r + 96 share 16 bytes, four a row.
//
// Source    cuBLAS 13 documentation, "1D Block Scaling Factors Layout".
constexpr int64_t kScaleTileRows = 128, kScaleTileBlocks = 4;
constexpr int64_t block_scale_tiles(BlockFormat f, int64_t cols) {
  const int64_t blocks = (cols + block_size(f) - 1) / block_size(f);
  return (blocks + kScaleTileBlocks - 1) / kScaleTileBlocks;
}
// What is beside the matrix is there too, as zeros.
constexpr int64_t block_scale_bytes(BlockFormat f, int64_t rows, int64_t cols) {
  return (rows + kScaleTileRows - 1) / kScaleTileRows * block_scale_tiles(f, cols) *
         kScaleTileRows * kScaleTileBlocks;
}
// `tiles`: block_scale_tiles().
constexpr int64_t block_scale_place(int64_t row, int64_t block, int64_t tiles) {
  const int64_t tile = row / kScaleTileRows * tiles + block / kScaleTileBlocks;
  return tile * (kScaleTileRows * kScaleTileBlocks) + row % 32 * 16 +
         row % kScaleTileRows / 32 * kScaleTileBlocks + block % kScaleTileBlocks;
}

// Of a tensor in nvfp4, in device memory.
constexpr int kBlockPartials = 256;
struct alignas(16) BlockTensor {
  float scale = 0;  // x is about scale * scale of the block * value of the code
  float unused[3] = {};
  float partial[kBlockPartials] = {};  // largest |x| of parts; what lies here is the kernel's own
};

// Codes and scales of x, by blocks along its rows, and by blocks along its columns as the transposed matrix
// has them: a copy that was scaled along rows cannot be transposed.
//   mx      scale = the smallest power of two by which the block's largest |x| does not exceed the largest
//           code; code = x / scale
//   nvfp4   tensor's scale t = 1 / s, s = min(2688 / largest |x|, 2^100); 1 where all are 0;
//           scale = e4m3(largest |x| of the block / 6 * s); code = x * (s / scale), 0 where scale is 0
// each rounded to nearest even; each operation of nvfp4 in f32. A block with an infinity or a NaN has a NaN
// for its scale and codes of 0; in nvfp4 the whole tensor has.
//
// Shapes    x (rows, cols); codes as a (rows, cols) and transposed as a (cols, rows) matrix of
//           block_code_bytes(), and the scales of each of block_scale_bytes(); one of the pairs may be
//           null. cols, and with `transposed` rows, multiples of 16: the last block may be half a block.
// Types     x in f32, bf16 or f16, on the CPU f32; tensor for nvfp4 alone.
// Cost      x is read once, in nvfp4 twice; each result is written once.
// Source    OCP Microscaling Formats 1.0; scales rounded up: Mishra et al., arXiv:2506.08027; nvfp4: NVIDIA,
//           arXiv:2509.25149.
struct BlockQuantizeArgs {
  const void* x = nullptr;
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
  uint8_t* transposed = nullptr;
  uint8_t* transposed_scales = nullptr;
  BlockTensor* tensor = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  BlockFormat format = BlockFormat::mxfp8_e4m3;
};
void block_quantize(const Context& ctx, const BlockQuantizeArgs& args);

// An operand of block_matmul(), as block_quantize() makes it; tensor for nvfp4 alone.
struct BlockOperand {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const BlockTensor* tensor = nullptr;
  BlockFormat format = BlockFormat::mxfp8_e4m3;
};

// d = sum_k a[m][k] b[n][k] + bias[n] (+ c[m][n]), a and b being what their codes and scales say.
//
// Shapes    a (m, k), b (n, k), c and d (m, n), all dense; bias (n); c and bias may be null. n and k
//           multiples of 16. scratch: block_matmul_scratch_bytes(), aligned to 16.
// Types     mxfp8 with mxfp8, others with their own kind; c, d and bias in dtype: f32 on the CPU, bf16 on
//           GPUs. Sums in f32.
// Cost      2 m n k flops; on the CPU operands are decoded and multiplied in f32.
// Source    OCP Microscaling Formats 1.0; on GPUs cuBLASLt (compute capability 10.0 and newer), which has
//           no mxfp4.
struct BlockMatmulArgs {
  BlockOperand a = {}, b = {};
  const void* c = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  void* scratch = nullptr;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;
};
void block_matmul(const Context& ctx, const BlockMatmulArgs& args);
size_t block_matmul_scratch_bytes(Device device, int64_t m, int64_t n, int64_t k);

// Why a device has no products of this kind; null where it has them. The CPU has them emulated.
const char* block_refusal(Device device);

}  // namespace saturate::kernels
