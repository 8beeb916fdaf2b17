// SPDX-License-Identifier: Apache-2.0
#include "kernels/compression/compression_impl.h"
#include "kernels/device/reduce.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kEach = static_cast<int>(kCodedElements) / kWarp;  // elements of a lane
constexpr int kPack = 4;                                         // neighbours of them

// Where element i of a lane lies in its block: a warp's accesses are whole lines, of codes too.
__device__ __forceinline__ int place(int lane, int i) {
  return i / kPack * (kWarp * kPack) + lane * kPack + i % kPack;
}

__device__ __forceinline__ void load_codes(float (&codes)[kEach], const CodedBlock& block,
                                           int lane) {
#pragma unroll
  for (int p = 0; p < kEach; p += kPack) {
    const char4 c = *reinterpret_cast<const char4*>(block.codes + place(lane, p));
    codes[p] = c.x, codes[p + 1] = c.y, codes[p + 2] = c.z, codes[p + 3] = c.w;
  }
}

// A warp a block. Products with a scale are exact (CodedBlock), so that fused or not they round as
// the CPU's do.
__global__ void __launch_bounds__(kWarps* kWarp) compress_kernel(CompressArgs a) {
  const int lane = threadIdx.x % kWarp;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (block >= a.blocks) return;
  const int64_t first = block * kCodedElements;
  const float* const x = static_cast<const float*>(a.x) + first;
  float* const residual = static_cast<float*>(a.residual) + first;
  const int64_t n = a.count - first;  // of this block; beyond it there is nothing
  float v[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (place(lane, i) < n) v[i] = x[place(lane, i)] + residual[place(lane, i)];
  for (int64_t k = 0; k < a.input_count; ++k) {
    const CodedBlock& in = a.inputs[k * a.blocks + block];
    float codes[kEach];
    load_codes(codes, in, lane);
    const float scale = in.scale;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (place(lane, i) < n) v[i] += scale * codes[i];
  }
  float largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    largest = fmaxf(largest, fabsf(v[i]));
    finite = finite && isfinite(v[i]);
  }
  largest = warp_max(largest);
  finite = __all_sync(0xFFFFFFFFu, finite);
  float scale = __uint_as_float((__float_as_uint(__fdiv_rn(largest, kLargestCode)) + kScaleTail) &
                                ~kScaleTail);
  if (scale < kSmallestScale) scale = 0;
  const float inverse = scale > 0 && finite ? __fdiv_rn(1.0f, scale) : 0.0f;
  CodedBlock& y = a.y[block];
  if (lane == 0) y.scale = finite ? scale : CUDART_NAN_F;
#pragma unroll
  for (int p = 0; p < kEach; p += kPack) {
    float code[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      code[i] = finite ? rintf(v[p + i] * inverse) : 0.0f;
      if (finite && place(lane, p + i) < n)
        residual[place(lane, p + i)] = v[p + i] - code[i] * scale;
    }
    *reinterpret_cast<char4*>(y.codes + place(lane, p)) =
        make_char4(static_cast<signed char>(code[0]), static_cast<signed char>(code[1]),
                   static_cast<signed char>(code[2]), static_cast<signed char>(code[3]));
  }
}

__global__ void __launch_bounds__(kWarps* kWarp) decompress_kernel(DecompressArgs a) {
  const int lane = threadIdx.x % kWarp;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t first = block * kCodedElements, n = a.count - first;
  if (n <= 0) return;
  float* const y = static_cast<float*>(a.y) + first;
  float codes[kEach];
  load_codes(codes, a.x[block], lane);
  const float scale = a.x[block].scale;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (place(lane, i) < n) y[place(lane, i)] = scale * codes[i];
}

unsigned grid_of(int64_t blocks) { return static_cast<unsigned>((blocks + kWarps - 1) / kWarps); }

}  // namespace

void compress_cuda(const Context& ctx, const CompressArgs& a) {
  compress_kernel<<<grid_of(a.blocks), kWarps * kWarp, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("compress_kernel");
}

void decompress_cuda(const Context& ctx, const DecompressArgs& a) {
  decompress_kernel<<<grid_of(coded_blocks(a.count)), kWarps * kWarp, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("decompress_kernel");
}

}  // namespace saturate::kernels
