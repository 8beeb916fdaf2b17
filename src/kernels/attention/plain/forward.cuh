// SPDX-License-Identifier: Apache-2.0
// The forward kernel without tensor cores, for the two sources that make its variants.
#pragma once
#include "kernels/attention/impl.h"
#include "kernels/attention/plain/features.cuh"
#include "kernels/attention/plain/plain.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

// One block: kB query rows of one head; the softmax of each row runs along the keys online.
template <class T, class Tile, int kB, bool kFeatures>
__global__ __launch_bounds__(kPlainThreads) void attention_forward_plain_kernel(
    const __grid_constant__ AttentionArgs a, int tiles) {
  constexpr int kM = Tile::kM, kN = Tile::kN;
  const int sequence = static_cast<int>(blockIdx.x) / tiles,
            tile = static_cast<int>(blockIdx.x) % tiles;
  const int head = static_cast<int>(blockIdx.y), D = static_cast<int>(a.head_size);
  if (sequence == a.sequences) return zero_tail<T>(a, head, tile, tiles);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kB;
  if (first >= q.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  extern __shared__ float shared[];
  float* q_tile = shared;
  float* kv_tile = q_tile + Tile::kFloats;
  float* p_tile = kv_tile + Tile::kFloats;
  const PlainDropout dropout(a);
  const PlainScores<kFeatures> scores(a, sequence, head, q.count, k.count);
  const int V = kFeatures ? value_size(a) : D;
  const int rows = min(kB, q.count - first);
  load_tile<kFeatures, T, Tile>(q_tile, a, row_of<T>(a.q, q.first + first, a.q_stride, head, D),
                                a.q_stride, rows, scores.aligned(first));

  float4 sum[kM][kN] = {};
  float top[kM], weight[kM] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    top[m] = scores.sink() * kLog2e;
    if (kFeatures && a.sinks != nullptr && Tile::x() == 0) weight[m] = 1.0f;
  }
  const int end = scores.end_key(first + kB - 1);
  for (int start = scores.first_key(first) / kB * kB; start < end; start += kB) {
    if (scores.hides(first, first + kB, start, start + kB)) continue;
    const int keys = min(kB, k.count - start);
    __syncthreads();  // the last step's v has been read
    load_tile<kFeatures, T, Tile>(kv_tile, a, row_of<T>(a.k, k.first + start, a.k_stride, kv, D),
                                  a.k_stride, keys, start);
    __syncthreads();  // k (and q) are there
    float s[kM][kM];
    Tile::dots(q_tile, kv_tile, s);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int i = first + Tile::y() + 16 * m;
      float high = top[m];
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int j = start + Tile::x() + 16 * n;
        s[m][n] = scores.sees(i, j) ? scores.score2(i, j, s[m][n]) : -CUDART_INF_F;
        high = fmaxf(high, s[m][n]);
      }
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2)  // the 16 threads of a row
        high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, offset));
      const float base = high == -CUDART_INF_F ? 0.0f : high;
      const float shrink = exp2f(top[m] - base);
      top[m] = high;
      weight[m] *= shrink;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        sum[m][n].x *= shrink;
        sum[m][n].y *= shrink;
        sum[m][n].z *= shrink;
        sum[m][n].w *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const float p = exp2f(s[m][n] - base);
        weight[m] += p;
        s[m][n] = p * dropout.factor(head, q.first, i, start + Tile::x() + 16 * n);
      }
    }
    Tile::put_scores(p_tile, s);
    __syncthreads();  // k has been read
    Tile::load(kv_tile, row_of<T>(a.v, k.first + start, a.v_stride, kv, V), a.v_stride, keys, V);
    __syncthreads();  // v and p are there
    Tile::add_product(p_tile, kv_tile, sum);
  }

  float* lse = static_cast<float*>(a.lse) + head * a.q_rows + q.first + first;
  float factor[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2)
      weight[m] += __shfl_xor_sync(0xFFFFFFFFu, weight[m], offset);
    factor[m] = weight[m] > 0.0f ? 1.0f / weight[m] : 0.0f;
    const int r = Tile::y() + 16 * m;
    if (Tile::x() == 0 && r < rows)
      lse[r] = weight[m] > 0.0f ? top[m] * kLn2 + logf(weight[m]) : -CUDART_INF_F;
  }
  Tile::write(row_of<T>(a.o, q.first + first, a.o_stride, head, V), a.o_stride, rows, V, sum,
              factor);
}

template <bool kFeatures>
void launch_forward_plain(const Context& ctx, const AttentionArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t v_size = attention_v_head_size(a);
    with_plain_tile(a.head_size > v_size ? a.head_size : v_size, [&](auto tile) {
      using Tile = decltype(tile);
      constexpr int kB = Tile::kM * 16;
      constexpr int kBytes =
          (2 * Tile::kFloats + Tile::kScoreFloats) * static_cast<int>(sizeof(float));
      const auto kernel = attention_forward_plain_kernel<T, Tile, kB, kFeatures>;
      SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
      const int tiles = static_cast<int>(a.max_q > 0 ? (a.max_q + kB - 1) / kB : 1);
      const dim3 grid(static_cast<unsigned>(tiles * (a.sequences + 1)),
                      static_cast<unsigned>(a.heads));
      kernel<<<grid, kPlainThreads, kBytes, cuda::stream_of(ctx)>>>(a, tiles);
      SAT_CUDA_LAUNCHED("attention_forward_plain_kernel");
    });
  });
}

}  // namespace saturate::kernels::attention
