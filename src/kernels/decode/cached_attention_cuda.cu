// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/decode/cached_attention_device.cuh"
#include "kernels/decode/cached_attention_impl.h"
#include "kernels/device/early_launch.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace cached;

constexpr int kShortThreads = 128, kShortBlocks = 7;  // of these so many on a multiprocessor

// One block, one row and head and, of gridDim.z splits, one share of the positions behind those
// that its group shares. A group of lanes shares the channels of one key, so that a key is one
// coalesced access; the block's groups walk the positions side by side, each with a softmax of its
// own, and the partial results are joined in order of the groups. Without parts (count 1) the
// result goes to o.
template <class T, int kVec, int kChunks>
__global__ void __launch_bounds__(256)
    cached_attention_kernel(CachedAttentionArgs a, int group_lanes, Parts parts) {
  static_assert(kVec * kChunks <= kPerLane);
  change_over();
  extern __shared__ float shared[];  // (groups, head_size) sums, then (groups) tops, (groups) sums
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, size = static_cast<int>(a.head_size);
  const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
  const int64_t q_width = a.heads * a.head_size, kv_width = a.kv_heads * a.head_size;
  const int group = threadIdx.x / group_lanes, groups = blockDim.x / group_lanes;
  const int lane = threadIdx.x % group_lanes;
  T* const out = static_cast<T*>(a.o) + row * q_width + head * size;
  const int split = blockIdx.z, splits = gridDim.z;
  const bool memory = a.lengths != nullptr;
  const int last = memory ? a.lengths[row] - 1 : a.positions[row];
  if (is_idle(a, row)) {
    if (parts.count > 1) return;
    for (int c = threadIdx.x; c < size; c += blockDim.x) out[c] = from_float<T>(0.0f);
    return;
  }
  const int seen = a.window > 0 ? max(last + 1 - static_cast<int>(a.window), 0) : 0;
  const int first = max(min(shared_positions(a, row), last), seen);
  const int share = (last - first + splits) / splits;  // of last + 1 - first positions, rounded up
  const int begin = min(first + split * share, last + 1), end = min(begin + share, last + 1);
  const History history(a, row);
  const T* const qkv =
      static_cast<const T*>(a.qkv) + row * (memory ? q_width : q_width + 2 * kv_width);
  const T* const own = qkv + q_width + kv_head * size;
  T* const cache = static_cast<T*>(a.cache) + kv_head * size;
  if (!memory && split == 0 && head % static_cast<int>(a.heads / a.kv_heads) == 0) {
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
  const uint32_t lanes = lanes_of_group(group_lanes);
  float top = -CUDART_INF_F, sum = 0.0f;
  for (int j = begin + group; j < end; j += groups) {
    const T* key = own;
    if (memory || j < last) key = cache + history.slot(j) * 2 * kv_width;
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
    if (a.soft_cap > 0.0f) score = a.soft_cap * tanhf(score / a.soft_cap);
    if (a.bias != nullptr)
      score += static_cast<const float*>(a.bias)[head * a.bias_stride + (last - j)];
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
  const int64_t item = parts.item(a, row, head, split);
  for (int c = threadIdx.x; c < size; c += blockDim.x) {
    float total = 0.0f;
    for (int g = 0; g < used; ++g) total += shared[g * size + c] * __expf(tops[g] - part.all);
    if (parts.count == 1)
      out[c] = from_float<T>(total / part.denominator);
    else
      parts.sum(a, item)[c] = total;
  }
  if (parts.count > 1 && threadIdx.x == 0) parts.part(a, item) = part;
}

// Short histories: one warp, one row and head. Groups of lanes walk the positions side by side as
// above, but nothing passes through shared memory: the slots of 32 positions are read at once, one a
// lane, and the groups' softmaxes are joined by shuffles, in the same tree for every lane.
template <class T, int kVec>
__global__ void __launch_bounds__(kShortThreads, kShortBlocks)
    cached_attention_short_kernel(CachedAttentionArgs a, int group_lanes) {
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const int64_t item = int64_t{blockIdx.x} * (kShortThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t row = item / a.heads;
  if (row >= a.rows) return;  // the whole warp
  const int head = static_cast<int>(item % a.heads), size = static_cast<int>(a.head_size);
  const int queries = static_cast<int>(a.heads / a.kv_heads), kv_head = head / queries;
  const int64_t q_width = a.heads * a.head_size, kv_width = a.kv_heads * a.head_size;
  const int thread = threadIdx.x % kWarp, groups = kWarp / group_lanes;
  const int group = thread / group_lanes, c = thread % group_lanes * kVec;
  const bool has_channels = c < size;
  T* const out = static_cast<T*>(a.o) + row * q_width + head * size;
  if (is_idle(a, row)) {
    const float zeros[kVec] = {};
    if (group == 0 && has_channels) store(out + c, zeros);
    return;
  }
  const bool memory = a.lengths != nullptr;
  const int last = memory ? a.lengths[row] - 1 : a.positions[row];
  const int first = a.window > 0 ? max(last + 1 - static_cast<int>(a.window), 0) : 0;
  const History history(a, row);
  const T* const qkv =
      static_cast<const T*>(a.qkv) + row * (memory ? q_width : q_width + 2 * kv_width);
  const T* const own = qkv + q_width + kv_head * size;
  T* const cache = static_cast<T*>(a.cache) + kv_head * size;
  if (!memory && head % queries == 0) {
    T* const to = cache + history.new_slot(last) * 2 * kv_width;
    for (int i = thread; i < size; i += kWarp) {
      to[i] = own[i];
      to[kv_width + i] = own[kv_width + i];
    }
  }

  float q[kVec] = {}, sum_v[kVec] = {};
  if (has_channels) load(q, qkv + head * size + c);
#pragma unroll
  for (int i = 0; i < kVec; ++i) q[i] *= a.scale;
  float top = -CUDART_INF_F, sum = 0.0f;
  for (int base = first; base <= last; base += kWarp) {
    int slot = 0;
    if (base + thread < last + (memory ? 1 : 0))
      slot = static_cast<int>(history.slot(base + thread));
    const int count = min(kWarp, last + 1 - base);
    for (int n = 0; n < count; n += groups) {  // every lane takes part in each shuffle
      const int j = n + group;
      const int64_t at = __shfl_sync(kAll, slot, min(j, kWarp - 1));
      float k[kVec] = {}, v[kVec] = {};
      if (j < count && has_channels) {
        const T* const key = memory || base + j < last ? cache + at * 2 * kv_width : own;
        load(k, key + c);
        load(v, key + kv_width + c);
      }
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < kVec; ++i) score = fmaf(q[i], k[i], score);
      for (int offset = group_lanes / 2; offset > 0; offset /= 2)
        score += __shfl_xor_sync(kAll, score, offset);
      if (j >= count) continue;
      if (a.soft_cap > 0.0f) score = a.soft_cap * tanhf(score / a.soft_cap);
      if (a.bias != nullptr)
        score += static_cast<const float*>(a.bias)[head * a.bias_stride + (last - base - j)];
      const float before = top;
      top = fmaxf(top, score);
      const float keep = __expf(before - top), p = __expf(score - top);
      sum = sum * keep + p;
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum_v[i] = fmaf(p, v[i], sum_v[i] * keep);
    }
  }
  // Group 0 has seen a position; others may have seen none, with a top of minus infinity.
  for (int offset = kWarp / 2; offset >= group_lanes; offset /= 2) {
    const float other = __shfl_xor_sync(kAll, top, offset), all = fmaxf(top, other);
    const float keep = top == -CUDART_INF_F ? 0.0f : __expf(top - all);
    top = all;
    sum *= keep;
    sum += __shfl_xor_sync(kAll, sum, offset);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      sum_v[i] *= keep;
      sum_v[i] += __shfl_xor_sync(kAll, sum_v[i], offset);
    }
  }
  if (group != 0 || !has_channels) return;
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum_v[i] /= sum;
  store(out + c, sum_v);
}

// o from the parts of one row and head, in their order.
template <class T>
__global__ void cached_attention_join_kernel(CachedAttentionArgs a, Parts parts) {
  change_over();
  const int64_t row = blockIdx.x, head = blockIdx.y;
  const int size = static_cast<int>(a.head_size);
  T* const out = static_cast<T*>(a.o) + (row * a.heads + head) * size;
  const int count = is_idle(a, row) ? 0 : parts.count;
  const int64_t first = parts.item(a, row, head, 0);
  float all = -CUDART_INF_F, denominator = 0.0f;
  for (int n = 0; n < count; ++n) all = fmaxf(all, parts.part(a, first + n).all);
  for (int n = 0; n < count; ++n) {
    const Part part = parts.part(a, first + n);
    denominator += part.denominator * __expf(part.all - all);
  }
  for (int c = threadIdx.x; c < size; c += blockDim.x) {
    float total = 0.0f;
    for (int n = 0; n < count; ++n)
      total += parts.sum(a, first + n)[c] * __expf(parts.part(a, first + n).all - all);
    out[c] = from_float<T>(count == 0 ? 0.0f : total / denominator);
  }
}

// Blocks for each of `items` that share up to max_positions: enough to put two on every
// multiprocessor, as far as each gets kLeast positions.
int splits_of(const Context& ctx, const CachedAttentionArgs& a, int64_t items) {
  // A block's start and the join cost about as much as 256 positions of one that walks them by eight;
  // but where few rows leave multiprocessors without a block, a walk of 64 is over sooner.
  constexpr int64_t kLeast = 64, kWhole = 256;
  if (a.max_positions < 2 * kWhole) return 1;
  int multiprocessors = 0;
  SAT_CUDA(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ctx.device.index));
  const int64_t wanted = (2 * multiprocessors + items - 1) / items;
  return static_cast<int>(
      std::max<int64_t>(1, std::min({wanted, a.max_positions / kLeast, int64_t{64}})));
}

// Whether every multiprocessor gets warps enough of one row and head each. Slots are 32-bit there, which
// those of pages need not be.
bool is_short(const Context& ctx, const CachedAttentionArgs& a) {
  return a.max_positions <= kShortHistory && a.page_table == nullptr && aligned16(a.o) &&
         a.rows * a.heads >= int64_t{8} * capability_of(ctx.device).multiprocessors;
}

template <class T, int kVec, int kChunks>
void launch(const Context& ctx, CachedAttentionArgs a) {
  int group_lanes = 1;
  while (group_lanes * kVec * kChunks < a.head_size) group_lanes *= 2;
  if constexpr (kChunks == 1) {
    if (is_short(ctx, a)) {
      constexpr int64_t kItems = kShortThreads / kWarp;
      const auto blocks = static_cast<unsigned>((a.rows * a.heads + kItems - 1) / kItems);
      cached_attention_short_kernel<T, kVec>
          <<<blocks, kShortThreads, 0, cuda::stream_of(ctx)>>>(a, group_lanes);
      SAT_CUDA_LAUNCHED("cached_attention_short_kernel");
      return;
    }
  }
  const int threads = a.max_positions > 256 ? 256 : 128;
  const int groups = threads / group_lanes;
  const auto shared =
      static_cast<size_t>(groups) * static_cast<size_t>(a.head_size + 2) * sizeof(float);
  int splits = splits_of(ctx, a, a.rows * a.heads), prefix_splits = 0;
  const int64_t room = room_for_parts(ctx, a);
  if (may_share_prefix(a) && room >= 2) {
    const int64_t items = prefix_blocks(a);
    splits = static_cast<int>(std::min<int64_t>(splits, room - 1));
    prefix_splits = static_cast<int>(std::min<int64_t>(splits_of(ctx, a, items), room - splits));
  } else {
    a.shared_positions = nullptr;  // every row reads all of its positions
    splits = static_cast<int>(std::clamp<int64_t>(room, 1, splits));
  }
  const Parts parts{static_cast<float*>(ctx.workspace), splits + prefix_splits};
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.heads),
                  static_cast<unsigned>(splits));
  const bool early = starts_early(ctx, a.rows);
  SAT_CUDA(launch_kernel(early, cached_attention_kernel<T, kVec, kChunks>, grid,
                         dim3(static_cast<unsigned>(threads)), shared, cuda::stream_of(ctx), a,
                         group_lanes, parts));
  SAT_CUDA_LAUNCHED("cached_attention_kernel");
  if (prefix_splits > 0) cached_attention_prefix_cuda(ctx, a, parts.sums, splits, prefix_splits);
  if (parts.count > 1) cached_attention_join_cuda(ctx, a, parts.count);
}

}  // namespace

void cached_attention_join_cuda(const Context& ctx, const CachedAttentionArgs& a, int count) {
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.heads));
  const Parts parts{static_cast<float*>(ctx.workspace), count};
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    SAT_CUDA(launch_kernel(starts_early(ctx, a.rows), cached_attention_join_kernel<T>, grid,
                           dim3(64), 0, cuda::stream_of(ctx), a, parts));
  });
  SAT_CUDA_LAUNCHED("cached_attention_join_kernel");
}

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
