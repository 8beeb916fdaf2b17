// SPDX-License-Identifier: Apache-2.0
// Backward pass of short sequences in one kernel: a block owns a key head of a sequence, so that
// every tile comes from memory once and five products do where two kernels need seven.
//
// As in mma/backward.cuh each warp owns 16 keys, with the queries in columns: d_v and d_k
// are sums in registers. The gradient of the scores goes through shared memory, from where each
// warp takes 16 queries for d_q = d_s k. The sum d_o . o (delta) is made on the way, so no other
// kernel runs before.
//
// Sequences of several tiles of keys are cut in tasks, a tile of keys or of queries each, which blocks
// of their own take: one block would be at work long after all others. Their scores are computed twice,
// since no block may add to d_q in an order that is not fixed.
#pragma once
#include <math_constants.h>

#include "kernels/attention/mma/backward.cuh"
#include "kernels/attention/short/short.h"

namespace saturate::kernels::attention {

// kRows = 16 kWarps rows of every tile.
template <class T_, int kD_, int kWarps_, bool kDrops_>
struct ShortTile {
  using T = T_;
  static constexpr int kD = kD_, kWarps = kWarps_, kRows = kWarps * 16, kThreads = kWarps * 32;
  static constexpr bool kDrops = kDrops_;
  static constexpr int kPart = 32;  // queries whose scores are in registers together
  static constexpr int kBlocks = kWarps == 2 ? 8 : 3;  // a multiprocessor: bounds the registers
  static constexpr int kBytes = kRows * kD * 2;
  // Tiles of k, v, q and d_o, then d_s (keys in rows), lse and delta.
  static constexpr int kSharedBytes = 4 * kBytes + kRows * kRows * 2 + kRows * 8;
};

// The row sums of d_o * o, kD / 8 lanes a row: `o` is loaded before, d_o read from its tile.
template <class P>
struct Delta {
  static constexpr int kLanes = P::kD / 8, kCount = P::kRows * kLanes / P::kThreads;
  uint4 o[kCount];

  __device__ __forceinline__ void load(const typename P::T* rows, int64_t stride, int valid) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int at = n * P::kThreads + static_cast<int>(threadIdx.x), row = at / kLanes;
      o[n] = make_uint4(0, 0, 0, 0);
      if (row < valid)
        o[n] = *reinterpret_cast<const uint4*>(rows + row * stride + at % kLanes * 8);
    }
  }
  __device__ __forceinline__ void store(float* delta, const unsigned char* d_o_tile) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int at = n * P::kThreads + static_cast<int>(threadIdx.x), row = at / kLanes;
      float x[8], y[8], sum = 0.0f;
      load8(x, o[n]);
      load8(y, *reinterpret_cast<const uint4*>(d_o_tile + chunk_at<P::kD>(row, at % kLanes)));
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += x[i] * y[i];
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
      if (at % kLanes == 0) delta[row] = sum;
    }
  }

 private:
  static __device__ __forceinline__ void load8(float (&v)[8], const uint4& bits) {
    typename P::T x[8];
    memcpy(x, &bits, 16);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = to_float(x[i]);
  }
};

// What a step of one tile of keys and kPart queries needs to know; part: which of the tile.
struct ShortStep {
  int head, first_key, first_query, part;
};

// p (kept probabilities) and d_s of a warp's 16 keys and the tile's queries.
template <class P>
__device__ __forceinline__ void score_gradients(float (&p)[P::kPart / 8][4],
                                                float (&d_s)[P::kPart / 8][4],
                                                const AttentionArgs& a, const Rows& q,
                                                const Rows& k, const ShortStep& x, uint32_t tiles,
                                                const float* lse_of, const DropoutBits& dropout) {
  using T = typename P::T;
  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const LeftRows<P::kD, false> k_left{tiles, warp_row, {}}, v_left{tiles + P::kBytes, warp_row, {}};
  const float scale = a.scale * kLog2e, keep_scale = 1.0f / (1.0f - a.dropout);
  const float* lse = lse_of + x.part * P::kPart + l % 4 * 2;
  const uint32_t q_tile = tiles + 2 * P::kBytes + x.part * (P::kPart * P::kD * 2);
  product_rows<T, P::kD, P::kPart>(p, k_left, q_tile);
  const bool masked =
      x.first_key + P::kRows > k.count || (a.causal && x.first_query < x.first_key + P::kRows - 1);
#pragma unroll
  for (int c = 0; c < P::kPart / 8; ++c) {
    const float2 row_lse = *reinterpret_cast<const float2*>(lse + c * 8);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p[c][e] = exp2_fast(p[c][e] * scale - (e % 2 == 0 ? row_lse.x : row_lse.y));
      if (masked) {
        const int i = x.first_query + c * 8 + l % 4 * 2 + e % 2;
        const int j = x.first_key + warp_row + l / 4 + e / 2 * 8;
        if (j >= k.count || (a.causal && j > i)) p[c][e] = 0.0f;
      }
    }
  }
  product_rows<T, P::kD, P::kPart>(d_s, v_left, q_tile + P::kBytes);
  uint32_t words[4];
#pragma unroll
  for (int c = 0; c < P::kPart / 8; ++c) {
    const float2 delta = *reinterpret_cast<const float2*>(lse + P::kRows + c * 8);
    if (P::kDrops && c % 2 == 0)
      dropout.draw_columns(words, random_row(a, x.head, q.first + x.first_query + c * 8) +
                                      static_cast<uint64_t>((x.first_key + warp_row) / 4));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float kept = !P::kDrops                       ? p[c][e]
                         : dropout.keeps(words, c % 2, e) ? p[c][e] * keep_scale
                                                          : 0.0f;
      d_s[c][e] = kept * d_s[c][e] - p[c][e] * (e % 2 == 0 ? delta.x : delta.y);
      p[c][e] = kept;
    }
  }
}

// d_q (16 queries a warp) += d_s k, d_s from its tile of keys in rows.
template <class P>
__device__ __forceinline__ void add_query_gradient(float (&d_q)[P::kD / 8][4], uint32_t d_s_tile,
                                                   uint32_t k_tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int c = 0; c < P::kRows / 16; ++c) {
    uint32_t left[4];
    load_left_columns<P::kRows>(left, d_s_tile, c * 16, warp);
#pragma unroll
    for (int n = 0; n < P::kD / 16; ++n) {
      uint32_t right[4];
      load_right_columns<P::kD>(right, k_tile, c * 16, n);
      multiply_add<typename P::T>(d_q[2 * n], left, right[0], right[1]);
      multiply_add<typename P::T>(d_q[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// d_s of a warp's 16 keys into the tile.
template <class P>
__device__ __forceinline__ void store_score_gradients(unsigned char* tile, int part,
                                                      const float (&d_s)[P::kPart / 8][4]) {
  const int l = lane(), row = static_cast<int>(threadIdx.x) / 32 * 16 + l / 4;
#pragma unroll
  for (int c = 0; c < P::kPart / 8; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(
          tile + chunk_at<P::kRows>(row + half * 8, part * (P::kPart / 8) + c) + l % 4 * 4) =
          pack<typename P::T>(d_s[c][half * 2], d_s[c][half * 2 + 1]);
  }
}

// Gradients of the rows after the last sequence become zero; `part` of `parts` blocks of a head.
template <class T>
__device__ void zero_gradient_tail(const AttentionBackwardArgs& b, int kv, int part, int parts) {
  const AttentionArgs& a = b.forward;
  const int64_t group = a.heads / a.kv_heads, D = a.head_size;
  const auto clear = [&](void* base, int64_t from, int64_t rows, int64_t stride, int64_t head,
                         int64_t width) {
    const int64_t step = int64_t{blockDim.x} * parts;
    for (int64_t n = int64_t{blockDim.x} * part + threadIdx.x; n < (rows - from) * width; n += step)
      row_of<T>(base, from + n / width, stride, head, D)[n % width] = from_float<T>(0.0f);
  };
  const int64_t q_used = a.cu_q[a.sequences], k_used = a.cu_k[a.sequences];
  clear(b.d_q, q_used, a.q_rows, b.d_q_stride, kv * group, group * D);
  clear(b.d_k, k_used, a.k_rows, b.d_k_stride, kv, D);
  clear(b.d_v, k_used, a.k_rows, b.d_v_stride, kv, D);
}

// What a block works on, and its shared memory.
template <class P>
struct ShortBlock {
  using T = typename P::T;
  static constexpr int kD = P::kD, kRows = P::kRows, kThreads = P::kThreads;
  const AttentionBackwardArgs& b;
  unsigned char* shared;
  uint32_t tiles;
  Rows q, k;
  int kv;
  DropoutBits dropout;

  __device__ __forceinline__ unsigned char* d_s_at() const { return shared + 4 * P::kBytes; }
  __device__ __forceinline__ float* lse_of() const {
    return reinterpret_cast<float*>(d_s_at() + kRows * kRows * 2);
  }
  __device__ __forceinline__ void fetch_keys(int first) const {
    const AttentionArgs& a = b.forward;
    copy_tile<kD, kRows, kThreads>(tiles, row_of<T>(a.k, k.first + first, a.k_stride, kv, kD),
                                   a.k_stride, k.count - first);
    copy_tile<kD, kRows, kThreads>(tiles + P::kBytes,
                                   row_of<T>(a.v, k.first + first, a.v_stride, kv, kD), a.v_stride,
                                   k.count - first);
  }
  // Brings a tile of queries and waits for everything that is under way.
  __device__ __forceinline__ void bring_queries(int head, int first) const {
    const AttentionArgs& a = b.forward;
    const int valid = q.count - first;
    copy_tile<kD, kRows, kThreads>(tiles + 2 * P::kBytes,
                                   row_of<T>(a.q, q.first + first, a.q_stride, head, kD),
                                   a.q_stride, valid);
    copy_tile<kD, kRows, kThreads>(tiles + 3 * P::kBytes,
                                   row_of<T>(b.d_o, q.first + first, a.o_stride, head, kD),
                                   a.o_stride, valid);
    copy_commit();
    Delta<P> delta;
    delta.load(row_of<T>(a.o, q.first + first, a.o_stride, head, kD), a.o_stride, valid);
    const int r = static_cast<int>(threadIdx.x);
    static_assert(kRows <= kThreads);
    // +infinity makes every probability of a row beyond the sequence zero.
    if (r < kRows)
      lse_of()[r] =
          r < valid
              ? static_cast<const float*>(a.lse)[head * a.q_rows + q.first + first + r] * kLog2e
              : CUDART_INF_F;
    copy_wait<0>();
    __syncthreads();
    delta.store(lse_of() + kRows, shared + 3 * P::kBytes);
    __syncthreads();
  }
  // One tile of each: adds to d_k and d_v where they are wanted, and leaves d_s in its tile.
  template <bool kKeyGradients>
  __device__ __forceinline__ void step(float (&d_k)[kD / 8][4], float (&d_v)[kD / 8][4], int head,
                                       int first_key, int first_query) const {
#pragma unroll
    for (int part = 0; part < kRows / P::kPart; ++part) {
      float p[P::kPart / 8][4], d_s[P::kPart / 8][4];
      const ShortStep x{head, first_key, first_query + part * P::kPart, part};
      score_gradients<P>(p, d_s, b.forward, q, k, x, tiles, lse_of(), dropout);
      const uint32_t q_tile = tiles + 2 * P::kBytes + part * (P::kPart * kD * 2);
      if constexpr (kKeyGradients) {
        add_product<T, kD, P::kPart>(d_v, p, q_tile + P::kBytes);
        add_product<T, kD, P::kPart>(d_k, d_s, q_tile);
      }
      store_score_gradients<P>(d_s_at(), part, d_s);
    }
    __syncthreads();  // d_s is complete, and all have read the tile of queries
  }
  __device__ __forceinline__ void write_queries(int head, int first,
                                                const float (&d_q)[kD / 8][4]) const {
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16, row = first + warp_row;
    write_rows<T, kD>(row_of<T>(b.d_q, q.first + row, b.d_q_stride, head, kD), b.d_q_stride,
                      q.count - row, shared + 2 * P::kBytes, warp_row, d_q, b.forward.scale,
                      b.forward.scale);
  }
  // All must have read the tiles of keys.
  __device__ __forceinline__ void write_keys(int first, const float (&d_k)[kD / 8][4],
                                             const float (&d_v)[kD / 8][4]) const {
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16, row = first + warp_row;
    write_rows<T, kD>(row_of<T>(b.d_k, k.first + row, b.d_k_stride, kv, kD), b.d_k_stride,
                      k.count - row, shared, warp_row, d_k, b.forward.scale, b.forward.scale);
    write_rows<T, kD>(row_of<T>(b.d_v, k.first + row, b.d_v_stride, kv, kD), b.d_v_stride,
                      k.count - row, shared + P::kBytes, warp_row, d_v, 1.0f, 1.0f);
  }
};

// One tile of keys and one of queries. Apart from the loops of key_tile(), or the compiler would
// compute the places of all fragments ahead of them, which does not fit in the registers.
template <class P>
__device__ __forceinline__ void one_tile(const ShortBlock<P>& x) {
  float d_k[P::kD / 8][4] = {}, d_v[P::kD / 8][4] = {};
  x.fetch_keys(0);
  x.bring_queries(x.kv, 0);
  x.template step<true>(d_k, d_v, x.kv, 0, 0);
  float d_q[P::kD / 8][4] = {};
  add_query_gradient<P>(d_q, x.tiles + 4 * P::kBytes, x.tiles);
  x.write_queries(x.kv, 0, d_q);
  __syncthreads();  // the tile of keys has been read
  x.write_keys(0, d_k, d_v);
}

// d_k and d_v of tile `kt` of the keys, and where it is the only one d_q.
template <class P>
__device__ __forceinline__ void key_tile(const ShortBlock<P>& x, int kt, int key_tiles) {
  constexpr int kD = P::kD, kRows = P::kRows;
  const AttentionArgs& a = x.b.forward;
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const int query_tiles = (x.q.count + kRows - 1) / kRows;
  const int begin = a.causal ? kt : 0, per_head = max(0, query_tiles - begin);
  x.fetch_keys(kt * kRows);
  float d_k[kD / 8][4] = {}, d_v[kD / 8][4] = {};
  for (int n = 0; n < per_head * group; ++n) {
    const int head = x.kv * group + n / per_head, first = (begin + n % per_head) * kRows;
    x.bring_queries(head, first);
    x.template step<true>(d_k, d_v, head, kt * kRows, first);
    if (key_tiles == 1) {
      float d_q[kD / 8][4] = {};
      add_query_gradient<P>(d_q, x.tiles + 4 * P::kBytes, x.tiles);
      x.write_queries(head, first, d_q);
      __syncthreads();  // d_s and the tile of queries are free again
    }
  }
  copy_wait<0>();
  __syncthreads();  // the tiles of keys are there (if no query was) and have been read
  x.write_keys(kt * kRows, d_k, d_v);
  __syncthreads();
}

// d_q of tile n of the queries, which counts through the heads that share the keys.
template <class P>
__device__ __forceinline__ void query_tile(const ShortBlock<P>& x, int n, int key_tiles) {
  constexpr int kRows = P::kRows;
  const AttentionArgs& a = x.b.forward;
  const int query_tiles = (x.q.count + kRows - 1) / kRows;
  const int head = x.kv * static_cast<int>(a.heads / a.kv_heads) + n / query_tiles;
  const int first = n % query_tiles * kRows;
  float d_q[P::kD / 8][4] = {};
  const int end = a.causal ? min(key_tiles, n % query_tiles + 1) : key_tiles;
  for (int kt = 0; kt < end; ++kt) {
    x.fetch_keys(kt * kRows);
    x.bring_queries(head, first);
    x.template step<false>(d_q, d_q, head, kt * kRows, first);
    add_query_gradient<P>(d_q, x.tiles + 4 * P::kBytes, x.tiles);
    __syncthreads();
  }
  x.write_queries(head, first, d_q);
  __syncthreads();
}

template <class P>
__device__ __forceinline__ ShortBlock<P> short_block(const AttentionBackwardArgs& b,
                                                     unsigned char* shared, int sequence, int kv) {
  const AttentionArgs& a = b.forward;
  return {b,
          shared,
          static_cast<uint32_t>(__cvta_generic_to_shared(shared)),
          rows_of(a.cu_q, sequence),
          rows_of(a.cu_k, sequence),
          kv,
          DropoutBits(a.rng, a.dropout, P::kDrops)};
}

// A sequence of at most one tile of keys.
template <class P>
__device__ __noinline__ void one_tile_of_keys(const ShortBlock<P>& x) {
  if (x.k.count > 0) return key_tile(x, 0, 1);
  const int group = static_cast<int>(x.b.forward.heads / x.b.forward.kv_heads);
  const int tiles = (x.q.count + P::kRows - 1) / P::kRows * group;
  for (int n = 0; n < tiles; ++n) query_tile(x, n, 0);
}

// Task `task` of a sequence of several tiles of keys: those first, then the tiles of queries.
template <class P>
__device__ __noinline__ void one_task(const ShortBlock<P>& x, int task) {
  const int key_tiles = (x.k.count + P::kRows - 1) / P::kRows;
  task < key_tiles ? key_tile(x, task, key_tiles) : query_tile(x, task - key_tiles, key_tiles);
}

// Every `helpers`-th task of all sequences of several tiles of keys, from number `helper` on. The
// block looks for them: lengths are on the device only.
template <class P>
__device__ __noinline__ void many_tiles(const AttentionBackwardArgs& b, unsigned char* shared,
                                        int kv, int helper, int helpers) {
  __shared__ int of_warp[P::kWarps], found[2];
  const AttentionArgs& a = b.forward;
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int next = helper;  // in the tasks that are still to come
  for (int64_t s0 = 0; s0 < a.sequences; s0 += P::kThreads) {
    const int64_t s = s0 + threadIdx.x;
    int tasks = 0;
    if (s < a.sequences) {
      const int keys = rows_of(a.cu_k, static_cast<int>(s)).count;
      const int queries = rows_of(a.cu_q, static_cast<int>(s)).count;
      if (keys > P::kRows)
        tasks = (keys + P::kRows - 1) / P::kRows + (queries + P::kRows - 1) / P::kRows * group;
    }
    if (!__syncthreads_or(tasks)) continue;
    int end = tasks;  // of this sequence's tasks in those of these sequences
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int before = __shfl_up_sync(~0u, end, offset);
      if (lane() >= offset) end += before;
    }
    if (lane() == 31) of_warp[warp] = end;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < P::kWarps; ++w) {
      if (w < warp) end += of_warp[w];
      total += of_warp[w];
    }
    for (; next < total; next += helpers) {
      if (next >= end - tasks && next < end) {
        found[0] = static_cast<int>(s);
        found[1] = next - (end - tasks);
      }
      __syncthreads();  // the task is there
      const int sequence = found[0], task = found[1];
      __syncthreads();  // all have read it
      one_task(short_block<P>(b, shared, sequence, kv), task);
    }
    next -= total;
    __syncthreads();  // of_warp has been read
  }
}

// Blocks of a key head: `helpers`, then one a sequence, then one for what follows the sequences.
template <class P>
__global__ __launch_bounds__(P::kThreads, P::kBlocks) void attention_backward_short_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int helpers) {
#if __CUDA_ARCH__ >= 800
  const AttentionArgs& a = b.forward;
  const auto kv_heads = static_cast<unsigned>(a.kv_heads);
  const int at = static_cast<int>(blockIdx.x / kv_heads) - helpers;
  const int kv = static_cast<int>(blockIdx.x % kv_heads);
  extern __shared__ __align__(128) unsigned char shared[];
  if (at < 0) {
    zero_gradient_tail<typename P::T>(b, kv, at + helpers, helpers + 1);
    return many_tiles<P>(b, shared, kv, at + helpers, helpers);
  }
  if (at == a.sequences) return zero_gradient_tail<typename P::T>(b, kv, helpers, helpers + 1);
  const ShortBlock<P> x = short_block<P>(b, shared, at, kv);
  if (x.k.count > P::kRows) return;  // the helpers'
  const bool one = x.q.count > 0 && x.q.count <= P::kRows && x.k.count > 0 && a.heads == a.kv_heads;
  one ? one_tile(x) : one_tile_of_keys(x);
#endif
}

template <class P>
void launch_short_tile(const Context& ctx, const AttentionBackwardArgs& b) {
  constexpr int64_t kHelpers =
      32;  // of a key head: a batch has few sequences that much above the mean
  const auto kernel = attention_backward_short_kernel<P>;
  SAT_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes));
  const AttentionArgs& a = b.forward;
  const int64_t helpers = a.max_k > P::kRows ? kHelpers : 0;
  kernel<<<static_cast<unsigned>((helpers + a.sequences + 1) * a.kv_heads), P::kThreads,
           P::kSharedBytes, cuda::stream_of(ctx)>>>(b, static_cast<int>(helpers));
  SAT_CUDA_LAUNCHED("attention_backward_short_kernel");
}

template <class T, int kD>
void launch_short_backward(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean) {
  const bool drops = b.forward.dropout > 0.0f;
  if (mean <= 32)
    return drops ? launch_short_tile<ShortTile<T, kD, 2, true>>(ctx, b)
                 : launch_short_tile<ShortTile<T, kD, 2, false>>(ctx, b);
  drops ? launch_short_tile<ShortTile<T, kD, 4, true>>(ctx, b)
        : launch_short_tile<ShortTile<T, kD, 4, false>>(ctx, b);
}

}  // namespace saturate::kernels::attention
