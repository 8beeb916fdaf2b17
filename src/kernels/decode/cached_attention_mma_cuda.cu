// SPDX-License-Identifier: Apache-2.0
// The history by tensor cores: eight query heads that share a key head are the rows of both products,
// so that keys and values are read once for all of them. Each warp has tiles of positions of its own
// under way to shared memory, and waits for no other until all have seen theirs.
#include "kernels/decode/cached_attention_device.cuh"
#include "kernels/decode/cached_attention_impl.h"
#include "kernels/device/early_launch.cuh"
#include "kernels/device/mma.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace cached;

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTile = 16, kStages = 2;  // positions of a tile; tiles that a warp has under way
[[maybe_unused]] constexpr float kLog2E = 1.44269504f;

// c0, c1 += the upper eight rows of a b; the lower eight of a are zeros and cost no register.
template <class T>
__device__ __forceinline__ void multiply_add_upper(float& c0, float& c1, uint32_t a0, uint32_t a2,
                                                   uint32_t b0, uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  float unused[2];
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, "
        "{%0,%1,%9,%9};"
        : "+f"(c0), "+f"(c1), "=f"(unused[0]), "=f"(unused[1])
        : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.0f));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, "
        "{%7,%8}, {%0,%1,%9,%9};"
        : "+f"(c0), "+f"(c1), "=f"(unused[0]), "=f"(unused[1])
        : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.0f));
  }
#endif
}

// Largest and sum over the four lanes that share a row of a fragment.
[[maybe_unused]] __device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
[[maybe_unused]] __device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

template <int kSize>
union Shared {
  uint16_t tiles[kWarps][kStages][2][kTile * kSize];  // of keys and of values, rows of positions
  struct {                                            // afterwards, what the warps found
    float sums[kWarps][kMmaQueries][kSize];
    float tops[kWarps][kMmaQueries], denominators[kWarps][kMmaQueries];
  } found;
};

// An item is a row, a key head and up to kMmaQueries of its query heads (a bundle): blockIdx.x. Its
// positions are shared by gridDim.y splits and, in turns of kTile, by the warps of a block, each with
// a softmax of its own. Lane 4 g + t has query g: scores of positions 2 t, 2 t + 1 and eight more,
// sums of channels 2 t, 2 t + 1 of every eight.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads, kSize == 64 ? 4 : 2)
    cached_attention_mma_kernel(CachedAttentionArgs a, int bundles, Parts parts) {
#if __CUDA_ARCH__ >= 800
  change_over();
  extern __shared__ char bytes[];
  auto& shared = *reinterpret_cast<Shared<kSize>*>(bytes);
  const int warp = threadIdx.x / kWarp, g = lane() / 4, t = lane() % 4;
  const int64_t row = blockIdx.x / (a.kv_heads * bundles);
  const int kv_head = static_cast<int>(blockIdx.x / bundles % a.kv_heads);
  const int bundle = static_cast<int>(blockIdx.x % bundles);
  const int queries = static_cast<int>(a.heads / a.kv_heads);
  const int first_head = kv_head * queries + bundle * static_cast<int>(kMmaQueries);
  const int here =
      min(queries - bundle * static_cast<int>(kMmaQueries), static_cast<int>(kMmaQueries));
  const int64_t q_width = a.heads * kSize, kv_width = a.kv_heads * kSize;
  T* const out = static_cast<T*>(a.o) + row * q_width + first_head * kSize;
  if (is_idle(a, row)) {
    if (parts.count > 1) return;
    for (int i = threadIdx.x; i < here * kSize; i += kThreads) out[i] = from_float<T>(0.0f);
    return;
  }
  const bool memory = a.lengths != nullptr;
  const int last = memory ? a.lengths[row] - 1 : a.positions[row];
  const int first = a.window > 0 ? max(last + 1 - static_cast<int>(a.window), 0) : 0;
  const int split = blockIdx.y, splits = gridDim.y;
  const int share = (last - first + splits) / splits;  // of last + 1 - first positions, rounded up
  const int begin = min(first + split * share, last + 1), end = min(begin + share, last + 1);
  const History history(a, row);
  const T* const qkv =
      static_cast<const T*>(a.qkv) + row * (memory ? q_width : q_width + 2 * kv_width);
  const T* const own = qkv + q_width + kv_head * kSize;
  T* const cache = static_cast<T*>(a.cache) + kv_head * kSize;

  // Starts the reads of one tile; behind the end zeros come.
  const auto fetch = [&](int tile, int stage) {
    constexpr int kChunks = kSize / 8;  // of 16 bytes, a row
    const auto keys = static_cast<uint32_t>(__cvta_generic_to_shared(shared.tiles[warp][stage][0]));
    const auto values =
        static_cast<uint32_t>(__cvta_generic_to_shared(shared.tiles[warp][stage][1]));
#pragma unroll
    for (int i = lane(); i < kTile * kChunks; i += kWarp) {
      const int place = i / kChunks, chunk = i % kChunks, j = tile + place;
      const T* key = own + 8 * chunk;
      if (memory || j < last)
        key = cache + history.slot(min(j, end - 1)) * 2 * kv_width + 8 * chunk;
      const int bytes_read = j < end ? 16 : 0;
      copy_chunk(keys + chunk_at<kSize>(place, chunk), key, bytes_read);
      copy_chunk(values + chunk_at<kSize>(place, chunk), key + kv_width, bytes_read);
    }
  };
  int tile = begin + warp * kTile;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (tile + stage * kWarps * kTile < end) fetch(tile + stage * kWarps * kTile, stage);
    copy_commit();
  }
  if (!memory && split == 0 && bundle == 0) {  // the new token joins the history
    T* const to = cache + history.new_slot(last) * 2 * kv_width;
    for (int c = threadIdx.x; c < 2 * kSize; c += kThreads) {
      const int64_t at = c / kSize * kv_width + c % kSize;
      to[at] = own[at];
    }
  }
  uint32_t q[kSize / 16][2];
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      q[k][i] = g >= here ? 0
                          : *reinterpret_cast<const uint32_t*>(qkv + (first_head + g) * kSize +
                                                               16 * k + 8 * i + 2 * t);
  }

  float sum_v[kSize / 8][2] = {}, top = -CUDART_INF_F, sum = 0.0f;
  for (int stage = 0; tile < end; tile += kWarps * kTile, stage = (stage + 1) % kStages) {
    copy_wait<kStages - 1>();
    __syncwarp();  // every lane's part of the tile is there
    const auto keys = static_cast<uint32_t>(__cvta_generic_to_shared(shared.tiles[warp][stage][0]));
    const auto values =
        static_cast<uint32_t>(__cvta_generic_to_shared(shared.tiles[warp][stage][1]));
    float s[4] = {};
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      uint32_t f[4];
      load_right_rows<kSize>(f, keys, 0, k);
      multiply_add_upper<T>(s[0], s[1], q[k][0], q[k][1], f[0], f[1]);
      multiply_add_upper<T>(s[2], s[3], q[k][0], q[k][1], f[2], f[3]);
    }
    float most = top;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = tile + i / 2 * 8 + 2 * t + i % 2;
      s[i] *= a.scale;
      if (a.soft_cap > 0.0f) s[i] = a.soft_cap * tanhf(s[i] / a.soft_cap);
      if (a.bias != nullptr && g < here && j < end)
        s[i] += static_cast<const float*>(a.bias)[(first_head + g) * a.bias_stride + (last - j)];
      s[i] = j < end ? s[i] * kLog2E : -CUDART_INF_F;
      most = fmaxf(most, s[i]);
    }
    most = quad_max(most);
    const float keep = exp2f(top - most);
    top = most;
    sum *= keep;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = exp2f(s[i] - top);
      sum += s[i];
    }
    const uint32_t p[2] = {pack<T>(s[0], s[1]), pack<T>(s[2], s[3])};
#pragma unroll
    for (int n = 0; n < kSize / 16; ++n) {
      uint32_t f[4];
      load_right_columns<kSize>(f, values, 0, n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&to)[2] = sum_v[2 * n + half];
        to[0] *= keep;
        to[1] *= keep;
        multiply_add_upper<T>(to[0], to[1], p[0], p[1], f[2 * half], f[2 * half + 1]);
      }
    }
    __syncwarp();  // no lane needs the tile any more
    const int next = tile + kStages * kWarps * kTile;
    if (next < end) fetch(next, stage);
    copy_commit();
  }
  sum = quad_sum(sum);

  __syncthreads();  // tiles are done with
#pragma unroll
  for (int n = 0; n < kSize / 8; ++n) {
    *reinterpret_cast<float2*>(&shared.found.sums[warp][g][8 * n + 2 * t]) =
        make_float2(sum_v[n][0], sum_v[n][1]);
  }
  if (t == 0) {
    shared.found.tops[warp][g] = top;
    shared.found.denominators[warp][g] = sum;
  }
  __syncthreads();  // what every warp found is there
  for (int i = threadIdx.x; i < here * kSize; i += kThreads) {
    const int query = i / kSize, c = i % kSize;
    float all = -CUDART_INF_F, total = 0.0f, denominator = 0.0f;
    for (int w = 0; w < kWarps; ++w) all = fmaxf(all, shared.found.tops[w][query]);
    for (int w = 0; w < kWarps && all > -CUDART_INF_F; ++w) {
      const float weight = exp2f(shared.found.tops[w][query] - all);
      total += weight * shared.found.sums[w][query][c];
      denominator += weight * shared.found.denominators[w][query];
    }
    if (parts.count == 1) {
      out[i] = from_float<T>(total / denominator);
      continue;
    }
    const int64_t part = parts.item(a, row, first_head + query, split);
    parts.sum(a, part)[c] = total;
    if (c == 0) parts.part(a, part) = {all / kLog2E, denominator};
  }
#endif
}

template <class T, int kSize>
void launch(const Context& ctx, const CachedAttentionArgs& a) {
  const int64_t bundles = mma_bundles(a), items = a.rows * a.kv_heads * bundles;
  const Parts parts{static_cast<float*>(ctx.workspace), mma_splits(ctx, a)};
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(parts.count));
  const auto kernel = cached_attention_mma_kernel<T, kSize>;
  SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(Shared<kSize>)));
  SAT_CUDA(launch_kernel(starts_early(ctx, a.rows), kernel, grid, dim3(kThreads),
                         sizeof(Shared<kSize>), cuda::stream_of(ctx), a, static_cast<int>(bundles),
                         parts));
  SAT_CUDA_LAUNCHED("cached_attention_mma_kernel");
  if (parts.count > 1) cached_attention_join_cuda(ctx, a, parts.count);
}

}  // namespace

void cached_attention_mma_cuda(const Context& ctx, const CachedAttentionArgs& a) {
  if (a.dtype == DType::bf16) {
    a.head_size == 64 ? launch<__nv_bfloat16, 64>(ctx, a) : launch<__nv_bfloat16, 128>(ctx, a);
  } else {
    a.head_size == 64 ? launch<__half, 64>(ctx, a) : launch<__half, 128>(ctx, a);
  }
}

}  // namespace saturate::kernels
