// SPDX-License-Identifier: Apache-2.0
// fp32 products on fp16 tensor cores: operands cut in two parts, and their product.
#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/gemm/wgmma/wgmma_parts.cuh"

namespace saturate::kernels::wgmma {
namespace {

constexpr int kBlock = 256, kWidth = 4;  // threads; values of a row that one of them takes at once

// Values col .. col + 3 of a row of `cols`, zeros behind its end.
template <bool kAligned>
__device__ inline float4 load_four(const float* row, int64_t col, int64_t cols) {
  if (kAligned && col + 3 < cols) return *reinterpret_cast<const float4*>(row + col);
  const auto at = [&](int64_t c) { return c < cols ? row[c] : 0.0f; };
  return {at(col), at(col + 1), at(col + 2), at(col + 3)};
}

__device__ inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// h has the 11 leading bits of x, l the next 11, held 2^11 times as large so that it keeps its bits
// where h is small. The difference is exact. Infinities and NaN stay in h alone.
struct Four {
  uint2 high, low;
};
__device__ inline Four cut(const float (&x)[kWidth]) {
  __half h[kWidth], l[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    h[i] = __float2half_rn(x[i]);
    l[i] = __float2half_rn(isfinite(x[i]) ? (x[i] - __half2float(h[i])) * kLowScale : 0.0f);
  }
  const auto pair = [](__half a, __half b) {
    return static_cast<uint32_t>(__half_as_ushort(b)) << 16 | __half_as_ushort(a);
  };
  return {{pair(h[0], h[1]), pair(h[2], h[3])}, {pair(l[0], l[1]), pair(l[2], l[3])}};
}

__device__ inline void store(const Four& x, __half* to, int64_t to_part) {
  *reinterpret_cast<uint2*>(to) = x.high;
  *reinterpret_cast<uint2*>(to + to_part) = x.low;
}

// k along the rows: a warp finds the largest magnitude of its row and reads the row again.
template <bool kAligned>
__global__ void cut_rows_kernel(const float* from, int64_t rows, int64_t cols, int64_t ld,
                                uint32_t* peaks, PartsOut to) {
  const int64_t row = int64_t{blockIdx.x} * (kBlock / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const float* line = from + row * ld;
  uint32_t peak = 0;
  for (int64_t c = lane * kWidth; c < cols; c += 32 * kWidth) {
    const float4 x = load_four<kAligned>(line, c, cols);
    peak = max(peak, max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w))));
  }
  peak = __reduce_max_sync(~0u, peak);
  if (lane == 0) peaks[row] = peak;
  const float scale = scale_of(peak);
  __half* out = static_cast<__half*>(to.data) + row * to.ld;
  for (int64_t c = lane * kWidth; c < to.cols; c += 32 * kWidth) {
    const float4 x = load_four<kAligned>(line, c, cols);
    store(cut({x.x * scale, x.y * scale, x.z * scale, x.w * scale}), out + c, to.part);
  }
}

// k along the columns: the largest magnitudes of columns, onto zeros.
template <bool kAligned>
__global__ void peaks_kernel(const float* from, int64_t rows, int64_t cols, int64_t ld,
                             uint32_t* peaks) {
  const int64_t col = (int64_t{blockIdx.x} * 32 + threadIdx.x % 32) * kWidth;
  uint32_t peak[kWidth] = {};
  if (col < cols) {
    const int64_t step = int64_t{gridDim.y} * (kBlock / 32);
#pragma unroll 4
    for (int64_t row = int64_t{blockIdx.y} * (kBlock / 32) + threadIdx.x / 32; row < rows;
         row += step) {
      const float4 x = load_four<kAligned>(from + row * ld, col, cols);
      peak[0] = max(peak[0], magnitude(x.x));
      peak[1] = max(peak[1], magnitude(x.y));
      peak[2] = max(peak[2], magnitude(x.z));
      peak[3] = max(peak[3], magnitude(x.w));
    }
  }
  __shared__ uint32_t of_warp[kBlock / 32][32 * kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    of_warp[threadIdx.x / 32][threadIdx.x % 32 * kWidth + i] = peak[i];
  __syncthreads();
  if (threadIdx.x >= 32 * kWidth) return;
  uint32_t most = 0;
  for (int w = 0; w < kBlock / 32; ++w) most = max(most, of_warp[w][threadIdx.x]);
  const int64_t own = int64_t{blockIdx.x} * 32 * kWidth + threadIdx.x;
  if (own < cols) atomicMax(peaks + own, most);
}

template <bool kAligned>
__global__ void cut_columns_kernel(const float* from, int64_t rows, int64_t cols, int64_t ld,
                                   const uint32_t* peaks, PartsOut to) {
  const int64_t col = (int64_t{blockIdx.x} * 32 + threadIdx.x % 32) * kWidth;
  if (col >= to.cols) return;
  float scale[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) scale[i] = scale_of(col + i < cols ? peaks[col + i] : 0);
  const int64_t step = int64_t{gridDim.y} * (kBlock / 32);
#pragma unroll 4
  for (int64_t row = int64_t{blockIdx.y} * (kBlock / 32) + threadIdx.x / 32; row < to.rows;
       row += step) {
    float4 x = {};
    if (row < rows) x = load_four<kAligned>(from + row * ld, col, cols);
    store(cut({x.x * scale[0], x.y * scale[1], x.z * scale[2], x.w * scale[3]}),
          static_cast<__half*>(to.data) + row * to.ld + col, to.part);
  }
}

__global__ void zero_kernel(uint32_t* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count) to[i] = 0;
}

unsigned blocks_for_all(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <bool kAligned>
void cut_operand(const PartsIn& from, const PartsOut& to, uint32_t* peaks, cudaStream_t stream) {
  if (from.k_major) {
    cut_rows_kernel<kAligned><<<blocks_for_all(from.rows, kBlock / 32), kBlock, 0, stream>>>(
        from.data, from.rows, from.cols, from.ld, peaks, to);
    return;
  }
  zero_kernel<<<blocks_for_all(from.cols, kBlock), kBlock, 0, stream>>>(peaks, from.cols);
  constexpr unsigned kBlocks = 1056;  // eight for each multiprocessor of the largest chip
  const unsigned strips = blocks_for_all(to.cols, 32 * kWidth);
  const unsigned most = blocks_for_all(to.rows, kBlock / 32), wanted = (kBlocks - 1) / strips + 1;
  const dim3 grid(strips, most < wanted ? most : wanted);
  peaks_kernel<kAligned>
      <<<grid, kBlock, 0, stream>>>(from.data, from.rows, from.cols, from.ld, peaks);
  cut_columns_kernel<kAligned>
      <<<grid, kBlock, 0, stream>>>(from.data, from.rows, from.cols, from.ld, peaks, to);
}

template <bool kKMajorA, bool kKMajorB>
using PartsTile = Tile<__half, float, kPartsTile, kPartsTile, 3, false, kKMajorA, kKMajorB, 2>;

}  // namespace

cudaError_t cut_in_parts(const PartsIn& from, const PartsOut& to, uint32_t* peaks,
                         cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(from.data) % 16 == 0 && from.ld % kWidth == 0;
  if (aligned) {
    cut_operand<true>(from, to, peaks, stream);
  } else {
    cut_operand<false>(from, to, peaks, stream);
  }
  return cudaGetLastError();
}

cudaError_t launch_parts(Form form, const Problem& p, int blocks, cudaStream_t stream) {
  switch (form) {
    case Form::forward:
      return launch<PartsTile<true, true>>(p, blocks, stream);
    case Form::input_gradient:
      return launch<PartsTile<true, false>>(p, blocks, stream);
    case Form::weight_gradient:
      return launch<PartsTile<false, false>>(p, blocks, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace saturate::kernels::wgmma
