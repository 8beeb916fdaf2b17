// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kPerLane = 8;  // channels that a lane holds at most

// Where the history of one row lies (cached_attention.h).
struct History {
  const int32_t* table;  // of slots or pages; null: contiguous
  int64_t start;
  int page_size;  // 0: not paged

  __device__ History(const CachedAttentionArgs& a, int64_t row)
      : table(a.slots), start(0), page_size(0) {
    if (a.page_table == nullptr) {
      start = a.starts[row];
      if (table != nullptr) table += start;
      return;
    }
    page_size = static_cast<int>(a.page_size);
    table = a.page_table + row * a.page_table_stride;
  }
  __device__ int64_t slot(int j) const {
    if (page_size > 0) return int64_t{table[j / page_size]} * page_size + j % page_size;
    return table != nullptr ? table[j] : start + j;
  }
  __device__ int64_t new_slot(int last) const { return page_size > 0 ? slot(last) : start + last; }
};

// What one block knows of its share of the positions; `all` is the highest score among them.
struct Part {
  float all, denominator;
};

// One block, one row and head and, of gridDim.z splits, one share of the positions. A group of
// lanes shares the channels of one key, so that a key is one coalesced access; the block's groups
// walk the positions side by side, each with a softmax of its own, and the partial results are
// joined in order of the groups. With several splits the sums go to `parts` (rows, heads, splits,
// head_size) and (rows, heads, splits) Parts behind them, undivided.
template <class T, int kVec, int kChunks>
__global__ void __launch_bounds__(256)
    cached_attention_kernel(CachedAttentionArgs a, int group_lanes, float* parts) {
  static_assert(kVec * kChunks <= kPerLane);
  extern __shared__ float shared[];  // (groups, head_size) sums, then (groups) tops, (groups) sums
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, size = static_cast<int>(a.head_size);
  const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
  const int64_t q_width = a.heads * a.head_size, kv_width = a.kv_heads * a.head_size;
  const int group = threadIdx.x / group_lanes, groups = blockDim.x / group_lanes;
  const int lane = threadIdx.x % group_lanes;
  T* const out = static_cast<T*>(a.o) + row * q_width + head * size;
  const int split = blockIdx.z, splits = gridDim.z;
  if (a.finished != nullptr && a.finished[row] != 0) {
    if (splits > 1) return;
    for (int c = threadIdx.x; c < size; c += blockDim.x) out[c] = from_float<T>(0.0f);
    return;
  }
  const int last = a.positions[row];
  const int share = (last + splits) / splits;  // of last + 1 positions, rounded up
  const int begin = min(split * share, last + 1), end = min(begin + share, last + 1);
  const History history(a, row);
  const T* const qkv = static_cast<const T*>(a.qkv) + row * (q_width + 2 * kv_width);
  const T* const own = qkv + q_width + kv_head * size;
  T* const cache = static_cast<T*>(a.cache) + kv_head * size;
  if (split == 0 && head % static_cast<int>(a.heads / a.kv_heads) == 0) {
    T* const to = cache + history.new_slot(last) * 2 * kv_width;
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
  for (int j = begin + group; j < end; j += groups) {
    const T* key = own;
    if (j < last) key = cache + history.slot(j) * 2 * kv_width;
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
  __syncthreads();                            // every group's partial result is there
  const int used = min(groups, end - begin);  // the others saw no position
  Part part{-CUDART_INF_F, 0.0f};
  for (int g = 0; g < used; ++g) part.all = fmaxf(part.all, tops[g]);
  for (int g = 0; g < used; ++g) part.denominator += sums[g] * __expf(tops[g] - part.all);
  const int64_t item = (row * a.heads + head) * splits + split;
  for (int c = threadIdx.x; c < size; c += blockDim.x) {
    float total = 0.0f;
    for (int g = 0; g < used; ++g) total += shared[g * size + c] * __expf(tops[g] - part.all);
    if (splits == 1)
      out[c] = from_float<T>(total / part.denominator);
    else
      parts[item * size + c] = total;
  }
  if (splits > 1 && threadIdx.x == 0)
    reinterpret_cast<Part*>(parts + a.rows * a.heads * splits * size)[item] = part;
}

// o from the parts of one row and head, in order of the splits.
template <class T>
__global__ void cached_attention_join_kernel(CachedAttentionArgs a, const float* parts,
                                             int splits) {
  const int64_t row = blockIdx.x, head = blockIdx.y;
  const int size = static_cast<int>(a.head_size);
  T* const out = static_cast<T*>(a.o) + (row * a.heads + head) * size;
  const int64_t first = (row * a.heads + head) * splits;
  const Part* const known =
      reinterpret_cast<const Part*>(parts + a.rows * a.heads * splits * size) + first;
  const bool finished = a.finished != nullptr && a.finished[row] != 0;
  float all = -CUDART_INF_F, denominator = 0.0f;
  for (int s = 0; !finished && s < splits; ++s) all = fmaxf(all, known[s].all);
  for (int s = 0; !finished && s < splits; ++s)
    denominator += known[s].denominator * __expf(known[s].all - all);
  for (int c = threadIdx.x; c < size; c += blockDim.x) {
    float total = 0.0f;
    for (int s = 0; !finished && s < splits; ++s)
      total += parts[(first + s) * size + c] * __expf(known[s].all - all);
    out[c] = from_float<T>(finished ? 0.0f : total / denominator);
  }
}

// Blocks that share the positions of one row and head: enough to put two on every multiprocessor,
// as far as each gets kLeast positions and the parts fit the workspace.
int splits_of(const Context& ctx, const CachedAttentionArgs& a) {
  constexpr int64_t kLeast = 256;  // a block's start and the join cost about as much as these
  int multiprocessors = 0;
  SAT_CUDA(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ctx.device.index));
  const int64_t items = a.rows * a.heads;
  const auto bytes = static_cast<int64_t>(ctx.workspace_bytes);
  const int64_t room =
      bytes / (items * (a.head_size * int64_t{sizeof(float)} + int64_t{sizeof(Part)}));
  const int64_t wanted = (2 * multiprocessors + items - 1) / items;
  return static_cast<int>(
      std::max<int64_t>(1, std::min({wanted, a.max_positions / kLeast, room, int64_t{64}})));
}

template <class T, int kVec, int kChunks>
void launch(const Context& ctx, const CachedAttentionArgs& a) {
  int group_lanes = 1;
  while (group_lanes * kVec * kChunks < a.head_size) group_lanes *= 2;
  const int threads = a.max_positions > 256 ? 256 : 128;
  const int groups = threads / group_lanes;
  const auto shared =
      static_cast<size_t>(groups) * static_cast<size_t>(a.head_size + 2) * sizeof(float);
  const int splits = splits_of(ctx, a);
  auto* const parts = static_cast<float*>(ctx.workspace);
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.heads),
                  static_cast<unsigned>(splits));
  cached_attention_kernel<T, kVec, kChunks>
      <<<grid, threads, shared, cuda::stream_of(ctx)>>>(a, group_lanes, parts);
  SAT_CUDA_LAUNCHED("cached_attention_kernel");
  if (splits == 1) return;
  const dim3 join(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.heads));
  cached_attention_join_kernel<T><<<join, 64, 0, cuda::stream_of(ctx)>>>(a, parts, splits);
  SAT_CUDA_LAUNCHED("cached_attention_join_kernel");
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
