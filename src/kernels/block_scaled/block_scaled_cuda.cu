// SPDX-License-Identifier: Apache-2.0
// No instruction of Blackwell: what it makes can be compared with the CPU's on any GPU.
#include <cuda_fp8.h>

#include "kernels/block_scaled/block_scaled_codes.h"
#include "kernels/block_scaled/block_scaled_impl.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 16;  // elements of a thread: a block of nvfp4, half of one of the others
constexpr int kTile = 64;  // rows and columns of a tile
constexpr int kParts = kTile / kEach;

// Bits of |x| order as numbers do, infinity and NaN above all; the largest does not depend on the order.
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
__device__ __forceinline__ uint32_t size_of_bits(float x) { return __float_as_uint(fabsf(x)); }

// All threads of the block must call; each gets the result.
__device__ __forceinline__ uint32_t largest_of_block(uint32_t own) {
  __shared__ uint32_t of_warps[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    own = larger(own, __shfl_xor_sync(0xFFFFFFFFu, own, offset));
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = own;
  __syncthreads();  // all warps' values are there
  for (int i = 0; i < kThreads / kWarp; ++i) own = larger(own, of_warps[i]);
  return own;
}

template <class T>
__global__ void __launch_bounds__(kThreads) block_tensor_amax_kernel(BlockQuantizeArgs x) {
  const T* const in = static_cast<const T*>(x.x);
  const int64_t count = x.rows * x.cols;
  uint32_t most = 0;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count;
       i += int64_t{gridDim.x} * kThreads * kEach) {
    float v[kEach];
    load(v, in + i);
    for (float e : v) most = larger(most, size_of_bits(e));
  }
  most = largest_of_block(most);
  if (threadIdx.x == 0) x.tensor->partial[blockIdx.x] = __uint_as_float(most);
}

__device__ __forceinline__ float e4m3_value(uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(__half(half));
}

struct alignas(16) Codes8 {
  uint8_t v[kEach];
};
struct alignas(8) Codes4 {
  uint8_t v[kEach / 2];
};

// Which matrix a thread's 16 elements are of: (outer, inner) with its codes and scales.
struct Side {
  int64_t outer, inner;
  uint8_t* codes;
  uint8_t* scales;
};

// Scale and codes of 16 elements from (at_outer, at_inner) on; zeros beside the matrix, where `v` is 0 too.
// All threads of a warp must call, neighbours with the halves of a block of 32.
__device__ __forceinline__ void write(const Side& s, int64_t at_outer, int64_t at_inner,
                                      const float (&v)[kEach], BlockFormat f, float encode) {
  const bool is_nv = f == BlockFormat::nvfp4;
  uint32_t bits = 0;
  for (float e : v) bits = larger(bits, size_of_bits(e));
  if (!is_nv) bits = larger(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, 1));
  const float amax = __uint_as_float(bits);
  uint8_t scale = 0;
  float factor = 0.0f;
  bool bad = false;
  if (is_nv) {
    scale = __nv_cvt_float_to_fp8(amax / 6.0f * encode, __NV_SATFINITE, __NV_E4M3) & 0x7F;
    bad = scale == kE4m3NaN;
    if (scale != 0 && !bad) factor = encode / e4m3_value(scale);
  } else {
    scale = e8m0_for(amax, f);
    bad = scale == kE8m0NaN;
    if (!bad) factor = e8m0_reciprocal(scale);
  }
  const bool inside = at_outer < s.outer && at_inner < s.inner;
  const int64_t size = block_size(f), tiles = block_scale_tiles(f, s.inner),
                block = at_inner / size;
  const int64_t rows = (s.outer + kScaleTileRows - 1) / kScaleTileRows * kScaleTileRows;
  if (at_inner % size == 0 && at_outer < rows && block < tiles * kScaleTileBlocks)
    s.scales[block_scale_place(at_outer, block, tiles)] = inside ? scale : uint8_t{0};
  if (!inside) return;
  const int64_t at = at_outer * s.inner + at_inner;
  if (block_code_bits(f) == 8) {
    const __nv_fp8_interpretation_t to = f == BlockFormat::mxfp8_e5m2 ? __NV_E5M2 : __NV_E4M3;
    Codes8 c;
#pragma unroll
    for (int i = 0; i < kEach; i += 2) {
      const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(
          make_float2(bad ? 0.0f : v[i] * factor, bad ? 0.0f : v[i + 1] * factor), __NV_SATFINITE,
          to);
      c.v[i] = static_cast<uint8_t>(pair & 0xFF);
      c.v[i + 1] = static_cast<uint8_t>(pair >> 8);
    }
    *reinterpret_cast<Codes8*>(s.codes + at) = c;
    return;
  }
  Codes4 c;
#pragma unroll
  for (int i = 0; i < kEach; i += 2) {
    const uint8_t low = e2m1_encode(bad ? 0.0f : v[i] * factor),
                  high = e2m1_encode(bad ? 0.0f : v[i + 1] * factor);
    c.v[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
  *reinterpret_cast<Codes4*>(s.codes + at / 2) = c;
}

// A block has a tile; each thread 16 elements of a row, then 16 of a column. The grid covers the scales'
// tiles too, which may reach beyond the matrix.
template <class T>
__global__ void __launch_bounds__(kThreads)
    block_quantize_kernel(BlockQuantizeArgs x, int64_t tiles_across) {
  __shared__ float tile[kTile][kTile + 1];
  const T* const in = static_cast<const T*>(x.x);
  float encode = 1.0f;
  if (x.format == BlockFormat::nvfp4) {
    const uint32_t own = __float_as_uint(x.tensor->partial[threadIdx.x]);
    encode = nvfp4_encode_scale(__uint_as_float(largest_of_block(own)));
    if (blockIdx.x == 0 && threadIdx.x == 0) x.tensor->scale = 1.0f / encode;
  }
  const int64_t row0 = blockIdx.x / tiles_across * kTile, col0 = blockIdx.x % tiles_across * kTile;
  const int line = threadIdx.x / kParts, part = threadIdx.x % kParts * kEach;
  float v[kEach] = {};
  if (row0 + line < x.rows && col0 + part < x.cols)
    load(v, in + (row0 + line) * x.cols + col0 + part);
  if (x.codes != nullptr)
    write({x.rows, x.cols, x.codes, x.scales}, row0 + line, col0 + part, v, x.format, encode);
  if (x.transposed == nullptr) return;
  for (int i = 0; i < kEach; ++i) tile[line][part + i] = v[i];
  __syncthreads();  // the tile is whole
  for (int i = 0; i < kEach; ++i) v[i] = tile[part + i][line];
  write({x.cols, x.rows, x.transposed, x.transposed_scales}, col0 + line, row0 + part, v, x.format,
        encode);
}

__global__ void block_factors_kernel(const BlockTensor* a, const BlockTensor* b, float beta,
                                     float* factors) {
  factors[0] = a->scale * b->scale;
  factors[1] = beta;
}

}  // namespace

void block_quantize_cuda(const Context& ctx, const BlockQuantizeArgs& x) {
  static_assert(kThreads == kTile * kParts && kThreads == kBlockPartials);
  static_assert(kScaleTileRows % kTile == 0 && 4 * 32 % kTile == 0);
  const cudaStream_t stream = cuda::stream_of(ctx);
  // Tiles of scales are of 128 rows and of 64 or 128 columns, in both directions.
  const auto across = [](int64_t size) { return (size + 127) / 128 * 2; };
  const int64_t tiles_across = across(x.cols), blocks = tiles_across * across(x.rows);
  with_device_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (x.format == BlockFormat::nvfp4) {
      block_tensor_amax_kernel<T><<<kBlockPartials, kThreads, 0, stream>>>(x);
      SAT_CUDA_LAUNCHED("block_tensor_amax_kernel");
    }
    block_quantize_kernel<T>
        <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, tiles_across);
    SAT_CUDA_LAUNCHED("block_quantize_kernel");
  });
}

void block_factors_cuda(const Context& ctx, const BlockTensor* a, const BlockTensor* b, float beta,
                        float* factors) {
  block_factors_kernel<<<1, 1, 0, cuda::stream_of(ctx)>>>(a, b, beta, factors);
  SAT_CUDA_LAUNCHED("block_factors_kernel");
}

}  // namespace saturate::kernels
