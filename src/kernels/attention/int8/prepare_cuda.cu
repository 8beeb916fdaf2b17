// SPDX-License-Identifier: Apache-2.0
// From 16-bit q and k to integers and their scales. All of it is bound by memory; lanes own chunks
// of eight elements (16 bytes) of a row.
#include "kernels/attention/device.cuh"
#include "kernels/attention/int8/problem.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using attention::row_of;
using attention::Rows;
using attention::rows_of;

constexpr float kSmallest = 1e-12f;  // of a maximum: scales never vanish
constexpr int kMeanThreads = 512, kKeyThreads = 128, kQueryThreads = 256;

template <class T>
__device__ __forceinline__ void load_eight(float (&x)[8], const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  T values[8];
  memcpy(values, &bits, sizeof bits);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = to_float(values[i]);
}

__device__ __forceinline__ float largest(const float (&x)[8]) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(x[i]));
  return most;
}

// Nearest integers, ties to even, within [-127, 127] since |x| <= 127 / inverse.
__device__ __forceinline__ uint2 to_bytes(const float (&x)[8], float inverse) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    words[i / 4] |= static_cast<uint32_t>(__float2int_rn(x[i] * inverse) & 255) << i % 4 * 8;
  return make_uint2(words[0], words[1]);
}

// Block: one sequence and key head. The sums are taken in an order of their own, the same always.
template <class T, int kD>
__global__ __launch_bounds__(kMeanThreads) void attention_int8_means_kernel(
    const __grid_constant__ Int8Problem p) {
  constexpr int kChunks = kD / 8, kAtOnce = kMeanThreads / kChunks;
  const AttentionArgs& a = p.a;
  const int sequence = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int own_row = static_cast<int>(threadIdx.x) / kChunks;
  const Rows keys = rows_of(a.cu_k, sequence);
  float sum[8] = {};
  const T* from = row_of<T>(a.k, keys.first, a.k_stride, head, kD) + chunk * 8;
#pragma unroll 4
  for (int row = own_row; row < keys.count; row += kAtOnce) {
    float x[8];
    load_eight(x, from + row * a.k_stride);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += x[i];
  }
  __shared__ float sums[kMeanThreads / 32][kD];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int distance = kChunks; distance < 32; distance *= 2)  // lanes of one chunk in a warp
      sum[i] += __shfl_xor_sync(~0u, sum[i], distance);
    if (threadIdx.x % 32 < kChunks) sums[threadIdx.x / 32][chunk * 8 + i] = sum[i];
  }
  __syncthreads();
  if (threadIdx.x >= kD) return;
  float total = 0.0f;
  for (int warp = 0; warp < kMeanThreads / 32; ++warp) total += sums[warp][threadIdx.x];
  p.means[(sequence * a.kv_heads + head) * kD + threadIdx.x] =
      keys.count > 0 ? total / static_cast<float>(keys.count) : 0.0f;
}

// Block: 64 keys of one sequence and head.
template <class T, int kD>
__global__ __launch_bounds__(kKeyThreads) void attention_int8_keys_kernel(
    const __grid_constant__ Int8Problem p, int tiles) {
  constexpr int kChunks = kD / 8, kOwn = kInt8Keys * kChunks / kKeyThreads;
  const AttentionArgs& a = p.a;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = static_cast<int>(blockIdx.x) % tiles, head = static_cast<int>(blockIdx.y);
  const Rows keys = rows_of(a.cu_k, sequence);
  const int first = tile * kInt8Keys;
  if (first >= keys.count) return;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const float* mean = p.means + (sequence * a.kv_heads + head) * kD + chunk * 8;
  float x[kOwn][8], most = 0.0f;
#pragma unroll
  for (int n = 0; n < kOwn; ++n) {
    const int row = first + (n * kKeyThreads + static_cast<int>(threadIdx.x)) / kChunks;
    if (row >= keys.count) continue;
    load_eight(x[n], row_of<T>(a.k, keys.first + row, a.k_stride, head, kD) + chunk * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[n][i] -= mean[i];
    most = fmaxf(most, largest(x[n]));
  }
  __shared__ float tops[kKeyThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
  __syncthreads();
  most = kSmallest;
#pragma unroll
  for (int warp = 0; warp < kKeyThreads / 32; ++warp) most = fmaxf(most, tops[warp]);
#pragma unroll
  for (int n = 0; n < kOwn; ++n) {
    const int row = first + (n * kKeyThreads + static_cast<int>(threadIdx.x)) / kChunks;
    if (row >= keys.count) continue;
    *reinterpret_cast<uint2*>(p.k + ((keys.first + row) * a.kv_heads + head) * kD + chunk * 8) =
        to_bytes(x[n], 127.0f / most);
  }
  if (threadIdx.x == 0)
    p.k_scales[head * p.k_blocks + keys.first / kInt8Keys + sequence + tile] = most / 127.0f;
}

// Lanes of a chunk of a row; a row of one head lies in one warp.
template <class T, int kD>
__global__ __launch_bounds__(kQueryThreads) void attention_int8_queries_kernel(
    const __grid_constant__ Int8Problem p) {
  constexpr int kChunks = kD / 8;
  const AttentionArgs& a = p.a;
  const int64_t n = (blockIdx.x * int64_t{kQueryThreads} + threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bool inside = n < a.q_rows * a.heads;
  const int64_t row = inside ? n / a.heads : 0, head = inside ? n % a.heads : 0;
  float x[8];
  load_eight(x, row_of<T>(a.q, row, a.q_stride, head, kD) + chunk * 8);
  float most = fmaxf(largest(x), kSmallest);
  for (int distance = kChunks / 2; distance > 0; distance /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
  if (!inside) return;
  *reinterpret_cast<uint2*>(p.q + n * kD + chunk * 8) = to_bytes(x, 127.0f / most);
  if (chunk == 0) p.q_scales[head * a.q_rows + row] = most / 127.0f;
}

template <class T, int kD>
void prepare(const Context& ctx, const Int8Problem& p) {
  const AttentionArgs& a = p.a;
  const cudaStream_t stream = cuda::stream_of(ctx);
  const auto kv_heads = static_cast<unsigned>(a.kv_heads);
  if (a.sequences > 0 && a.max_k > 0) {
    attention_int8_means_kernel<T, kD>
        <<<dim3(static_cast<unsigned>(a.sequences), kv_heads), kMeanThreads, 0, stream>>>(p);
    SAT_CUDA_LAUNCHED("attention_int8_means_kernel");
    const auto tiles = static_cast<int>((a.max_k + kInt8Keys - 1) / kInt8Keys);
    attention_int8_keys_kernel<T, kD>
        <<<dim3(static_cast<unsigned>(a.sequences * tiles), kv_heads), kKeyThreads, 0, stream>>>(
            p, tiles);
    SAT_CUDA_LAUNCHED("attention_int8_keys_kernel");
  }
  const int64_t threads = a.q_rows * a.heads * (kD / 8);
  attention_int8_queries_kernel<T, kD>
      <<<static_cast<unsigned>((threads + kQueryThreads - 1) / kQueryThreads), kQueryThreads, 0,
         stream>>>(p);
  SAT_CUDA_LAUNCHED("attention_int8_queries_kernel");
}

}  // namespace

void attention_int8_prepare_cuda(const Context& ctx, const Int8Problem& p) {
  const bool half = p.a.dtype == DType::f16;
  if (p.a.head_size == 64)
    half ? prepare<__half, 64>(ctx, p) : prepare<__nv_bfloat16, 64>(ctx, p);
  else
    half ? prepare<__half, 128>(ctx, p) : prepare<__nv_bfloat16, 128>(ctx, p);
}

}  // namespace saturate::kernels
