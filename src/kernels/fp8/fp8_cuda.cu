// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp8.h>

#include "kernels/activation/activation_curve.cuh"
#include "kernels/device/eight.cuh"
#include "kernels/device/fold_columns.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/fp8/fp8_codes.h"
#include "kernels/fp8/fp8_impl.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = kEight;  // elements of a thread at once: 16 bytes of a 16-bit type
constexpr int kTile = 128;     // rows and columns of a block's tile
constexpr int kPieces = kTile / kEach, kLines = kThreads / kPieces, kPasses = kTile / kLines;
constexpr unsigned kFirstBlocks = 132;

// Bits of |x| order as numbers do, infinity and NaN above all; the largest does not depend on the order.
__device__ __forceinline__ unsigned larger(unsigned most, float x) {
  const unsigned a = __float_as_uint(fabsf(x));
  return a > most ? a : most;
}

// All threads call. What others have raised is looked at first: an atomic access of every block to one
// address takes longer than the tile.
__device__ __forceinline__ void raise(float* amax, unsigned most) {
  __shared__ unsigned of_warp[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const unsigned other = __shfl_xor_sync(0xFFFFFFFFu, most, offset);
    most = other > most ? other : most;
  }
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const unsigned other : of_warp) most = other > most ? other : most;
  auto* const to = reinterpret_cast<unsigned*>(amax);
  if (most > *static_cast<volatile unsigned*>(to)) atomicMax(to, most);
}

template <ActivationKind kKind, class T, Fp8Prepare kPrepare>
__device__ __forceinline__ void prepare_as(float (&v)[kEach], const Eight<T>& given) {
  if constexpr (kPrepare == Fp8Prepare::activation) {
#pragma unroll
    for (float& e : v) e = curve<kKind>(e).value;
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] *= curve<kKind>(given.at(i)).slope;
  }
}

// v becomes what is rounded of the elements x; given: what the activation was given of them.
template <class T, Fp8Prepare kPrepare>
__device__ __forceinline__ void prepare(float (&v)[kEach], const Eight<T>& x, const Eight<T>& given,
                                        ActivationKind kind) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) v[i] = x.at(i);
  if constexpr (kPrepare == Fp8Prepare::nothing) return;
  switch (kind) {  // the same for all threads
    case ActivationKind::relu:
      return prepare_as<ActivationKind::relu, T, kPrepare>(v, given);
    case ActivationKind::gelu_tanh:
      return prepare_as<ActivationKind::gelu_tanh, T, kPrepare>(v, given);
    case ActivationKind::gelu_erf:
      return prepare_as<ActivationKind::gelu_erf, T, kPrepare>(v, given);
    case ActivationKind::silu:
      return prepare_as<ActivationKind::silu, T, kPrepare>(v, given);
    case ActivationKind::identity:
      return prepare_as<ActivationKind::identity, T, kPrepare>(v, given);
  }
}

template <class T, Fp8Prepare kPrepare>
__global__ void __launch_bounds__(kThreads) fp8_first_amax_kernel(Fp8QuantizeArgs x) {
  if (x.site->scale > 0.0f) return;
  const int64_t count = x.rows * x.cols;
  unsigned most = 0;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count;
       i += int64_t{gridDim.x} * kThreads * kEach) {
    float v[kEach];
    Eight<T> in, given;
    in.read(static_cast<const T*>(x.x) + i);
    if constexpr (kPrepare == Fp8Prepare::slope) given.read(static_cast<const T*>(x.given) + i);
    prepare<T, kPrepare>(v, in, given, x.activation);
    for (float e : v) most = larger(most, e);
  }
  raise(&x.site->amax, most);
}

__device__ __forceinline__ uint2 encode(const float (&v)[kEach], float scale, Fp8Format format) {
  const __nv_fp8_interpretation_t to = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  uint32_t pairs[kEach / 2];
#pragma unroll
  for (int i = 0; i < kEach / 2; ++i)
    pairs[i] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * i] * scale, v[2 * i + 1] * scale),
                                        __NV_SATFINITE, to);
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// Where four codes of a row of the tile lie in shared memory: moved along by the group of 16 rows, so that
// neither a warp's pieces of two rows nor its columns of eight groups meet in a bank.
__device__ __forceinline__ int word_at(int row, int word) {
  return row * (kTile / 4) + (word + row / 16 * 4) % (kTile / 4);
}

// 16 rows of four columns, a word a row, become 16 bytes a column.
__device__ __forceinline__ void turn(const uint32_t (&rows)[16], uint4 (&columns)[4]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const uint32_t a = rows[q * 4], b = rows[q * 4 + 1], c = rows[q * 4 + 2], d = rows[q * 4 + 3];
    const uint32_t ab0 = __byte_perm(a, b, 0x5140), ab1 = __byte_perm(a, b, 0x7362);
    const uint32_t cd0 = __byte_perm(c, d, 0x5140), cd1 = __byte_perm(c, d, 0x7362);
    reinterpret_cast<uint32_t*>(&columns[0])[q] = __byte_perm(ab0, cd0, 0x5410);
    reinterpret_cast<uint32_t*>(&columns[1])[q] = __byte_perm(ab0, cd0, 0x7632);
    reinterpret_cast<uint32_t*>(&columns[2])[q] = __byte_perm(ab1, cd1, 0x5410);
    reinterpret_cast<uint32_t*>(&columns[3])[q] = __byte_perm(ab1, cd1, 0x7632);
  }
}

// Tile (tile_x, tile_y) of a matrix by one block: each thread has eight elements of every 16th row, then 16
// codes of four columns.
template <class T, Fp8Prepare kPrepare>
__device__ __forceinline__ void round_tile(const Fp8QuantizeArgs& x, int64_t tile_x,
                                           int64_t tile_y) {
  __shared__ alignas(16) uint32_t tile[kTile * kTile / 4];
  __shared__ float line_sums[kLines][kTile];
  // Accesses of a thread under way.
  constexpr int kAtOnce = kPrepare == Fp8Prepare::slope || sizeof(T) == 4 ? 4 : kPasses;
  const float scale = fp8_scale_of(*x.site, x.scale_known, x.format);
  const int64_t row0 = tile_y * kTile, col0 = tile_x * kTile;
  const int line = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  const int64_t col = col0 + piece * kEach;
  unsigned most = 0;
  float sums[kEach] = {};
#pragma unroll
  for (int first = 0; first < kPasses; first += kAtOnce) {
    Eight<T> in[kAtOnce], given[kPrepare == Fp8Prepare::slope ? kAtOnce : 1];
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      const int64_t row = row0 + line + (first + p) * kLines;
      if (row >= x.rows || col >= x.cols) continue;
      const int64_t at = row * x.cols + col;
      in[p].read(static_cast<const T*>(x.x) + at);
      if constexpr (kPrepare == Fp8Prepare::slope)
        given[p].read(static_cast<const T*>(x.given) + at);
    }
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      const int in_tile = line + (first + p) * kLines;
      const int64_t at = (row0 + in_tile) * x.cols + col;
      if (row0 + in_tile >= x.rows || col >= x.cols) continue;
      float v[kEach];
      prepare<T, kPrepare>(v, in[p], given[kPrepare == Fp8Prepare::slope ? p : 0], x.activation);
      for (float e : v) most = larger(most, e);
      if (x.partial != nullptr) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) sums[i] += v[i];
      }
      if (x.copy != nullptr) store(static_cast<T*>(x.copy) + at, v);
      const uint2 codes = encode(v, scale, x.format);
      if (x.y != nullptr) *reinterpret_cast<uint2*>(x.y + at) = codes;
      if (x.transposed != nullptr)
        *reinterpret_cast<uint2*>(tile + word_at(in_tile, piece * 2)) = codes;
    }
  }
  if (x.partial != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) line_sums[line][piece * kEach + i] = sums[i];
  }
  raise(&x.site->amax, most);
  __syncthreads();  // the tile and the sums are whole
  if (x.partial != nullptr && threadIdx.x < kTile && col0 + threadIdx.x < x.cols) {
    float sum = 0.0f;
    for (const auto& of_line : line_sums) sum += of_line[threadIdx.x];
    x.partial[tile_y * x.cols + col0 + threadIdx.x] = sum;
  }
  if (x.transposed != nullptr) {
    const int group = threadIdx.x % 8, word = threadIdx.x / 8;
    uint32_t rows[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) rows[i] = tile[word_at(group * 16 + i, word)];
    uint4 columns[4];
    turn(rows, columns);
    const int64_t row = row0 + group * 16, c = col0 + word * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (c + j < x.cols && row < x.rows)
        *reinterpret_cast<uint4*>(x.transposed + (c + j) * x.rows + row) = columns[j];
    }
  }
  if (tile_x == 0 && tile_y == 0 && threadIdx.x == 0) x.site->inverse = 1.0f / scale;
}

template <class T, Fp8Prepare kPrepare>
__global__ void __launch_bounds__(kThreads) fp8_tiles_kernel(Fp8QuantizeArgs x) {
  round_tile<T, kPrepare>(x, blockIdx.x, blockIdx.y);
}

// Matrices of weights, whose tiles are numbered through.
constexpr int kMostMatrices = 320;  // 26 of the 32 KiB that a kernel's arguments may have
struct Matrices {
  Fp8WeightArgs matrix[kMostMatrices];
  int first[kMostMatrices + 1];  // tile, of each; behind the last all of them
  int count;
};
template <class T>
__global__ void __launch_bounds__(kThreads)
    fp8_weights_kernel(const __grid_constant__ Matrices all) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = all.count;  // the matrix lies in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (all.first[middle] <= block ? low : high) = middle;
  }
  const Fp8WeightArgs& m = all.matrix[low];
  const int at = block - all.first[low], across = static_cast<int>((m.cols + kTile - 1) / kTile);
  round_tile<T, Fp8Prepare::nothing>({.x = m.x,
                                      .y = m.y,
                                      .transposed = m.transposed,
                                      .site = m.site,
                                      .rows = m.rows,
                                      .cols = m.cols,
                                      .scale_known = true},
                                     at % across, at / across);
}

__global__ void __launch_bounds__(kThreads) fp8_roll_kernel(Fp8RollArgs x) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= x.count) return;
  const bool good = is_good(norm_of(*x.state, x.token_budget));
  float amax = x.sites[i].amax;
  for (int64_t r = 0; x.gathered != nullptr && r < x.ranks; ++r)
    amax = __uint_as_float(larger(__float_as_uint(amax), x.gathered[r * x.count + i].amax));
  fp8_end_step(x.sites[i], amax, good, fp8_format_of(i));
}

}  // namespace

namespace {

template <class T, Fp8Prepare kPrepare>
void launch(cudaStream_t stream, const Fp8QuantizeArgs& x) {
  if (!x.scale_known) {
    fp8_first_amax_kernel<T, kPrepare><<<kFirstBlocks, kThreads, 0, stream>>>(x);
    SAT_CUDA_LAUNCHED("fp8_first_amax_kernel");
  }
  const dim3 grid(static_cast<unsigned>((x.cols + kTile - 1) / kTile),
                  static_cast<unsigned>((x.rows + kTile - 1) / kTile));
  fp8_tiles_kernel<T, kPrepare><<<grid, kThreads, 0, stream>>>(x);
  SAT_CUDA_LAUNCHED("fp8_tiles_kernel");
}

}  // namespace

void fp8_quantize_cuda(const Context& ctx, const Fp8QuantizeArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  with_device_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (x.prepare) {
      case Fp8Prepare::nothing:
        return launch<T, Fp8Prepare::nothing>(stream, x);
      case Fp8Prepare::activation:
        return launch<T, Fp8Prepare::activation>(stream, x);
      case Fp8Prepare::slope:
        return launch<T, Fp8Prepare::slope>(stream, x);
    }
  });
  if (x.column_sum == nullptr) return;
  fold_columns_cuda(ctx,
                    {.partial = x.partial,
                     .groups = (x.rows + kTile - 1) / kTile,
                     .outs = 1,
                     .cols = x.cols,
                     .out = {x.column_sum},
                     .accumulate = {x.add_to_column_sum}},
                    x.later);
}

void fp8_quantize_weights_cuda(const Context& ctx, const Fp8WeightsArgs& x) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  for (size_t begin = 0; begin < x.matrices.size(); begin += kMostMatrices) {
    Matrices part;
    const size_t most = x.matrices.size() - begin;
    part.count = static_cast<int>(most < kMostMatrices ? most : kMostMatrices);
    part.first[0] = 0;
    for (int i = 0; i < part.count; ++i) {
      const Fp8WeightArgs& m = part.matrix[i] = x.matrices[begin + static_cast<size_t>(i)];
      const int64_t tiles = (m.rows + kTile - 1) / kTile * ((m.cols + kTile - 1) / kTile);
      part.first[i + 1] = part.first[i] + static_cast<int>(tiles);
    }
    with_device_type(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      fp8_weights_kernel<T>
          <<<static_cast<unsigned>(part.first[part.count]), kThreads, 0, stream>>>(part);
    });
    SAT_CUDA_LAUNCHED("fp8_weights_kernel");
  }
}

void fp8_roll_cuda(const Context& ctx, const Fp8RollArgs& x) {
  const auto blocks = static_cast<unsigned>((x.count + kThreads - 1) / kThreads);
  fp8_roll_kernel<<<blocks, kThreads, 0, cuda::stream_of(ctx)>>>(x);
  SAT_CUDA_LAUNCHED("fp8_roll_kernel");
}

}  // namespace saturate::kernels
