// SPDX-License-Identifier: Apache-2.0
// Backward pass on tensor cores in two kernels without atomics: one block owns keys and walks over
// the queries (d_k, d_v), one owns queries and walks over the keys (d_q). Each warp owns 16 rows,
// with the other side in columns, so probabilities and their gradients stay in registers: an
// accumulator is the left operand of the next product. The price is two products of seven done
// twice.
#pragma once
#include <math_constants.h>

#include "kernels/attention/impl.h"
#include "kernels/attention/mma/device.cuh"
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/attention/mma/mma.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

// The left fragments of a warp's 16 rows, in registers if kKeep, else read from the tile at each
// use.
template <int kD, bool kKeep>
struct LeftRows {
  uint32_t tile;
  int row;
  uint32_t kept[kKeep ? kD / 16 : 1][4];

  __device__ __forceinline__ void load() {
    if constexpr (kKeep)
#pragma unroll
      for (int c = 0; c < kD / 16; ++c) load_left<kD>(kept[c], tile, row, c);
  }
  __device__ __forceinline__ void get(uint32_t (&f)[4], int c) const {
    if constexpr (kKeep) {
#pragma unroll
      for (int i = 0; i < 4; ++i) f[i] = kept[c][i];
    } else {
      load_left<kD>(f, tile, row, c);
    }
  }
};

// s (16, kCols) = left rows times the transpose of the tile's kCols rows.
template <class T, int kD, int kCols, class Left>
__device__ __forceinline__ void product_rows(float (&s)[kCols / 8][4], const Left& left,
                                             uint32_t tile) {
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
#pragma unroll
  for (int c = 0; c < kD / 16; ++c) {
    uint32_t a[4];
    left.get(a, c);
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t b[4];
      load_right_rows<kD>(b, tile, n * 16, c);
      multiply_add<T>(s[2 * n], a, b[0], b[1]);
      multiply_add<T>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// sum (16, kD) += s (16, kCols), rounded to T, times the tile's kCols rows.
template <class T, int kD, int kCols>
__device__ __forceinline__ void add_product(float (&sum)[kD / 8][4], const float (&s)[kCols / 8][4],
                                            uint32_t tile) {
#pragma unroll
  for (int c = 0; c < kCols / 16; ++c) {
    uint32_t a[4];
    to_left<T>(a, s[2 * c], s[2 * c + 1]);
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
      uint32_t b[4];
      load_right_columns<kD>(b, tile, c * 16, n);
      multiply_add<T>(sum[2 * n], a, b[0], b[1]);
      multiply_add<T>(sum[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// kDrops: without dropout the random numbers are left out, which saves registers (LADDER.md).
template <class T, int kD, int kWarps, int kQueries, bool kDrops>
__global__ __launch_bounds__(kWarps * 32) void attention_backward_keys_mma_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kWarps * 32, kKeys = kWarps * 16;
  const AttentionArgs& a = b.forward;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile =
      static_cast<int>(blockIdx.x) % tiles;  // causal: the first keys see the most queries
  const int kv = static_cast<int>(blockIdx.y);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kKeys;
  if (first >= k.count) return;

  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kKeyTile = kKeys * kD * 2, kQueryTile = kQueries * kD * 2;
  const auto k_tile = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t v_tile = k_tile + kKeyTile;
  const uint32_t q_tiles = v_tile + kKeyTile,
                 d_o_tiles = q_tiles + 2 * kQueryTile;  // two stages each
  auto* lse_of = reinterpret_cast<float*>(shared + 2 * kKeyTile + 4 * kQueryTile);
  float* delta_of = lse_of + 2 * kQueries;

  // Steps run over the heads of the group and, in each, over the query tiles that see these keys.
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const int begin = a.causal ? first / kQueries : 0;
  const int per_head = max(0, (q.count + kQueries - 1) / kQueries - begin);
  const int steps = per_head * group;
  const auto fetch = [&](int n) {
    const int head = kv * group + n / per_head, start = (begin + n % per_head) * kQueries,
              stage = n & 1;
    copy_tile<kD, kQueries, kThreads>(q_tiles + stage * kQueryTile,
                                      row_of<T>(a.q, q.first + start, a.q_stride, head, kD),
                                      a.q_stride, q.count - start);
    copy_tile<kD, kQueries, kThreads>(d_o_tiles + stage * kQueryTile,
                                      row_of<T>(b.d_o, q.first + start, a.o_stride, head, kD),
                                      a.o_stride, q.count - start);
    for (int r = static_cast<int>(threadIdx.x); r < kQueries; r += kThreads) {
      const bool valid = start + r < q.count;
      const int64_t at = head * a.q_rows + q.first + start + r;
      // +infinity makes every probability of a row beyond the sequence zero.
      lse_of[stage * kQueries + r] =
          valid ? static_cast<const float*>(a.lse)[at] * kLog2e : CUDART_INF_F;
      delta_of[stage * kQueries + r] = valid ? static_cast<const float*>(b.delta)[at] : 0.0f;
    }
  };
  copy_tile<kD, kKeys, kThreads>(k_tile, row_of<T>(a.k, k.first + first, a.k_stride, kv, kD),
                                 a.k_stride, k.count - first);
  copy_tile<kD, kKeys, kThreads>(v_tile, row_of<T>(a.v, k.first + first, a.v_stride, kv, kD),
                                 a.v_stride, k.count - first);
  if (steps > 0) fetch(0);
  copy_commit();

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const float scale = a.scale * kLog2e;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, kDrops);
  LeftRows<kD, kD <= 64> k_left{k_tile, warp_row, {}}, v_left{v_tile, warp_row, {}};
  float d_k[kD / 8][4] = {}, d_v[kD / 8][4] = {};

  for (int n = 0; n < steps; ++n) {
    copy_wait<0>();
    __syncthreads();  // this step's tiles are there for all, and the last step's have been read
    if (n == 0) {
      k_left.load();
      v_left.load();
    }
    if (n + 1 < steps) {
      fetch(n + 1);
      copy_commit();
    }
    const int head = kv * group + n / per_head, start = (begin + n % per_head) * kQueries,
              stage = n & 1;
    const uint32_t q_tile = q_tiles + stage * kQueryTile, d_o_tile = d_o_tiles + stage * kQueryTile;
    const float* lse = lse_of + stage * kQueries + l % 4 * 2;
    const float* delta = delta_of + stage * kQueries + l % 4 * 2;

    // Probabilities, keys in rows. Rows beyond the sequence hold nonsense that is never written.
    float p[kQueries / 8][4], d_s[kQueries / 8][4];
    product_rows<T, kD, kQueries>(p, k_left, q_tile);
#pragma unroll
    for (int c = 0; c < kQueries / 8; ++c) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse + c * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        p[c][e] = exp2_fast(p[c][e] * scale - (e % 2 == 0 ? row_lse.x : row_lse.y));
    }
    if (a.causal && start < first + warp_row + 15) {
#pragma unroll
      for (int c = 0; c < kQueries / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = start + c * 8 + l % 4 * 2 + e % 2, j = first + warp_row + l / 4 + e / 2 * 8;
          if (j > i) p[c][e] = 0.0f;
        }
    }
    product_rows<T, kD, kQueries>(d_s, v_left, d_o_tile);
    // From here p holds what was kept, and d_s = kept * d_p - p * delta.
    uint32_t words[4];
#pragma unroll
    for (int c = 0; c < kQueries / 8; ++c) {
      const float2 row_delta = *reinterpret_cast<const float2*>(delta + c * 8);
      if (kDrops && c % 2 == 0)
        dropout.draw_columns(words, random_row(a, head, q.first + start + c * 8) +
                                        static_cast<uint64_t>((first + warp_row) / 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float kept = !kDrops                          ? p[c][e]
                           : dropout.keeps(words, c % 2, e) ? p[c][e] * keep_scale
                                                            : 0.0f;
        d_s[c][e] = kept * d_s[c][e] - p[c][e] * (e % 2 == 0 ? row_delta.x : row_delta.y);
        p[c][e] = kept;
      }
    }
    add_product<T, kD, kQueries>(d_v, p, d_o_tile);
    add_product<T, kD, kQueries>(d_k, d_s, q_tile);
  }
  copy_wait<0>();
  __syncthreads();  // k and v have arrived everywhere (steps may be 0), so their tiles can carry
                    // results

  const int row = first + warp_row;
  write_rows<T, kD>(row_of<T>(b.d_k, k.first + row, b.d_k_stride, kv, kD), b.d_k_stride,
                    k.count - row, shared, warp_row, d_k, a.scale, a.scale);
  write_rows<T, kD>(row_of<T>(b.d_v, k.first + row, b.d_v_stride, kv, kD), b.d_v_stride,
                    k.count - row, shared + kKeyTile, warp_row, d_v, 1.0f, 1.0f);
#endif
}

template <class T, int kD, int kWarps, int kKeys, bool kDrops>
__global__ __launch_bounds__(kWarps * 32) void attention_backward_queries_mma_kernel(
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

  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kKeyTile = kKeys * kD * 2, kQueryTile = kQueries * kD * 2;
  const auto q_tile = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t d_o_tile = q_tile + kQueryTile;
  const uint32_t k_tiles = d_o_tile + kQueryTile,
                 v_tiles = k_tiles + 2 * kKeyTile;  // two stages each
  const int end = a.causal ? min(k.count, first + kQueries) : k.count;
  const int steps = (end + kKeys - 1) / kKeys;
  const auto fetch = [&](int n) {
    const int start = n * kKeys, stage = n & 1;
    copy_tile<kD, kKeys, kThreads>(k_tiles + stage * kKeyTile,
                                   row_of<T>(a.k, k.first + start, a.k_stride, kv, kD), a.k_stride,
                                   k.count - start);
    copy_tile<kD, kKeys, kThreads>(v_tiles + stage * kKeyTile,
                                   row_of<T>(a.v, k.first + start, a.v_stride, kv, kD), a.v_stride,
                                   k.count - start);
  };
  copy_tile<kD, kQueries, kThreads>(q_tile, row_of<T>(a.q, q.first + first, a.q_stride, head, kD),
                                    a.q_stride, q.count - first);
  copy_tile<kD, kQueries, kThreads>(d_o_tile,
                                    row_of<T>(b.d_o, q.first + first, a.o_stride, head, kD),
                                    a.o_stride, q.count - first);
  if (steps > 0) fetch(0);
  copy_commit();

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const int row = first + warp_row;
  const float scale = a.scale * kLog2e;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, kDrops);
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + l / 4 + 8 * r;
    const int64_t at = head * a.q_rows + q.first + i;
    lse[r] = i < q.count ? static_cast<const float*>(a.lse)[at] * kLog2e : CUDART_INF_F;
    delta[r] = i < q.count ? static_cast<const float*>(b.delta)[at] : 0.0f;
  }
  LeftRows<kD, kD <= 64> q_left{q_tile, warp_row, {}}, d_o_left{d_o_tile, warp_row, {}};
  float d_q[kD / 8][4] = {};

  for (int n = 0; n < steps; ++n) {
    copy_wait<0>();
    __syncthreads();  // this step's tiles are there for all, and the last step's have been read
    if (n == 0) {
      q_left.load();
      d_o_left.load();
    }
    if (n + 1 < steps) {
      fetch(n + 1);
      copy_commit();
    }
    const int start = n * kKeys;
    const uint32_t k_tile = k_tiles + (n & 1) * kKeyTile, v_tile = v_tiles + (n & 1) * kKeyTile;
    float p[kKeys / 8][4], d_s[kKeys / 8][4];
    product_rows<T, kD, kKeys>(p, q_left, k_tile);
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) p[c][e] = exp2_fast(p[c][e] * scale - lse[e / 2]);
    if (start + kKeys > k.count || (a.causal && start + kKeys > row + 1)) {
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int j = start + c * 8 + l % 4 * 2 + e % 2, i = row + l / 4 + e / 2 * 8;
          if (j >= k.count || (a.causal && j > i)) p[c][e] = 0.0f;
        }
    }
    product_rows<T, kD, kKeys>(d_s, d_o_left, v_tile);
    uint32_t words[4];
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c) {
      if (kDrops && c % 2 == 0)
        dropout.draw_rows(
            words, random_row(a, head, q.first + row) + static_cast<uint64_t>(start / 4 + 2 * c));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float kept = !kDrops                          ? p[c][e]
                           : dropout.keeps(words, c % 2, e) ? p[c][e] * keep_scale
                                                            : 0.0f;
        d_s[c][e] = kept * d_s[c][e] - p[c][e] * delta[e / 2];
      }
    }
    add_product<T, kD, kKeys>(d_q, d_s, k_tile);
  }
  copy_wait<0>();
  __syncthreads();  // q has arrived everywhere (steps may be 0), so that its tile can carry d_q
  write_rows<T, kD>(row_of<T>(b.d_q, q.first + row, b.d_q_stride, head, kD), b.d_q_stride,
                    q.count - row, shared, warp_row, d_q, a.scale, a.scale);
#endif
}

// kWarps * 16 rows a block, `kOther` rows of the other side a step, in both kernels.
template <class T, int kD, int kWarps, int kOther, bool kDrops>
void launch_backward(const Context& ctx, const AttentionBackwardArgs& b) {
  constexpr int kOwn = kWarps * 16, kTiles = (2 * kOwn + 4 * kOther) * kD * 2;
  const AttentionArgs& a = b.forward;
  const auto launch = [&](auto kernel, int bytes, int64_t longest, int64_t heads) {
    if (longest == 0) return;
    SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const int tiles = static_cast<int>((longest + kOwn - 1) / kOwn);
    const dim3 grid(static_cast<unsigned>(tiles * a.sequences), static_cast<unsigned>(heads));
    kernel<<<grid, kWarps * 32, bytes, cuda::stream_of(ctx)>>>(b, tiles);
    SAT_CUDA_LAUNCHED("attention_backward_mma_kernel");
  };
  launch(attention_backward_keys_mma_kernel<T, kD, kWarps, kOther, kDrops>, kTiles + 16 * kOther,
         a.max_k, a.kv_heads);
  launch(attention_backward_queries_mma_kernel<T, kD, kWarps, kOther, kDrops>, kTiles, a.max_q,
         a.heads);
}

template <class T, int kD, int kWarps, int kOther>
void launch_backward_for_dropout(const Context& ctx, const AttentionBackwardArgs& b) {
  b.forward.dropout > 0.0f ? launch_backward<T, kD, kWarps, kOther, true>(ctx, b)
                           : launch_backward<T, kD, kWarps, kOther, false>(ctx, b);
}

template <int kD>
void launch_backward_mma(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  // Wide heads: d_k and d_v take 128 registers of a thread, so the step is shorter.
  constexpr int kStep = kD == 128 ? 32 : 64;
  const bool brief = attention_mean_length(a) <= 32;
  const auto with = [&](auto tag) {
    using T = typename decltype(tag)::type;
    brief ? launch_backward_for_dropout<T, kD, 2, 32>(ctx, b)
          : launch_backward_for_dropout<T, kD, 4, kStep>(ctx, b);
  };
  a.dtype == DType::f16 ? with(TypeTag<__half>{}) : with(TypeTag<__nv_bfloat16>{});
}

}  // namespace saturate::kernels::attention
