// SPDX-License-Identifier: Apache-2.0
// Forward pass on tensor cores. One block: kWarps * kBlocks * 16 query rows of one head, each warp
// owning its rows, so that the online softmax needs no exchange between warps.
#pragma once
#include <math_constants.h>

#include "kernels/attention/mma/device.cuh"
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/attention/mma/mma.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

// kMayDrop: false leaves the random numbers out, which saves registers.
template <class T, int kD, int kWarps, int kBlocks, int kKeys, bool kMayDrop>
__global__ __launch_bounds__(kWarps * 32) void attention_forward_mma_kernel(
    const __grid_constant__ AttentionArgs a, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kWarps * 32, kQueries = kWarps * kBlocks * 16;
  constexpr bool kKeepQ = kBlocks * kD <= 128;  // q fragments stay in registers
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;  // causal: the longest first
  const int head = static_cast<int>(blockIdx.y);
  if (sequence == a.sequences) return zero_tail<T>(a, head, tile, tiles);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kQueries;
  if (first >= q.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  extern __shared__ __align__(128) unsigned char shared[];
  const auto q_tile = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t k_tile = q_tile + kQueries * kD * 2, v_tile = k_tile + kKeys * kD * 2;
  const T* k_rows = row_of<T>(a.k, k.first, a.k_stride, kv, kD);
  const T* v_rows = row_of<T>(a.v, k.first, a.v_stride, kv, kD);
  const int end = a.causal ? min(k.count, first + kQueries) : k.count;

  copy_tile<kD, kQueries, kThreads>(q_tile, row_of<T>(a.q, q.first + first, a.q_stride, head, kD),
                                    a.q_stride, q.count - first);
  if (end > 0) copy_tile<kD, kKeys, kThreads>(k_tile, k_rows, a.k_stride, k.count);
  copy_commit();
  if (end > 0) copy_tile<kD, kKeys, kThreads>(v_tile, v_rows, a.v_stride, k.count);
  copy_commit();

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * kBlocks * 16;
  const float scale = a.scale * kLog2e;
  const bool drops = kMayDrop && a.dropout > 0.0f;
  const DropoutBits dropout(a.rng, a.dropout, drops);

  float sum[kBlocks][kD / 8][4] = {}, top[kBlocks][2], weight[kBlocks][2] = {};
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) top[m][0] = top[m][1] = -CUDART_INF_F;
  uint32_t q_kept[kKeepQ ? kBlocks : 1][kKeepQ ? kD / 16 : 1][4];

  for (int start = 0; start < end; start += kKeys) {
    if (start == 0) {
      copy_wait<1>();  // q and the first k; v may still be under way
    } else {
      copy_wait<0>();
    }
    __syncthreads();  // k is there for all, and the last step's v has been read
    if (start == 0) {
      if constexpr (kKeepQ) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m)
#pragma unroll
          for (int c = 0; c < kD / 16; ++c)
            load_left<kD>(q_kept[m][c], q_tile, warp_row + m * 16, c);
      }
    } else {
      copy_tile<kD, kKeys, kThreads>(v_tile, v_rows + start * a.v_stride, a.v_stride,
                                     k.count - start);
      copy_commit();
    }

    // Scores.
    float s[kBlocks][kKeys / 8][4] = {};
#pragma unroll
    for (int c = 0; c < kD / 16; ++c) {
      uint32_t left[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        if constexpr (kKeepQ) {
#pragma unroll
          for (int i = 0; i < 4; ++i) left[m][i] = q_kept[m][c][i];
        } else {
          load_left<kD>(left[m], q_tile, warp_row + m * 16, c);
        }
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t right[4];
        load_right_rows<kD>(right, k_tile, n * 16, c);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add<T>(s[m][2 * n], left[m], right[0], right[1]);
          multiply_add<T>(s[m][2 * n + 1], left[m], right[2], right[3]);
        }
      }
    }

    // Keys beyond the sequence or, if causal, after the query.
    if (start + kKeys > k.count || (a.causal && start + kKeys > first + warp_row + 1)) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int j = start + n * 8 + l % 4 * 2 + e % 2;
            const int i = first + warp_row + m * 16 + l / 4 + e / 2 * 8;
            if (j >= k.count || (a.causal && j > i)) s[m][n][e] = -CUDART_INF_F;
          }
    }

    // Online softmax in powers of two; a lane's share of each row's sum is added up at the end.
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = s[m][0][2 * r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          high = fmaxf(high, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
        high = fmaxf(high * scale, top[m][r]);
        const float base =
            high == -CUDART_INF_F ? 0.0f : high;  // no key seen yet: all exponents -inf
        const float shrink = exp2_fast(top[m][r] - base);
        top[m][r] = high;
        float w = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            s[m][n][e] = exp2_fast(s[m][n][e] * scale - base);
            w += s[m][n][e];
          }
        weight[m][r] = weight[m][r] * shrink + w;
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
          sum[m][n][2 * r] *= shrink;
          sum[m][n][2 * r + 1] *= shrink;
        }
      }
    if (drops) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint64_t row0 = random_row(a, head, q.first + first + warp_row + m * 16);
#pragma unroll
        for (int n = 0; n < kKeys / 8; n += 2) {
          uint32_t words[4];
          dropout.draw_rows(words, row0 + static_cast<uint64_t>(start / 4 + 2 * n));
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (!dropout.keeps(words, e / 4, e % 4)) s[m][n + e / 4][e % 4] = 0.0f;
        }
      }
    }

    copy_wait<0>();
    __syncthreads();  // v is there for all, and k has been read
    if (start + kKeys < end) {
      const int next = start + kKeys;
      copy_tile<kD, kKeys, kThreads>(k_tile, k_rows + next * a.k_stride, a.k_stride,
                                     k.count - next);
      copy_commit();
    }
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      uint32_t left[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) to_left<T>(left[m], s[m][2 * c], s[m][2 * c + 1]);
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t right[4];
        load_right_columns<kD>(right, v_tile, c * 16, n);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add<T>(sum[m][2 * n], left[m], right[0], right[1]);
          multiply_add<T>(sum[m][2 * n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }
  if (end == 0) {
    copy_wait<0>();
    __syncthreads();  // q has arrived everywhere, so that its tile can carry the output
  }

  float* lse = static_cast<float*>(a.lse) + head * a.q_rows + q.first;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    const int row = first + warp_row + m * 16;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float w = weight[m][r];
      w += __shfl_xor_sync(0xFFFFFFFFu, w, 1);
      w += __shfl_xor_sync(0xFFFFFFFFu, w, 2);
      factor[r] = w > 0.0f ? keep_scale / w : 0.0f;
      const int i = row + l / 4 + 8 * r;
      if (l % 4 == 0 && i < q.count) lse[i] = w > 0.0f ? top[m][r] * kLn2 + logf(w) : -CUDART_INF_F;
    }
    write_rows<T, kD>(row_of<T>(a.o, q.first + row, a.o_stride, head, kD), a.o_stride,
                      q.count - row, shared, warp_row + m * 16, sum[m], factor[0], factor[1]);
  }
#endif
}

template <class T, int kD, int kWarps, int kBlocks, int kKeys>
void launch_forward(const Context& ctx, const AttentionArgs& a) {
  constexpr int kQueries = kWarps * kBlocks * 16, kBytes = (kQueries + 2 * kKeys) * kD * 2;
  // Two blocks a warp fill the registers either way; the one instance measured 5% faster
  // (LADDER.md).
  const auto kernel =
      a.dropout > 0.0f ? attention_forward_mma_kernel<T, kD, kWarps, kBlocks, kKeys, true>
                       : attention_forward_mma_kernel<T, kD, kWarps, kBlocks, kKeys, (kBlocks > 1)>;
  SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int tiles = static_cast<int>(a.max_q > 0 ? (a.max_q + kQueries - 1) / kQueries : 1);
  const dim3 grid(static_cast<unsigned>(tiles * (a.sequences + 1)), static_cast<unsigned>(a.heads));
  kernel<<<grid, kWarps * 32, kBytes, cuda::stream_of(ctx)>>>(a, tiles);
  SAT_CUDA_LAUNCHED("attention_forward_mma_kernel");
}

// The average length, as far as the host knows it (LADDER.md: tile by length).
inline int64_t typical_length(int64_t rows, int64_t sequences, int64_t longest) {
  const int64_t mean = sequences > 0 ? (rows + sequences - 1) / sequences : 0;
  return mean < longest ? mean : longest;
}

template <class T, int kD>
void launch_forward_for_length(const Context& ctx, const AttentionArgs& a) {
  const int64_t typical = typical_length(a.q_rows, a.sequences, a.max_q);
  if (typical <= 32) return launch_forward<T, kD, 2, 1, 32>(ctx, a);
  if (typical <= 64) return launch_forward<T, kD, 4, 1, 64>(ctx, a);
  // Two blocks of 16 rows a warp halve the reads of k and v; wide heads lack the registers.
  if constexpr (kD == 128) {
    launch_forward<T, kD, 8, 1, 64>(ctx, a);
  } else {
    launch_forward<T, kD, 4, 2, 64>(ctx, a);
  }
}

template <int kD>
void launch_forward_mma(const Context& ctx, const AttentionArgs& a) {
  if (a.dtype == DType::f16) return launch_forward_for_length<__half, kD>(ctx, a);
  launch_forward_for_length<__nv_bfloat16, kD>(ctx, a);
}

}  // namespace saturate::kernels::attention
