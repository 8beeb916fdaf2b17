// SPDX-License-Identifier: Apache-2.0
// Two passes without atomics: d_k and d_v by tiles of keys, d_q by tiles of queries. Each computes
// the probabilities again from lse.
#include <math_constants.h>

#include "kernels/attention/attention_impl.h"
#include "kernels/attention/attention_plain_device.cuh"
#include "kernels/device/dropout.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace attention;

// One block: kB keys of one key head; rows of the score tiles are keys, columns queries.
template <class T, class Tile, int kB>
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
  const Dropout dropout(a.rng, a.dropout);
  const int rows = min(kB, k.count - first);
  Tile::load(k_tile, row_of<T>(a.k, k.first + first, a.k_stride, kv, D), a.k_stride, rows, D);
  Tile::load(v_tile, row_of<T>(a.v, k.first + first, a.v_stride, kv, D), a.v_stride, rows, D);

  float4 d_k[kM][kN] = {}, d_v[kM][kN] = {};
  const int group = static_cast<int>(a.heads / a.kv_heads);
  for (int head = kv * group; head < (kv + 1) * group; ++head) {
    const float* lse = static_cast<const float*>(a.lse) + head * a.q_rows + q.first;
    const float* delta = static_cast<const float*>(b.delta) + head * a.q_rows + q.first;
    for (int start = a.causal ? first : 0; start < q.count; start += kB) {
      const int queries = min(kB, q.count - start);
      const T* q_rows = row_of<T>(a.q, q.first + start, a.q_stride, head, D);
      __syncthreads();  // the last step's q and d_s have been read
      Tile::load(x_tile, q_rows, a.q_stride, queries, D);
      __syncthreads();  // q (and k, v) are there
      float p[kM][kM], kept[kM][kM], d_p[kM][kM];
      Tile::dots(k_tile, x_tile, p);
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int i = start + Tile::x() + 16 * n;
        const float row_lse = i < q.count ? lse[i] : CUDART_INF_F;
        const auto random = static_cast<int64_t>(random_row(a, head, q.first + i) * 4);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const int j = first + Tile::y() + 16 * m;
          const bool seen = i < q.count && j < k.count && !(a.causal && j > i);
          p[m][n] = seen ? exp2f((p[m][n] * a.scale - row_lse) * kLog2e) : 0.0f;
          float one[1] = {p[m][n]};
          dropout.apply(one, random + j);
          kept[m][n] = one[0];
        }
      }
      Tile::put_scores(s_tile, kept);
      __syncthreads();  // q has been read
      Tile::load(x_tile, row_of<T>(b.d_o, q.first + start, a.o_stride, head, D), a.o_stride,
                 queries, D);
      __syncthreads();  // d_o and the kept probabilities are there
      Tile::dots(v_tile, x_tile, d_p);
      Tile::add_product(s_tile, x_tile, d_v);
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int i = start + Tile::x() + 16 * n;
        const float row_delta = i < q.count ? delta[i] : 0.0f;
#pragma unroll
        for (int m = 0; m < kM; ++m) p[m][n] = kept[m][n] * d_p[m][n] - p[m][n] * row_delta;
      }
      __syncthreads();  // d_o and the kept probabilities have been read
      Tile::put_scores(s_tile, p);
      Tile::load(x_tile, q_rows, a.q_stride, queries, D);
      __syncthreads();  // q and d_s are there
      Tile::add_product(s_tile, x_tile, d_k);
    }
  }
  float one[kM], scale[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) one[m] = 1.0f, scale[m] = a.scale;
  Tile::write(row_of<T>(b.d_k, k.first + first, b.d_k_stride, kv, D), b.d_k_stride, rows, D, d_k,
              scale);
  Tile::write(row_of<T>(b.d_v, k.first + first, b.d_v_stride, kv, D), b.d_v_stride, rows, D, d_v,
              one);
}

// One block: kB queries of one head.
template <class T, class Tile, int kB>
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
  const Dropout dropout(a.rng, a.dropout);
  const int rows = min(kB, q.count - first);
  Tile::load(q_tile, row_of<T>(a.q, q.first + first, a.q_stride, head, D), a.q_stride, rows, D);
  Tile::load(d_o_tile, row_of<T>(b.d_o, q.first + first, a.o_stride, head, D), a.o_stride, rows, D);

  float4 d_q[kM][kN] = {};
  float lse[kM], delta[kM], scale[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int r = Tile::y() + 16 * m;
    const int64_t at = head * a.q_rows + q.first + first + r;
    lse[m] = r < rows ? static_cast<const float*>(a.lse)[at] : CUDART_INF_F;
    delta[m] = r < rows ? static_cast<const float*>(b.delta)[at] : 0.0f;
    scale[m] = a.scale;
  }
  const int end = a.causal ? min(k.count, first + kB) : k.count;
  for (int start = 0; start < end; start += kB) {
    const int keys = min(kB, k.count - start);
    __syncthreads();  // the last step's k and d_s have been read
    Tile::load(x_tile, row_of<T>(a.v, k.first + start, a.v_stride, kv, D), a.v_stride, keys, D);
    __syncthreads();  // v (and q, d_o) are there
    float s[kM][kM], d_p[kM][kM];
    Tile::dots(d_o_tile, x_tile, d_p);
    __syncthreads();  // v has been read
    Tile::load(x_tile, row_of<T>(a.k, k.first + start, a.k_stride, kv, D), a.k_stride, keys, D);
    __syncthreads();  // k is there
    Tile::dots(q_tile, x_tile, s);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int i = first + Tile::y() + 16 * m;
      const auto random = static_cast<int64_t>(random_row(a, head, q.first + i) * 4);
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int j = start + Tile::x() + 16 * n;
        const bool seen = j < k.count && !(a.causal && j > i);
        const float p = seen ? exp2f((s[m][n] * a.scale - lse[m]) * kLog2e) : 0.0f;
        float kept[1] = {p};
        dropout.apply(kept, random + j);
        s[m][n] = kept[0] * d_p[m][n] - p * delta[m];
      }
    }
    Tile::put_scores(s_tile, s);
    __syncthreads();  // d_s is there
    Tile::add_product(s_tile, x_tile, d_q);
  }
  Tile::write(row_of<T>(b.d_q, q.first + first, b.d_q_stride, head, D), b.d_q_stride, rows, D, d_q,
              scale);
}

}  // namespace

void attention_backward_plain_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  attention_backward_prepare_cuda(ctx, b);
  if (a.sequences == 0) return;
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_plain_tile(a.head_size, [&](auto tile) {
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
      launch(attention_backward_keys_plain_kernel<T, Tile, kB>, a.max_k, a.kv_heads);
      launch(attention_backward_queries_plain_kernel<T, Tile, kB>, a.max_q, a.heads);
    });
  });
}

}  // namespace saturate::kernels
