// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/cached_attention_impl.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kPerLane = 8;  // channels that a lane holds at most

// One block, one row and head. A group of lanes shares the channels of one key, so that a key is
// one coalesced access; the block's groups walk the positions side by side, each with a softmax of
// its own, and the partial results are joined in order of the groups.
template <class T, int kVec, int kChunks>
__global__ void __launch_bounds__(256)
    cached_attention_kernel(CachedAttentionArgs a, int group_lanes) {
  static_assert(kVec * kChunks <= kPerLane);
  extern __shared__ float shared[];  // (groups, head_size) sums, then (groups) tops, (groups) sums
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, size = static_cast<int>(a.head_size);
  const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
  const int64_t q_width = a.heads * a.head_size, kv_width = a.kv_heads * a.head_size;
  const int group = threadIdx.x / group_lanes, groups = blockDim.x / group_lanes;
  const int lane = threadIdx.x % group_lanes;
  T* const out = static_cast<T*>(a.o) + row * q_width + head * size;
  if (a.finished != nullptr && a.finished[row] != 0) {
    for (int c = threadIdx.x; c < size; c += blockDim.x) out[c] = from_float<T>(0.0f);
    return;
  }
  const int last = a.positions[row];
  const int64_t start = a.starts[row];
  const T* const qkv = static_cast<const T*>(a.qkv) + row * (q_width + 2 * kv_width);
  const T* const own = qkv + q_width + kv_head * size;
  T* const cache = static_cast<T*>(a.cache) + kv_head * size;
  if (head % static_cast<int>(a.heads / a.kv_heads) == 0) {
    T* const to = cache + (start + last) * 2 * kv_width;
    for (int c = threadIdx.x; c < size; c += blockDim.x) {
      to[c] = own[c];
      to[kv_width + c] = own[kv_width + c];
    }
  }

  float q[kChunks][kVec], sum_v[kChunks][kVec] = {};
#pragma unroll
  for (int n = 0; n < kChunks; ++n) {
    const int c = (n * group_lanes + lane) * kVec;
#pragma unroll
    for (int i = 0; i < kVec; ++i) q[n][i] = 0.0f;
    if (c < size) load(q[n], qkv + head * size + c);
#pragma unroll
    for (int i = 0; i < kVec; ++i) q[n][i] *= a.scale;
  }
  // Groups of one warp leave the loop at different times, so each shuffles among its own lanes.
  const uint32_t lanes = group_lanes == kWarp
                             ? 0xFFFFFFFFu
                             : ((1u << group_lanes) - 1u)
                                   << (threadIdx.x % kWarp / group_lanes * group_lanes);
  float top = -CUDART_INF_F, sum = 0.0f;
  for (int j = group; j <= last; j += groups) {
    const T* key = own;
    if (j < last) {
      const int64_t slot = a.slots != nullptr ? a.slots[start + j] : start + j;
      key = cache + slot * 2 * kv_width;
    }
    float v[kChunks][kVec] = {};
    float score = 0.0f;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const int c = (n * group_lanes + lane) * kVec;
      if (c >= size) continue;
      float k[kVec];
      load(k, key + c);
      load(v[n], key + kv_width + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) score = fmaf(q[n][i], k[i], score);
    }
    for (int offset = group_lanes / 2; offset > 0; offset /= 2) {
      score += __shfl_xor_sync(lanes, score, offset);
    }
    const float before = top;
    top = fmaxf(top, score);
    const float keep = __expf(before - top), p = __expf(score - top);
    sum = sum * keep + p;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum_v[n][i] = fmaf(p, v[n][i], sum_v[n][i] * keep);
    }
  }

  float* const tops = shared + groups * size;
  float* const sums = tops + groups;
  if (lane == 0) {
    tops[group] = top;
    sums[group] = sum;
  }
#pragma unroll
  for (int n = 0; n < kChunks; ++n) {
    const int c = (n * group_lanes + lane) * kVec;
    if (c >= size) continue;
#pragma unroll
    for (int i = 0; i < kVec; ++i) shared[group * size + c + i] = sum_v[n][i];
  }
  __syncthreads();                         // every group's partial result is there
  const int used = min(groups, last + 1);  // the others saw no position
  float all = -CUDART_INF_F, denominator = 0.0f;
  for (int g = 0; g < used; ++g) all = fmaxf(all, tops[g]);
  for (int g = 0; g < used; ++g) denominator += sums[g] * __expf(tops[g] - all);
  for (int c = threadIdx.x; c < size; c += blockDim.x) {
    float total = 0.0f;
    for (int g = 0; g < used; ++g) total += shared[g * size + c] * __expf(tops[g] - all);
    out[c] = from_float<T>(total / denominator);
  }
}

template <class T, int kVec, int kChunks>
void launch(const Context& ctx, const CachedAttentionArgs& a) {
  int group_lanes = 1;
  while (group_lanes * kVec * kChunks < a.head_size) group_lanes *= 2;
  const int threads = a.max_positions > 256 ? 256 : 128;
  const int groups = threads / group_lanes;
  const auto shared =
      static_cast<size_t>(groups) * static_cast<size_t>(a.head_size + 2) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.heads));
  cached_attention_kernel<T, kVec, kChunks>
      <<<grid, threads, shared, cuda::stream_of(ctx)>>>(a, group_lanes);
  SAT_CUDA_LAUNCHED("cached_attention_kernel");
}

}  // namespace

void cached_attention_cuda(const Context& ctx, const CachedAttentionArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVec = kWidth<T>;
    const bool wide =
        aligned16(a.qkv, a.cache) && a.head_size % kVec == 0 && a.head_size <= kWarp * kVec;
    wide ? launch<T, kVec, 1>(ctx, a) : launch<T, 1, kPerLane>(ctx, a);
  });
}

}  // namespace saturate::kernels
