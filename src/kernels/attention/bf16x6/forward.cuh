// SPDX-License-Identifier: Apache-2.0
// Forward pass in fp32 on tensor cores (device.cuh). One block: kWarps * 16 query rows of
// one head, each warp owning its rows, as in mma/forward.cuh; tiles of keys and values
// come through registers, which cut them in parts, while the products before them run.
#pragma once
#include <math_constants.h>

#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/bf16x6/device.cuh"
#include "kernels/attention/impl.h"
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/attention/mma/features.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

// kResident: blocks of a multiprocessor.
template <int kD, int kWarps, int kKeys, int kResident>
__global__ __launch_bounds__(kWarps * 32, kResident) void attention_forward_bf16x6_kernel(
    const __grid_constant__ AttentionArgs a, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kWarps * 32, kQueries = kWarps * 16;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;  // causal: the longest first
  const int head = static_cast<int>(blockIdx.y);
  if (sequence == a.sequences) return zero_tail<float>(a, head, tile, tiles);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kQueries;
  if (first >= q.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  using QueryTile = CutTile<kD, kQueries, kThreads>;
  using KeyTile = CutTile<kD, kKeys, kThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const k_bytes = shared + kParts * QueryTile::kBytes;
  unsigned char* const v_bytes = k_bytes + kParts * KeyTile::kBytes;
  const auto q_tile = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t k_tile = q_tile + kParts * QueryTile::kBytes;
  const uint32_t v_tile = k_tile + kParts * KeyTile::kBytes;
  const float* k_rows = row_of<float>(a.k, k.first, a.k_stride, kv, kD);
  const float* v_rows = row_of<float>(a.v, k.first, a.v_stride, kv, kD);
  const int end = a.causal ? min(k.count, first + kQueries) : k.count;

  {
    QueryTile rows;
    rows.fetch(row_of<float>(a.q, q.first + first, a.q_stride, head, kD), a.q_stride,
               q.count - first);
    rows.put(shared);
  }
  KeyTile next;  // the keys of the coming step, then its values
  if (end > 0) next.fetch(k_rows, a.k_stride, k.count);

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const float scale = a.scale * kLog2e;
  const bool drops = a.dropout > 0.0f;
  const DropoutBits dropout(a.rng, a.dropout, drops);
  float sum[kD / 8][4] = {}, top[2] = {-CUDART_INF_F, -CUDART_INF_F}, weight[2] = {};

  for (int start = 0; start < end; start += kKeys) {
    next.put(k_bytes);
    next.fetch(v_rows + start * a.v_stride, a.v_stride, k.count - start);
    __syncthreads();  // the keys are there for all, and the last step's values have been read
    float s[kKeys / 8][4];
    product_rows_cut<kD, kKeys>(s, q_tile, QueryTile::kBytes, warp_row, k_tile, KeyTile::kBytes);

    // Keys beyond the sequence or, if causal, after the query.
    if (start + kKeys > k.count || (a.causal && start + kKeys > first + warp_row + 1)) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int j = start + n * 8 + l % 4 * 2 + e % 2;
          const int i = first + warp_row + l / 4 + e / 2 * 8;
          if (j >= k.count || (a.causal && j > i)) s[n][e] = -CUDART_INF_F;
        }
    }

    // Online softmax in powers of two; a lane's share of each row's sum is added up at the end.
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = s[0][2 * r];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) high = fmaxf(high, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
      high = fmaxf(high * scale, top[r]);
      const float base = high == -CUDART_INF_F ? 0.0f : high;  // no key seen yet
      shrink[r] = exp2_fast(top[r] - base);
      top[r] = high;
      float w = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          s[n][e] = exp2_fast(fmaf(s[n][e], scale, -base));
          w += s[n][e];
        }
      weight[r] = weight[r] * shrink[r] + w;
    }
    if (drops) {
      const uint64_t row0 = random_row(a, head, q.first + first + warp_row);
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        uint32_t words[4];
        dropout.draw_rows(words, row0 + static_cast<uint64_t>(start / 4 + 2 * n));
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (!dropout.keeps(words, e / 4, e % 4)) s[n + e / 4][e % 4] = 0.0f;
      }
    }
    uint32_t p[kKeys / 16][kParts][4];
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) cut_left(p[c], s[2 * c], s[2 * c + 1]);

    next.put(v_bytes);
    if (start + kKeys < end)
      next.fetch(k_rows + (start + kKeys) * a.k_stride, a.k_stride, k.count - start - kKeys);
    __syncthreads();  // the values are there for all, and the keys have been read
    add_product_cut<kD, kKeys>(sum, p, v_tile, KeyTile::kBytes, shrink[0], shrink[1]);
  }

  const int row = first + warp_row;
  float* lse = static_cast<float*>(a.lse) + head * a.q_rows + q.first;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float w = weight[r];
    w += __shfl_xor_sync(0xFFFFFFFFu, w, 1);
    w += __shfl_xor_sync(0xFFFFFFFFu, w, 2);
    factor[r] = w > 0.0f ? keep_scale / w : 0.0f;
    const int i = row + l / 4 + 8 * r;
    if (l % 4 == 0 && i < q.count) lse[i] = w > 0.0f ? top[r] * kLn2 + logf(w) : -CUDART_INF_F;
  }
  write_rows_f32<kD>(row_of<float>(a.o, q.first + row, a.o_stride, head, kD), a.o_stride,
                     q.count - row, sum, factor[0], factor[1]);
#endif
}

template <int kD, int kWarps, int kKeys, int kResident>
struct ForwardBf16x6 {
  static constexpr int kQueries = kWarps * 16;
  static constexpr int kSharedBytes = (kQueries + 2 * kKeys) * kD * 2 * kParts;

  static void launch(const Context& ctx, const AttentionArgs& a) {
    const auto kernel = attention_forward_bf16x6_kernel<kD, kWarps, kKeys, kResident>;
    SAT_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    const int tiles = static_cast<int>(a.max_q > 0 ? (a.max_q + kQueries - 1) / kQueries : 1);
    const dim3 grid(static_cast<unsigned>(tiles * (a.sequences + 1)),
                    static_cast<unsigned>(a.heads));
    kernel<<<grid, kWarps * 32, kSharedBytes, cuda::stream_of(ctx)>>>(a, tiles);
    SAT_CUDA_LAUNCHED("attention_forward_bf16x6_kernel");
  }
};

// The tiles that measured best (LADDER.md).
template <int kD>
void launch_forward_bf16x6(const Context& ctx, const AttentionArgs& a) {
  if constexpr (kD == 128) {
    using Wide = ForwardBf16x6<kD, 8, 32, 1>;
    Wide::kSharedBytes <= capability_of(ctx).shared_bytes
        ? Wide::launch(ctx, a)
        : ForwardBf16x6<kD, 4, 32, 2>::launch(ctx, a);
  } else {
    attention_mean_length(a) <= 32 ? ForwardBf16x6<kD, 2, 32, 4>::launch(ctx, a)
                                   : ForwardBf16x6<kD, 8, 32, 2>::launch(ctx, a);
  }
}

}  // namespace saturate::kernels::attention
