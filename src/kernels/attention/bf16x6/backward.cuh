// SPDX-License-Identifier: Apache-2.0
// Backward pass in fp32 on tensor cores (device.cuh), in two kernels without atomics as in
// mma/backward.cuh: one block owns keys and walks over the queries (d_k, d_v), one owns
// queries and walks over the keys (d_q).
#pragma once
#include <math_constants.h>

#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/bf16x6/device.cuh"
#include "kernels/attention/impl.h"
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/attention/mma/features.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

template <int kCols>
__device__ __forceinline__ void cut_all(uint32_t (&p)[kCols / 16][kParts][4],
                                        const float (&s)[kCols / 8][4]) {
#pragma unroll
  for (int c = 0; c < kCols / 16; ++c) cut_left(p[c], s[2 * c], s[2 * c + 1]);
}

template <int kD, int kWarps, int kQueries, int kResident>
__global__ __launch_bounds__(kWarps * 32, kResident) void attention_backward_keys_bf16x6_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kWarps * 32, kKeys = kWarps * 16;
  const AttentionArgs& a = b.forward;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = static_cast<int>(blockIdx.x) % tiles;  // causal: the first see the most queries
  const int kv = static_cast<int>(blockIdx.y);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kKeys;
  if (first >= k.count) return;

  using KeyTile = CutTile<kD, kKeys, kThreads>;
  using QueryTile = CutTile<kD, kQueries, kThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kOwn = kParts * static_cast<int>(KeyTile::kBytes);
  constexpr int kOther = kParts * static_cast<int>(QueryTile::kBytes);
  unsigned char *const v_bytes = shared + kOwn, *const q_bytes = v_bytes + kOwn;
  unsigned char* const d_o_bytes = q_bytes + kOther;
  auto* const lse = reinterpret_cast<float*>(d_o_bytes + kOther);  // of the step's queries
  float* const delta = lse + kQueries;
  const auto k_tile = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t v_tile = k_tile + kOwn, q_tile = v_tile + kOwn, d_o_tile = q_tile + kOther;

  // Steps run over the heads of the group and, in each, over the query tiles that see these keys.
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const int begin = a.causal ? first / kQueries : 0;
  const int per_head = max(0, (q.count + kQueries - 1) / kQueries - begin);
  const int steps = per_head * group;
  {
    KeyTile rows;
    rows.fetch(row_of<float>(a.k, k.first + first, a.k_stride, kv, kD), a.k_stride,
               k.count - first);
    rows.put(shared);
    rows.fetch(row_of<float>(a.v, k.first + first, a.v_stride, kv, kD), a.v_stride,
               k.count - first);
    rows.put(v_bytes);
  }

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const float scale = a.scale * kLog2e;
  const bool drops = a.dropout > 0.0f;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, drops);
  float d_k[kD / 8][4] = {}, d_v[kD / 8][4] = {};
  QueryTile next;  // the queries of the coming step, then their d_o
  const auto head_of = [&](int n) { return kv * group + n / per_head; };
  const auto start_of = [&](int n) { return (begin + n % per_head) * kQueries; };
  const auto fetch_q = [&](int n) {
    next.fetch(row_of<float>(a.q, q.first + start_of(n), a.q_stride, head_of(n), kD), a.q_stride,
               q.count - start_of(n));
  };
  if (steps > 0) fetch_q(0);

  for (int n = 0; n < steps; ++n) {
    const int head = head_of(n), start = start_of(n);
    __syncthreads();  // the last step's tiles have been read
    next.put(q_bytes);
    next.fetch(row_of<float>(b.d_o, q.first + start, a.o_stride, head, kD), a.o_stride,
               q.count - start);
    for (int r = static_cast<int>(threadIdx.x); r < kQueries; r += kThreads) {
      const bool valid = start + r < q.count;
      const int64_t at = head * a.q_rows + q.first + start + r;
      // +infinity makes every probability of a row beyond the sequence zero.
      lse[r] = valid ? static_cast<const float*>(a.lse)[at] * kLog2e : CUDART_INF_F;
      delta[r] = valid ? static_cast<const float*>(b.delta)[at] : 0.0f;
    }
    __syncthreads();  // the queries are there for all

    // Probabilities, keys in rows. Rows beyond the sequence hold nonsense that is never written.
    float p[kQueries / 8][4], d_s[kQueries / 8][4];
    product_rows_cut<kD, kQueries>(p, k_tile, KeyTile::kBytes, warp_row, q_tile, QueryTile::kBytes);
#pragma unroll
    for (int c = 0; c < kQueries / 8; ++c) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse + l % 4 * 2 + c * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = start + c * 8 + l % 4 * 2 + e % 2, j = first + warp_row + l / 4 + e / 2 * 8;
        p[c][e] = a.causal && j > i
                      ? 0.0f
                      : exp2_fast(fmaf(p[c][e], scale, -(e % 2 == 0 ? row_lse.x : row_lse.y)));
      }
    }
    next.put(d_o_bytes);
    if (n + 1 < steps) fetch_q(n + 1);
    __syncthreads();  // d_o is there for all
    product_rows_cut<kD, kQueries>(d_s, v_tile, KeyTile::kBytes, warp_row, d_o_tile,
                                   QueryTile::kBytes);
    // From here p holds what was kept, and d_s = kept * d_p - p * delta.
    uint32_t words[4] = {};
#pragma unroll
    for (int c = 0; c < kQueries / 8; ++c) {
      const float2 row_delta = *reinterpret_cast<const float2*>(delta + l % 4 * 2 + c * 8);
      if (drops && c % 2 == 0)
        dropout.draw_columns(words, random_row(a, head, q.first + start + c * 8) +
                                        static_cast<uint64_t>((first + warp_row) / 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float kept = !drops                           ? p[c][e]
                           : dropout.keeps(words, c % 2, e) ? p[c][e] * keep_scale
                                                            : 0.0f;
        d_s[c][e] = kept * d_s[c][e] - p[c][e] * (e % 2 == 0 ? row_delta.x : row_delta.y);
        p[c][e] = kept;
      }
    }
    uint32_t left[kQueries / 16][kParts][4];
    cut_all<kQueries>(left, p);
    add_product_cut<kD, kQueries>(d_v, left, d_o_tile, QueryTile::kBytes, 1.0f, 1.0f);
    cut_all<kQueries>(left, d_s);
    add_product_cut<kD, kQueries>(d_k, left, q_tile, QueryTile::kBytes, 1.0f, 1.0f);
  }

  const int row = first + warp_row;
  write_rows_f32<kD>(row_of<float>(b.d_k, k.first + row, b.d_k_stride, kv, kD), b.d_k_stride,
                     k.count - row, d_k, a.scale, a.scale);
  write_rows_f32<kD>(row_of<float>(b.d_v, k.first + row, b.d_v_stride, kv, kD), b.d_v_stride,
                     k.count - row, d_v, 1.0f, 1.0f);
#endif
}

template <int kD, int kWarps, int kKeys, int kResident>
__global__ __launch_bounds__(kWarps * 32, kResident) void attention_backward_queries_bf16x6_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kWarps * 32, kQueries = kWarps * 16;
  const AttentionArgs& a = b.forward;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;  // causal: the longest first
  const int head = static_cast<int>(blockIdx.y);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kQueries;
  if (first >= q.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  using QueryTile = CutTile<kD, kQueries, kThreads>;
  using KeyTile = CutTile<kD, kKeys, kThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kOwn = kParts * static_cast<int>(QueryTile::kBytes);
  constexpr int kOther = kParts * static_cast<int>(KeyTile::kBytes);
  unsigned char *const d_o_bytes = shared + kOwn, *const k_bytes = d_o_bytes + kOwn;
  unsigned char* const v_bytes = k_bytes + kOther;
  const auto q_tile = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t d_o_tile = q_tile + kOwn, k_tile = d_o_tile + kOwn, v_tile = k_tile + kOther;
  const float* k_rows = row_of<float>(a.k, k.first, a.k_stride, kv, kD);
  const float* v_rows = row_of<float>(a.v, k.first, a.v_stride, kv, kD);
  const int end = a.causal ? min(k.count, first + kQueries) : k.count;
  {
    QueryTile rows;
    rows.fetch(row_of<float>(a.q, q.first + first, a.q_stride, head, kD), a.q_stride,
               q.count - first);
    rows.put(shared);
    rows.fetch(row_of<float>(b.d_o, q.first + first, a.o_stride, head, kD), a.o_stride,
               q.count - first);
    rows.put(d_o_bytes);
  }
  KeyTile next;  // the keys of the coming step, then its values
  if (end > 0) next.fetch(k_rows, a.k_stride, k.count);

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const int row = first + warp_row;
  const float scale = a.scale * kLog2e;
  const bool drops = a.dropout > 0.0f;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, drops);
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + l / 4 + 8 * r;
    const int64_t at = head * a.q_rows + q.first + i;
    lse[r] = i < q.count ? static_cast<const float*>(a.lse)[at] * kLog2e : CUDART_INF_F;
    delta[r] = i < q.count ? static_cast<const float*>(b.delta)[at] : 0.0f;
  }
  float d_q[kD / 8][4] = {};

  for (int start = 0; start < end; start += kKeys) {
    __syncthreads();  // the last step's tiles have been read
    next.put(k_bytes);
    next.fetch(v_rows + start * a.v_stride, a.v_stride, k.count - start);
    __syncthreads();  // the keys are there for all
    float p[kKeys / 8][4], d_s[kKeys / 8][4];
    product_rows_cut<kD, kKeys>(p, q_tile, QueryTile::kBytes, warp_row, k_tile, KeyTile::kBytes);
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = start + c * 8 + l % 4 * 2 + e % 2, i = row + l / 4 + e / 2 * 8;
        p[c][e] = j >= k.count || (a.causal && j > i)
                      ? 0.0f
                      : exp2_fast(fmaf(p[c][e], scale, -lse[e / 2]));
      }
    next.put(v_bytes);
    if (start + kKeys < end)
      next.fetch(k_rows + (start + kKeys) * a.k_stride, a.k_stride, k.count - start - kKeys);
    __syncthreads();  // the values are there for all
    product_rows_cut<kD, kKeys>(d_s, d_o_tile, QueryTile::kBytes, warp_row, v_tile,
                                KeyTile::kBytes);
    uint32_t words[4] = {};
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c) {
      if (drops && c % 2 == 0)
        dropout.draw_rows(
            words, random_row(a, head, q.first + row) + static_cast<uint64_t>(start / 4 + 2 * c));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float kept = !drops                           ? p[c][e]
                           : dropout.keeps(words, c % 2, e) ? p[c][e] * keep_scale
                                                            : 0.0f;
        d_s[c][e] = kept * d_s[c][e] - p[c][e] * delta[e / 2];
      }
    }
    uint32_t left[kKeys / 16][kParts][4];
    cut_all<kKeys>(left, d_s);
    add_product_cut<kD, kKeys>(d_q, left, k_tile, KeyTile::kBytes, 1.0f, 1.0f);
  }
  write_rows_f32<kD>(row_of<float>(b.d_q, q.first + row, b.d_q_stride, head, kD), b.d_q_stride,
                     q.count - row, d_q, a.scale, a.scale);
#endif
}

// kWarps * 16 rows a block, kOther rows of the other side a step, in both kernels; kResident
// blocks of a multiprocessor.
template <int kD, int kWarps, int kOther, int kResident>
struct BackwardBf16x6 {
  static constexpr int kOwn = kWarps * 16;
  static constexpr int kTiles = 2 * (kOwn + kOther) * kD * 2 * kParts;
  static constexpr int kSharedBytes = kTiles + 8 * kOther;

  static void launch(const Context& ctx, const AttentionBackwardArgs& b) {
    const AttentionArgs& a = b.forward;
    const auto enqueue = [&](auto kernel, int bytes, int64_t longest, int64_t heads) {
      if (longest == 0) return;
      SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
      const int tiles = static_cast<int>((longest + kOwn - 1) / kOwn);
      const dim3 grid(static_cast<unsigned>(tiles * a.sequences), static_cast<unsigned>(heads));
      kernel<<<grid, kWarps * 32, bytes, cuda::stream_of(ctx)>>>(b, tiles);
      SAT_CUDA_LAUNCHED("attention_backward_bf16x6_kernel");
    };
    enqueue(attention_backward_keys_bf16x6_kernel<kD, kWarps, kOther, kResident>, kSharedBytes,
            a.max_k, a.kv_heads);
    enqueue(attention_backward_queries_bf16x6_kernel<kD, kWarps, kOther, kResident>, kTiles,
            a.max_q, a.heads);
  }
};

// The tiles that measured best (LADDER.md).
template <int kD>
void launch_backward_bf16x6(const Context& ctx, const AttentionBackwardArgs& b) {
  if constexpr (kD == 128) {
    using Wide = BackwardBf16x6<kD, 8, 16, 1>;
    Wide::kSharedBytes <= capability_of(ctx).shared_bytes
        ? Wide::launch(ctx, b)
        : BackwardBf16x6<kD, 2, 16, 1>::launch(ctx, b);
  } else {
    attention_mean_length(b.forward) <= 32 ? BackwardBf16x6<kD, 2, 32, 4>::launch(ctx, b)
                                           : BackwardBf16x6<kD, 4, 32, 2>::launch(ctx, b);
  }
}

}  // namespace saturate::kernels::attention
