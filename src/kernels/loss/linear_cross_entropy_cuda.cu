// SPDX-License-Identifier: Apache-2.0
// What lies around the two products: the targets' logits before the first, the rows' sums behind it.
#include <cuda_bf16.h>

#include "kernels/device/fold_columns.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/elementwise/elementwise.h"
#include "kernels/loss/linear_cross_entropy_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using T = __nv_bfloat16;
constexpr int kRowThreads = 256, kRowsABlock = kRowThreads / kWarp;  // a warp a row
constexpr int kVec = 8;                                              // elements of 16 bytes

__device__ __forceinline__ float dot8(const float (&a)[kVec], const float (&b)[kVec], float sum) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}

// z[t][target], of the rows' and classes' own numbers, so that it is the product's but for the order of its sum.
__global__ void __launch_bounds__(kRowThreads)
    target_logits_kernel(LinearCrossEntropyArgs a, float* logits) {
  const int64_t t = int64_t{blockIdx.x} * kRowsABlock + threadIdx.x / kWarp;
  if (t >= a.rows) return;
  const int lane = threadIdx.x % kWarp, target = a.targets[t];
  float sum = 0.0f;
  const bool valid = target >= 0 && target < a.vocab;
  if (valid) {
    const T* const x = static_cast<const T*>(a.x) + t * a.width;
    const T* const w = static_cast<const T*>(a.w) + int64_t{target} * a.width;
    for (int64_t k = lane * kVec; k < a.width; k += kWarp * kVec) {
      float vx[kVec], vw[kVec];
      load(vx, x + k);
      load(vw, w + k);
      sum = dot8(vx, vw, sum);
    }
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (valid && a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[target]);
  logits[t] = valid ? sum : target < 0 ? CUDART_INF_F : CUDART_NAN_F;
}

__device__ __forceinline__ float scale_of(const LinearCrossEntropyArgs& a) {
  return a.grad_scale * (a.device_scale != nullptr ? *a.device_scale : 1.0f);
}
__device__ __forceinline__ float share_of(const LinearCrossEntropyArgs& a) {
  return -scale_of(a) * a.label_smoothing / static_cast<float>(a.vocab);
}

// A warp a row: from its tiles' sums to its loss and factor, its target's place in e, and x times the factor.
__global__ void __launch_bounds__(kRowThreads)
    loss_rows_kernel(LinearCrossEntropyArgs a, const float* target_logit, const float* tile_sums,
                     int64_t tiles, const float* class_sum) {
  const int64_t t = int64_t{blockIdx.x} * kRowsABlock + threadIdx.x / kWarp;
  if (t >= a.rows) return;
  const int lane = threadIdx.x % kWarp, target = a.targets[t];
  float *const loss = static_cast<float*>(a.loss), *const nll = static_cast<float*>(a.nll),
               *const factors = static_cast<float*>(a.factor);
  T* const scaled = static_cast<T*>(a.scaled) + t * a.width;
  float sum = 0.0f;
  for (int64_t i = lane; i < tiles; i += kWarp) sum += tile_sums[i * a.rows + t];
  sum = warp_sum(sum);
  const float factor = target < 0 ? 0.0f : scale_of(a) / sum;
  const T* const x = static_cast<const T*>(a.x) + t * a.width;
  float along = 0.0f;  // of x with the sum of all classes' weights
  for (int64_t k = lane * kVec; k < a.width; k += kWarp * kVec) {
    float v[kVec];
    load(v, x + k);
    if (class_sum != nullptr) {
      float classes[kVec];
      load(classes, class_sum + k);
      along = dot8(v, classes, along);
    }
#pragma unroll
    for (float& one : v) one = target < 0 ? 0.0f : one * factor;
    store(scaled + k, v);
  }
  if (class_sum != nullptr) along = warp_sum(along);
  if (lane != 0) return;
  factors[t] = factor;
  if (target < 0) {
    loss[t] = nll[t] = 0.0f;
    return;
  }
  const float plain = logf(sum);
  nll[t] = plain;
  loss[t] = plain;
  if (class_sum != nullptr)
    loss[t] += a.label_smoothing * (target_logit[t] - along / static_cast<float>(a.vocab));
  if (target < a.vocab)
    static_cast<T*>(a.e)[t * a.ld + target] =
        from_float<T>(1.0f - (1.0f - a.label_smoothing) * sum);
}

// Sums of x over the rows of a group that have a loss, a thread for eight columns: partial (groups, width).
__global__ void __launch_bounds__(128) sum_rows_kernel(LinearCrossEntropyArgs a, float* partial) {
  const int64_t k = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kVec;
  if (k >= a.width) return;
  const int64_t first = int64_t{blockIdx.x} * kLossGroupRows;
  float sum[kVec] = {};
#pragma unroll 4
  for (int i = 0; i < kLossGroupRows; ++i) {
    const int64_t t = first + i;
    if (t >= a.rows || a.targets[t] < 0) continue;
    float v[kVec];
    load(v, static_cast<const T*>(a.x) + t * a.width + k);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum[j] += v[j];
  }
  store(partial + blockIdx.x * a.width + k, sum);
}

// The rows behind the last, and `uniform`.
__global__ void __launch_bounds__(kRowThreads)
    uniform_kernel(LinearCrossEntropyArgs a, const float* class_sum, const float* x_sum) {
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x, row = blockIdx.y;
  const float share = share_of(a);
  if (i < a.ld)
    static_cast<T*>(a.e)[(a.rows + row) * a.ld + i] =
        from_float<T>(row == 0 && i < a.vocab ? 1.0f : 0.0f);
  if (i >= a.width) return;
  static_cast<T*>(a.scaled)[(a.rows + row) * a.width + i] =
      from_float<T>(row == 0 ? share * x_sum[i] : 0.0f);
  if (row == 0) static_cast<float*>(a.uniform)[i] = share * class_sum[i];
}

// loss += s (mean of the biases): what the mean of z has of them.
__global__ void __launch_bounds__(1024) mean_bias_kernel(LinearCrossEntropyArgs a) {
  __shared__ float shared[kWarp];
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < a.vocab; c += blockDim.x)
    sum += to_float(static_cast<const T*>(a.bias)[c]);
  sum = block_sum(sum, shared);
  const float less = a.label_smoothing * sum / static_cast<float>(a.vocab);
  for (int64_t t = threadIdx.x; t < a.rows; t += blockDim.x)
    if (a.targets[t] >= 0) static_cast<float*>(a.loss)[t] -= less;
}

unsigned blocks_for(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void launch_target_logits(const Context& ctx, const LinearCrossEntropyArgs& a,
                          const LossRows& rows) {
  target_logits_kernel<<<blocks_for(a.rows, kRowsABlock), kRowThreads, 0, cuda::stream_of(ctx)>>>(
      a, rows.target_logit);
  SAT_CUDA_LAUNCHED("target_logits_kernel");
}

void launch_loss_rows(const Context& ctx, const LinearCrossEntropyArgs& a, const LossRows& rows) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  const bool smooth = a.label_smoothing > 0.0f;
  if (smooth) {
    column_sum(ctx, {.x = a.w,
                     .out = rows.class_sum,
                     .partial = rows.column_scratch,
                     .rows = a.vocab,
                     .cols = a.width,
                     .ld = a.width,
                     .dtype = a.dtype});
  }
  loss_rows_kernel<<<blocks_for(a.rows, kRowsABlock), kRowThreads, 0, stream>>>(
      a, rows.target_logit, rows.tile_sums, rows.tiles, smooth ? rows.class_sum : nullptr);
  SAT_CUDA_LAUNCHED("loss_rows_kernel");
  if (!smooth) return;
  sum_rows_kernel<<<dim3(static_cast<unsigned>(rows.x_groups), blocks_for(a.width, 128 * kVec)),
                    128, 0, stream>>>(a, rows.x_partial);
  SAT_CUDA_LAUNCHED("sum_rows_kernel");
  fold_columns_cuda(ctx, {.partial = rows.x_partial,
                          .groups = rows.x_groups,
                          .outs = 1,
                          .cols = a.width,
                          .out = {rows.x_sum},
                          .accumulate = {false}});
  const int64_t more = linear_cross_entropy_rows(a.rows, a.label_smoothing) - a.rows;
  uniform_kernel<<<dim3(blocks_for(a.ld > a.width ? a.ld : a.width, kRowThreads),
                        static_cast<unsigned>(more)),
                   kRowThreads, 0, stream>>>(a, rows.class_sum, rows.x_sum);
  SAT_CUDA_LAUNCHED("uniform_kernel");
  if (a.bias == nullptr) return;
  mean_bias_kernel<<<1, 1024, 0, stream>>>(a);
  SAT_CUDA_LAUNCHED("mean_bias_kernel");
}

}  // namespace saturate::kernels
