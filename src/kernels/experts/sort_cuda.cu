// SPDX-License-Identifier: Apache-2.0
// The counting sort behind limit_choices and sort_by_expert, in two launches: blocks count the
// choices of their chunk, then each adds up what lies before it and ranks its own.
#include "kernels/device/reduce.cuh"
#include "kernels/experts/experts_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kWarps = kSortChunk / kWarp;

// Choices in the order in which they are ranked; the expert of choice i, -1: none.
struct ByRow {  // for rows sorted by expert
  SortByExpertArgs a;
  __device__ __forceinline__ int64_t count() const { return a.rows * a.k; }
  __device__ __forceinline__ int64_t place(int64_t i) const { return i; }
  __device__ __forceinline__ int expert(int64_t i) const {
    const int64_t choice = a.choices[i], e = choice - a.first_expert;
    return choice >= 0 && e >= 0 && e < a.experts ? static_cast<int>(e) : -1;
  }
};
struct ByChoice {  // for places at an expert: all first choices, then all second ones
  LimitChoicesArgs a;
  __device__ __forceinline__ int64_t count() const { return a.rows * a.k; }
  __device__ __forceinline__ int64_t place(int64_t i) const {
    return i % a.rows * a.k + i / a.rows;
  }
  __device__ __forceinline__ int expert(int64_t i) const { return a.choices[place(i)]; }
};

// chunks[block][e]: choices of e in the chunk.
template <class Order>
__global__ void __launch_bounds__(kSortChunk)
    expert_count_fwd_kernel(Order order, int experts, int32_t* chunks) {
  __shared__ int32_t counts[kMostExperts];
  for (int e = threadIdx.x; e < experts; e += kSortChunk) counts[e] = 0;
  __syncthreads();  // the counters are clear
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSortChunk + threadIdx.x;
  const int expert = i < order.count() ? order.expert(i) : -1;
  // Integers: the order of the additions does not matter.
  if (expert >= 0) atomicAdd(&counts[expert], 1);
  __syncthreads();  // all have counted
  for (int e = threadIdx.x; e < experts; e += kSortChunk)
    chunks[static_cast<int64_t>(blockIdx.x) * experts + e] = counts[e];
}

// Rank of this thread's choice among those of its expert, before it in the order; `before` gets what
// the chunks before this one hold of each expert, `all` what all of them hold.
__device__ __forceinline__ int rank_in_expert(int expert, int experts, const int32_t* chunks,
                                              int32_t* before, int32_t* all,
                                              int32_t (*of_warp)[kMostExperts]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int e = warp; e < experts; e += kWarps) {
    int lower = 0, total = 0;
    for (unsigned c = lane; c < gridDim.x; c += kWarp) {
      const int n = chunks[static_cast<int64_t>(c) * experts + e];
      total += n;
      lower += c < blockIdx.x ? n : 0;
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      lower += __shfl_xor_sync(0xFFFFFFFFu, lower, offset);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, offset);
    }
    if (lane == 0) before[e] = lower, all[e] = total;
  }
  for (int e = lane; e < experts; e += kWarp) of_warp[warp][e] = 0;
  __syncwarp();
  const unsigned same = __match_any_sync(0xFFFFFFFFu, expert);
  const int in_warp = __popc(same & ((1u << lane) - 1));
  if (expert >= 0 && in_warp == 0) of_warp[warp][expert] = __popc(same);
  __syncthreads();  // before, all and every warp's counts are there
  if (expert < 0) return -1;
  int rank = before[expert] + in_warp;
  for (int w = 0; w < warp; ++w) rank += of_warp[w][expert];
  return rank;
}

__global__ void __launch_bounds__(kSortChunk)
    sort_by_expert_fwd_kernel(ByRow order, const int32_t* chunks) {
  __shared__ int32_t before[kMostExperts], all[kMostExperts], of_warp[kWarps][kMostExperts];
  const SortByExpertArgs& a = order.a;
  const int experts = static_cast<int>(a.experts);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSortChunk + threadIdx.x;
  const int expert = i < order.count() ? order.expert(i) : -1;
  const int rank = rank_in_expert(expert, experts, chunks, before, all, of_warp);
  __syncthreads();  // all have read `before`, which the offsets replace
  if (threadIdx.x == 0) {
    int32_t sum = 0;
    for (int e = 0; e < experts; ++e) {
      before[e] = sum;
      sum += all[e];
    }
    if (blockIdx.x == 0) a.offsets[experts] = sum;
  }
  __syncthreads();  // the offsets are there
  if (blockIdx.x == 0)
    for (int e = threadIdx.x; e < experts; e += kSortChunk) a.offsets[e] = before[e];
  if (i < order.count()) a.slots[i] = expert >= 0 ? before[expert] + rank : -1;
}

__global__ void __launch_bounds__(kSortChunk)
    limit_choices_fwd_kernel(ByChoice order, const int32_t* chunks) {
  __shared__ int32_t before[kMostExperts], all[kMostExperts], of_warp[kWarps][kMostExperts];
  const LimitChoicesArgs& a = order.a;
  const int experts = static_cast<int>(a.experts);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSortChunk + threadIdx.x;
  const int expert = i < order.count() ? order.expert(i) : -1;
  const int rank = rank_in_expert(expert, experts, chunks, before, all, of_warp);
  if (i < order.count() && a.kept != nullptr) {
    const int64_t own = i % a.rows - a.first_row;
    if (own >= 0 && own < a.own_rows)
      a.kept[own * a.k + i / a.rows] = expert >= 0 && rank < capacity_of(a) ? expert : -1;
  }
  if (!a.count_first) {
    if (blockIdx.x == 0)
      for (int e = threadIdx.x; e < experts; e += kSortChunk) a.counts[e] = all[e];
    return;
  }
  // First choices end within one block: it knows those before it, and counts its own.
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kSortChunk;
  if (a.rows <= chunk || a.rows > chunk + kSortChunk) return;
  __syncthreads();  // all have read `before`
  if (i < a.rows && expert >= 0) atomicAdd(&before[expert], 1);
  __syncthreads();  // all have counted
  for (int e = threadIdx.x; e < experts; e += kSortChunk) a.counts[e] = before[e];
}

unsigned chunks_of(int64_t choices) {
  return static_cast<unsigned>((choices + kSortChunk - 1) / kSortChunk);
}

}  // namespace

void limit_choices_cuda(const Context& ctx, const LimitChoicesArgs& a) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  const unsigned blocks = chunks_of(a.rows * a.k);
  expert_count_fwd_kernel<<<blocks, kSortChunk, 0, stream>>>(
      ByChoice{a}, static_cast<int>(a.experts), a.scratch);
  SAT_CUDA_LAUNCHED("limit_choices count");
  limit_choices_fwd_kernel<<<blocks, kSortChunk, 0, stream>>>(ByChoice{a}, a.scratch);
  SAT_CUDA_LAUNCHED("limit_choices");
}

void sort_by_expert_cuda(const Context& ctx, const SortByExpertArgs& a) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  const unsigned blocks = chunks_of(a.rows * a.k);
  expert_count_fwd_kernel<<<blocks, kSortChunk, 0, stream>>>(ByRow{a}, static_cast<int>(a.experts),
                                                             a.scratch);
  SAT_CUDA_LAUNCHED("sort_by_expert count");
  sort_by_expert_fwd_kernel<<<blocks, kSortChunk, 0, stream>>>(ByRow{a}, a.scratch);
  SAT_CUDA_LAUNCHED("sort_by_expert");
}

}  // namespace saturate::kernels
