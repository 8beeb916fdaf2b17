// SPDX-License-Identifier: Apache-2.0
// Backward without tensor cores, for the two sources that make its variants. Two passes without
// atomics: d_k and d_v by tiles of keys, d_q by tiles of queries. Each computes the probabilities
// again from lse.
#pragma once
#include "kernels/attention/impl.h"
#include "kernels/attention/plain/features.cuh"
#include "kernels/attention/plain/plain.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

// The lse of a row that sees no key is minus infinity; plus infinity gives it probabilities of 0.
template <bool kFeatures>
__device__ __forceinline__ float seen_lse(float lse) {
  return kFeatures && lse == -CUDART_INF_F ? CUDART_INF_F : lse;
}

// Writes sum * scale as gradients of q or k, rotated back where the forward pass rotated.
template <bool kFeatures, class T, class Tile>
__device__ void write_tile(T* dst, int64_t stride, int rows, const AttentionArgs& a,
                           int first_position, const float4 (&sum)[Tile::kM][Tile::kN],
                           const float (&scale)[Tile::kM], float* tile) {
  const int D = static_cast<int>(a.head_size);
  if constexpr (kFeatures) {
    if (a.rotary_base > 0.0f) {
      __syncthreads();  // the tile's last contents have been read
      Tile::put_rows(tile, sum, scale);
      rotate_tile<Tile>(tile, rows, D, a.rotary_base, first_position, -1.0f);
      for (int e = static_cast<int>(threadIdx.x); e < rows * D; e += kPlainThreads)
        dst[e / D * stride + e % D] = from_float<T>(tile[e / D * Tile::kLd + e % D]);
      return;
    }
  }
  Tile::write(dst, stride, rows, D, sum, scale);
}

// One block: kB keys of one key head; rows of the score tiles are keys, columns queries.
template <class T, class Tile, int kB, bool kFeatures>
__global__ __launch_bounds__(kPlainThreads) void attention_backward_keys_plain_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int tiles) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  const AttentionArgs& a = b.forward;
  const int sequence = static_cast<int>(blockIdx.x) / tiles,
            tile = static_cast<int>(blockIdx.x) % tiles;
  const int kv = static_cast<int>(blockIdx.y), D = static_cast<int>(a.head_size);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kB;
  if (first >= k.count) return;

  extern __shared__ float shared[];
  float* k_tile = shared;
  float* v_tile = k_tile + Tile::kFloats;
  float* x_tile = v_tile + Tile::kFloats;  // q, then d_o, then q again
  float* s_tile = x_tile + Tile::kFloats;
  const PlainDropout dropout(a);
  const int rows = min(kB, k.count - first);
  const int V = kFeatures ? value_size(a) : D;
  load_tile<kFeatures, T, Tile>(k_tile, a, row_of<T>(a.k, k.first + first, a.k_stride, kv, D),
                                a.k_stride, rows, first);
  Tile::load(v_tile, row_of<T>(a.v, k.first + first, a.v_stride, kv, V), a.v_stride, rows, V);

  float4 d_k[kM][kN] = {}, d_v[kM][kN] = {};
  const int group = static_cast<int>(a.heads / a.kv_heads);
  for (int head = kv * group; head < (kv + 1) * group; ++head) {
    const float* lse = static_cast<const float*>(a.lse) + head * a.q_rows + q.first;
    const float* delta = static_cast<const float*>(b.delta) + head * a.q_rows + q.first;
    const PlainScores<kFeatures> scores(a, sequence, head, q.count, k.count);
    const int end = scores.end_query(first + kB - 1);
    for (int start = scores.first_query(first) / kB * kB; start < end; start += kB) {
      if (scores.hides(start, start + kB, first, first + kB)) continue;
      const int queries = min(kB, q.count - start);
      const T* q_rows = row_of<T>(a.q, q.first + start, a.q_stride, head, D);
      __syncthreads();  // the last step's q and d_s have been read
      load_tile<kFeatures, T, Tile>(x_tile, a, q_rows, a.q_stride, queries, scores.aligned(start));
      __syncthreads();  // q (and k, v) are there
      float p[kM][kM], kept[kM][kM], d_p[kM][kM], cap_slope[kM][kM];
      Tile::dots(k_tile, x_tile, p);
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int i = start + Tile::x() + 16 * n;
        const float row_lse = i < q.count ? seen_lse<kFeatures>(lse[i]) : CUDART_INF_F;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const int j = first + Tile::y() + 16 * m;
          const bool seen = scores.sees(i, j);
          cap_slope[m][n] = 1.0f;
          if (seen) p[m][n] = scores.score(i, j, p[m][n], cap_slope[m][n]);
          p[m][n] = seen ? exp2f((p[m][n] - row_lse) * kLog2e) : 0.0f;
          kept[m][n] = p[m][n] * dropout.factor(head, q.first, i, j);
        }
      }
      Tile::put_scores(s_tile, kept);
      __syncthreads();  // q has been read
      Tile::load(x_tile, row_of<T>(b.d_o, q.first + start, a.o_stride, head, V), a.o_stride,
                 queries, V);
      __syncthreads();  // d_o and the kept probabilities are there
      Tile::dots(v_tile, x_tile, d_p);
      Tile::add_product(s_tile, x_tile, d_v);
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int i = start + Tile::x() + 16 * n;
        const float row_delta = i < q.count ? delta[i] : 0.0f;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          p[m][n] = kept[m][n] * d_p[m][n] - p[m][n] * row_delta;
          if constexpr (kFeatures) p[m][n] *= cap_slope[m][n];
        }
      }
      __syncthreads();  // d_o and the kept probabilities have been read
      Tile::put_scores(s_tile, p);
      load_tile<kFeatures, T, Tile>(x_tile, a, q_rows, a.q_stride, queries, scores.aligned(start));
      __syncthreads();  // q and d_s are there
      Tile::add_product(s_tile, x_tile, d_k);
    }
  }
  float one[kM], scale[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) one[m] = 1.0f, scale[m] = a.scale;
  write_tile<kFeatures, T, Tile>(row_of<T>(b.d_k, k.first + first, b.d_k_stride, kv, D),
                                 b.d_k_stride, rows, a, first, d_k, scale, x_tile);
  Tile::write(row_of<T>(b.d_v, k.first + first, b.d_v_stride, kv, V), b.d_v_stride, rows, V, d_v,
              one);
}

// One block: kB queries of one head.
template <class T, class Tile, int kB, bool kFeatures>
__global__ __launch_bounds__(kPlainThreads) void attention_backward_queries_plain_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int tiles) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  const AttentionArgs& a = b.forward;
  const int sequence = static_cast<int>(blockIdx.x) / tiles,
            tile = static_cast<int>(blockIdx.x) % tiles;
  const int head = static_cast<int>(blockIdx.y), D = static_cast<int>(a.head_size);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kB;
  if (first >= q.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  extern __shared__ float shared[];
  float* q_tile = shared;
  float* d_o_tile = q_tile + Tile::kFloats;
  float* x_tile = d_o_tile + Tile::kFloats;  // v, then k
  float* s_tile = x_tile + Tile::kFloats;
  const PlainDropout dropout(a);
  const int rows = min(kB, q.count - first);
  const int V = kFeatures ? value_size(a) : D;
  const PlainScores<kFeatures> scores(a, sequence, head, q.count, k.count);
  load_tile<kFeatures, T, Tile>(q_tile, a, row_of<T>(a.q, q.first + first, a.q_stride, head, D),
                                a.q_stride, rows, scores.aligned(first));
  Tile::load(d_o_tile, row_of<T>(b.d_o, q.first + first, a.o_stride, head, V), a.o_stride, rows, V);

  float4 d_q[kM][kN] = {};
  float lse[kM], delta[kM], scale[kM], d_slope[kM] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int r = Tile::y() + 16 * m;
    const int64_t at = head * a.q_rows + q.first + first + r;
    lse[m] = r < rows ? seen_lse<kFeatures>(static_cast<const float*>(a.lse)[at]) : CUDART_INF_F;
    delta[m] = r < rows ? static_cast<const float*>(b.delta)[at] : 0.0f;
    scale[m] = a.scale;
  }
  const int end = scores.end_key(first + kB - 1);
  for (int start = scores.first_key(first) / kB * kB; start < end; start += kB) {
    if (scores.hides(first, first + kB, start, start + kB)) continue;
    const int keys = min(kB, k.count - start);
    __syncthreads();  // the last step's k and d_s have been read
    Tile::load(x_tile, row_of<T>(a.v, k.first + start, a.v_stride, kv, V), a.v_stride, keys, V);
    __syncthreads();  // v (and q, d_o) are there
    float s[kM][kM], d_p[kM][kM];
    Tile::dots(d_o_tile, x_tile, d_p);
    __syncthreads();  // v has been read
    load_tile<kFeatures, T, Tile>(x_tile, a, row_of<T>(a.k, k.first + start, a.k_stride, kv, D),
                                  a.k_stride, keys, start);
    __syncthreads();  // k is there
    Tile::dots(q_tile, x_tile, s);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int i = first + Tile::y() + 16 * m;
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int j = start + Tile::x() + 16 * n;
        const bool seen = scores.sees(i, j);
        float cap_slope = 1.0f;
        if (seen) s[m][n] = scores.score(i, j, s[m][n], cap_slope);
        const float p = seen ? exp2f((s[m][n] - lse[m]) * kLog2e) : 0.0f;
        s[m][n] = p * dropout.factor(head, q.first, i, j) * d_p[m][n] - p * delta[m];
        if constexpr (kFeatures) {
          d_slope[m] -= s[m][n] * scores.distance(i, j);
          s[m][n] *= cap_slope;
        }
      }
    }
    Tile::put_scores(s_tile, s);
    __syncthreads();  // d_s is there
    Tile::add_product(s_tile, x_tile, d_q);
  }
  write_tile<kFeatures, T, Tile>(row_of<T>(b.d_q, q.first + first, b.d_q_stride, head, D),
                                 b.d_q_stride, rows, a, scores.aligned(first), d_q, scale, x_tile);
  if constexpr (kFeatures) {
    if (b.d_alibi_slopes == nullptr) return;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2)  // the 16 threads of a row
        d_slope[m] += __shfl_xor_sync(0xFFFFFFFFu, d_slope[m], offset);
      const int r = Tile::y() + 16 * m;
      if (Tile::x() == 0 && r < rows)
        static_cast<float*>(b.delta)[head * a.q_rows + q.first + first + r] = d_slope[m];
    }
  }
}

template <bool kFeatures>
void launch_backward_plain(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t v_size = attention_v_head_size(a);
    with_plain_tile(a.head_size > v_size ? a.head_size : v_size, [&](auto tile) {
      using Tile = decltype(tile);
      constexpr int kB = Tile::kM * 16;
      constexpr int kBytes =
          (3 * Tile::kFloats + Tile::kScoreFloats) * static_cast<int>(sizeof(float));
      const auto launch = [&](auto kernel, int64_t longest, int64_t heads) {
        if (longest == 0) return;
        SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
        const int tiles = static_cast<int>((longest + kB - 1) / kB);
        const dim3 grid(static_cast<unsigned>(tiles * a.sequences), static_cast<unsigned>(heads));
        kernel<<<grid, kPlainThreads, kBytes, cuda::stream_of(ctx)>>>(b, tiles);
        SAT_CUDA_LAUNCHED("attention_backward_plain_kernel");
      };
      launch(attention_backward_keys_plain_kernel<T, Tile, kB, kFeatures>, a.max_k, a.kv_heads);
      // Last, because it may overwrite delta.
      launch(attention_backward_queries_plain_kernel<T, Tile, kB, kFeatures>, a.max_q, a.heads);
    });
  });
}

}  // namespace saturate::kernels::attention
