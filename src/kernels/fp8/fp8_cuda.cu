// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/fp8/fp8_codes.h"
#include "kernels/fp8/fp8_impl.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 16;  // elements of a thread at once: one access of codes
constexpr int kTile = 64;  // rows and columns of a tile with both copies
constexpr int64_t kMostBlocks = 132 * 8;

// Bits of |x| order as numbers do, infinity and NaN above all; the largest does not depend on the order.
__device__ __forceinline__ void raise(float* amax, float own) {
  unsigned bits = __float_as_uint(own);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const unsigned other = __shfl_xor_sync(0xFFFFFFFFu, bits, offset);
    bits = other > bits ? other : bits;
  }
  if (threadIdx.x % kWarp == 0 && bits > 0) atomicMax(reinterpret_cast<unsigned*>(amax), bits);
}

__device__ __forceinline__ float with(float most, float x) {
  const unsigned a = __float_as_uint(fabsf(x)), b = __float_as_uint(most);
  return a > b ? fabsf(x) : most;
}

__device__ __forceinline__ float scale_of(const Fp8QuantizeArgs& x) {
  // Until its first step has ended, amax is complete before this kernel begins.
  return x.site->scale > 0.0f ? x.site->scale : fp8_scale_for(x.site->amax, x.format);
}

template <class T>
__global__ void __launch_bounds__(kThreads) fp8_first_amax_kernel(Fp8QuantizeArgs x) {
  if (x.site->scale > 0.0f) return;
  const T* const in = static_cast<const T*>(x.x);
  const int64_t count = x.rows * x.cols;
  float most = 0.0f;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count;
       i += int64_t{gridDim.x} * kThreads * kEach) {
    float v[kEach];
    load(v, in + i);
    for (float e : v) most = with(most, e);
  }
  raise(&x.site->amax, most);
}

struct alignas(16) Codes {
  uint8_t v[kEach];
};

__device__ __forceinline__ Codes encode(const float (&v)[kEach], float scale, Fp8Format format) {
  const __nv_fp8_interpretation_t to = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  Codes c;
#pragma unroll
  for (int i = 0; i < kEach; i += 2) {
    const __nv_fp8x2_storage_t pair =
        __nv_cvt_float2_to_fp8x2(make_float2(v[i] * scale, v[i + 1] * scale), __NV_SATFINITE, to);
    c.v[i] = static_cast<uint8_t>(pair & 0xFF);
    c.v[i + 1] = static_cast<uint8_t>(pair >> 8);
  }
  return c;
}

template <class T>
__global__ void __launch_bounds__(kThreads) fp8_rows_kernel(Fp8QuantizeArgs x) {
  const T* const in = static_cast<const T*>(x.x);
  const int64_t count = x.rows * x.cols;
  const float scale = scale_of(x);
  float most = 0.0f;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count;
       i += int64_t{gridDim.x} * kThreads * kEach) {
    float v[kEach];
    load(v, in + i);
    for (float e : v) most = with(most, e);
    *reinterpret_cast<Codes*>(x.y + i) = encode(v, scale, x.format);
  }
  raise(&x.site->amax, most);
  if (blockIdx.x == 0 && threadIdx.x == 0) x.site->inverse = 1.0f / scale;
}

// A block has a tile; each thread 16 codes of a row, then 16 of a column. Sizes are multiples of 16.
template <class T>
__global__ void __launch_bounds__(kThreads) fp8_tiles_kernel(Fp8QuantizeArgs x) {
  __shared__ uint8_t tile[kTile][kTile + 4];
  const T* const in = static_cast<const T*>(x.x);
  const float scale = scale_of(x);
  const int64_t row0 = int64_t{blockIdx.y} * kTile, col0 = int64_t{blockIdx.x} * kTile;
  const int line = threadIdx.x / (kTile / kEach), part = threadIdx.x % (kTile / kEach) * kEach;
  float most = 0.0f;
  if (row0 + line < x.rows && col0 + part < x.cols) {
    const int64_t at = (row0 + line) * x.cols + col0 + part;
    float v[kEach];
    load(v, in + at);
    for (float e : v) most = with(most, e);
    const Codes c = encode(v, scale, x.format);
    if (x.y != nullptr) *reinterpret_cast<Codes*>(x.y + at) = c;
    for (int i = 0; i < kEach; ++i) tile[line][part + i] = c.v[i];
  }
  raise(&x.site->amax, most);
  __syncthreads();  // the tile is whole
  if (col0 + line < x.cols && row0 + part < x.rows) {
    Codes c;
    for (int i = 0; i < kEach; ++i) c.v[i] = tile[part + i][line];
    *reinterpret_cast<Codes*>(x.transposed + (col0 + line) * x.rows + row0 + part) = c;
  }
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) x.site->inverse = 1.0f / scale;
}

__global__ void __launch_bounds__(kThreads) fp8_roll_kernel(Fp8RollArgs x) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= x.count) return;
  const bool good = is_good(norm_of(*x.state, x.token_budget));
  float amax = x.sites[i].amax;
  for (int64_t r = 0; x.gathered != nullptr && r < x.ranks; ++r)
    amax = with(amax, x.gathered[r * x.count + i].amax);
  fp8_end_step(x.sites[i], amax, good, fp8_format_of(i));
}

}  // namespace

void fp8_quantize_cuda(const Context& ctx, const Fp8QuantizeArgs& x) {
  static_assert(kThreads == kTile * kTile / kEach);
  const cudaStream_t stream = cuda::stream_of(ctx);
  const int64_t chunks = (x.rows * x.cols + kThreads * kEach - 1) / (kThreads * kEach);
  const auto blocks = static_cast<unsigned>(std::min(chunks, kMostBlocks));
  with_device_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fp8_first_amax_kernel<T><<<blocks, kThreads, 0, stream>>>(x);
    SAT_CUDA_LAUNCHED("fp8_first_amax_kernel");
    if (x.transposed == nullptr) {
      fp8_rows_kernel<T><<<blocks, kThreads, 0, stream>>>(x);
      SAT_CUDA_LAUNCHED("fp8_rows_kernel");
      return;
    }
    const dim3 grid(static_cast<unsigned>((x.cols + kTile - 1) / kTile),
                    static_cast<unsigned>((x.rows + kTile - 1) / kTile));
    fp8_tiles_kernel<T><<<grid, kThreads, 0, stream>>>(x);
    SAT_CUDA_LAUNCHED("fp8_tiles_kernel");
  });
}

void fp8_roll_cuda(const Context& ctx, const Fp8RollArgs& x) {
  const auto blocks = static_cast<unsigned>((x.count + kThreads - 1) / kThreads);
  fp8_roll_kernel<<<blocks, kThreads, 0, cuda::stream_of(ctx)>>>(x);
  SAT_CUDA_LAUNCHED("fp8_roll_kernel");
}

}  // namespace saturate::kernels
