// SPDX-License-Identifier: Apache-2.0
// Positions that several rows share, as the beams of one sentence do: a key is read once for all
// queries of a bundle.
#include "kernels/decode/cached_attention_device.cuh"
#include "kernels/decode/cached_attention_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace cached;

constexpr int kQueries = static_cast<int>(kPrefixQueries);
constexpr int kThreads = 256;

// The bundle of one block: queries first .. first + count of those that read one key head, counted
// through the rows of a group and, inside, the query heads of the key head.
struct Bundle {
  int64_t row0;  // the group's first row
  int kv_head, first, count, heads_each;

  __device__ Bundle(const CachedAttentionArgs& a, int64_t block) {
    heads_each = static_cast<int>(a.heads / a.kv_heads);
    const int queries = static_cast<int>(a.group_rows) * heads_each;
    const int bundles = (queries + kQueries - 1) / kQueries;
    first = static_cast<int>(block % bundles) * kQueries;
    count = min(kQueries, queries - first);
    kv_head = static_cast<int>(block / bundles % a.kv_heads);
    row0 = block / bundles / a.kv_heads * a.group_rows;
  }
  __device__ int64_t row(int n) const { return row0 + (first + n) / heads_each; }
  __device__ int head(int n) const { return kv_head * heads_each + (first + n) % heads_each; }
};

// As cached_attention_kernel, with a softmax for each query of the bundle.
template <class T, int kVec, int kChunks>
__global__ void __launch_bounds__(kThreads)
    cached_attention_prefix_kernel(CachedAttentionArgs a, int group_lanes, Parts parts,
                                   int first_part) {
  static_assert(kVec * kChunks <= kPerLane);
  constexpr int kAhead = kChunks == 1 ? 2 : 1;  // positions under way at once; more would spill
  // (groups, kQueries, head_size) sums, then (groups, kQueries) tops, (groups, kQueries) sums
  extern __shared__ float shared[];
  const Bundle bundle(a, blockIdx.x);
  const int size = static_cast<int>(a.head_size);
  const int64_t q_width = a.heads * a.head_size, kv_width = a.kv_heads * a.head_size;
  const int group = threadIdx.x / group_lanes, groups = kThreads / group_lanes;
  const int lane = threadIdx.x % group_lanes;
  const int end_all = a.shared_positions[bundle.row0 / a.group_rows];
  const int splits = gridDim.y, split = blockIdx.y;
  const int share = (end_all + splits - 1) / splits;
  const int begin = min(split * share, end_all), end = min(begin + share, end_all);
  const History history(a, bundle.row0);
  const T* const cache = static_cast<const T*>(a.cache) + bundle.kv_head * size;

  float q[kQueries][kChunks][kVec] = {}, sum_v[kQueries][kChunks][kVec] = {};
#pragma unroll
  for (int m = 0; m < kQueries; ++m) {
    if (m >= bundle.count) continue;
    const T* const from = static_cast<const T*>(a.qkv) + bundle.row(m) * (q_width + 2 * kv_width) +
                          bundle.head(m) * size;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const int c = (n * group_lanes + lane) * kVec;
      if (c < size) load(q[m][n], from + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) q[m][n][i] *= a.scale;
    }
  }
  const uint32_t lanes = lanes_of_group(group_lanes);
  float top[kQueries], sum[kQueries] = {};
#pragma unroll
  for (int m = 0; m < kQueries; ++m) top[m] = -CUDART_INF_F;
  for (int j0 = begin + group; j0 < end; j0 += groups * kAhead) {
    float v[kAhead][kChunks][kVec] = {}, score[kQueries][kAhead] = {};
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int j = j0 + u * groups;
      if (j >= end) continue;
      const T* const key = cache + history.slot(j) * 2 * kv_width;
#pragma unroll
      for (int n = 0; n < kChunks; ++n) {
        const int c = (n * group_lanes + lane) * kVec;
        if (c >= size) continue;
        float k[kVec];
        load(k, key + c);
        load(v[u][n], key + kv_width + c);
#pragma unroll
        for (int m = 0; m < kQueries; ++m)
#pragma unroll
          for (int i = 0; i < kVec; ++i) score[m][u] = fmaf(q[m][n][i], k[i], score[m][u]);
      }
    }
    for (int offset = group_lanes / 2; offset > 0; offset /= 2)
#pragma unroll
      for (int m = 0; m < kQueries; ++m)
#pragma unroll
        for (int u = 0; u < kAhead; ++u) score[m][u] += __shfl_xor_sync(lanes, score[m][u], offset);
#pragma unroll
    for (int m = 0; m < kQueries; ++m) {
      const float before = top[m];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (j0 + u * groups >= end) score[m][u] = -CUDART_INF_F;
        top[m] = fmaxf(top[m], score[m][u]);
      }
      const float keep = __expf(before - top[m]);
      sum[m] *= keep;
#pragma unroll
      for (int n = 0; n < kChunks; ++n)
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum_v[m][n][i] *= keep;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const float p = __expf(score[m][u] - top[m]);
        sum[m] += p;
#pragma unroll
        for (int n = 0; n < kChunks; ++n)
#pragma unroll
          for (int i = 0; i < kVec; ++i) sum_v[m][n][i] = fmaf(p, v[u][n][i], sum_v[m][n][i]);
      }
    }
  }

  float* const tops = shared + groups * kQueries * size;
  float* const sums = tops + groups * kQueries;
#pragma unroll
  for (int m = 0; m < kQueries; ++m) {
    const int at = group * kQueries + m;
    if (lane == 0) tops[at] = top[m], sums[at] = sum[m];
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const int c = (n * group_lanes + lane) * kVec;
      if (c >= size) continue;
#pragma unroll
      for (int i = 0; i < kVec; ++i) shared[at * size + c + i] = sum_v[m][n][i];
    }
  }
  __syncthreads();                            // every group's partial results are there
  const int used = min(groups, end - begin);  // the others saw no position
  for (int m = 0; m < bundle.count; ++m) {
    Part part{-CUDART_INF_F, 0.0f};
    for (int g = 0; g < used; ++g) part.all = fmaxf(part.all, tops[g * kQueries + m]);
    for (int g = 0; g < used; ++g)
      part.denominator += sums[g * kQueries + m] * __expf(tops[g * kQueries + m] - part.all);
    const int64_t item = parts.item(a, bundle.row(m), bundle.head(m), first_part + split);
    for (int c = threadIdx.x; c < size; c += kThreads) {
      float total = 0.0f;
      for (int g = 0; g < used; ++g)
        total += shared[(g * kQueries + m) * size + c] * __expf(tops[g * kQueries + m] - part.all);
      parts.sum(a, item)[c] = total;
    }
    if (threadIdx.x == 0) parts.part(a, item) = part;
  }
}

template <class T, int kVec, int kChunks>
void launch(const Context& ctx, const CachedAttentionArgs& a, Parts parts, int first_part,
            int splits) {
  int group_lanes = 1;
  while (group_lanes * kVec * kChunks < a.head_size) group_lanes *= 2;
  const int groups = kThreads / group_lanes;
  const auto bytes = static_cast<size_t>(groups) * static_cast<size_t>(kQueries) *
                     static_cast<size_t>(a.head_size + 2) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(prefix_blocks(a)), static_cast<unsigned>(splits));
  cached_attention_prefix_kernel<T, kVec, kChunks>
      <<<grid, kThreads, bytes, cuda::stream_of(ctx)>>>(a, group_lanes, parts, first_part);
  SAT_CUDA_LAUNCHED("cached_attention_prefix_kernel");
}

}  // namespace

void cached_attention_prefix_cuda(const Context& ctx, const CachedAttentionArgs& a, float* sums,
                                  int first_part, int splits) {
  const Parts parts{sums, first_part + splits};
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVec = kWidth<T>;
    const bool wide =
        aligned16(a.qkv, a.cache) && a.head_size % kVec == 0 && a.head_size <= kWarp * kVec;
    wide ? launch<T, kVec, 1>(ctx, a, parts, first_part, splits)
         : launch<T, 1, kPerLane>(ctx, a, parts, first_part, splits);
  });
}

}  // namespace saturate::kernels
