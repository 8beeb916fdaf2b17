// SPDX-License-Identifier: Apache-2.0
// The gradient of the bias on tensor cores: the scores' gradients summed over what the bias shares.
#pragma once
#include "kernels/attention/mma/features_backward.cuh"

namespace saturate::kernels::attention {

// One block: 64 columns of 64 rows of one matrix of d_bias (of one row, where the rows share it).
// It goes through all sequences, heads and query tiles that add to it, in order, and computes their
// scores again.
template <class T, int kD, int kV, uint32_t kMay>
__global__ __launch_bounds__(128) void attention_backward_bias_features_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int row_tiles, int matrix_heads) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = 128, kRows = 64, kKeys = 64;
  const AttentionArgs& a = b.forward;
  const int matrix = static_cast<int>(blockIdx.x) / row_tiles,
            tile = static_cast<int>(blockIdx.x) % row_tiles;
  const int start = static_cast<int>(blockIdx.y) * kKeys;  // first column
  const bool all_sequences = b.d_bias_sequence_stride == 0, all_heads = b.d_bias_head_stride == 0;
  const bool all_rows = b.d_bias_row_stride == 0;
  const int sequence_begin = all_sequences ? 0 : matrix / matrix_heads;
  const int sequence_end = all_sequences ? static_cast<int>(a.sequences) : sequence_begin + 1;
  const int head_begin = all_heads ? 0 : matrix % matrix_heads;
  const int head_end = all_heads ? static_cast<int>(a.heads) : head_begin + 1;
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const bool rotates = (kMay & kFeatureRotary) != 0 && a.rotary_base > 0.0f;
  const HeadColumns D = head_columns(a, rotates), V = value_columns(a);

  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kTile = Tile<kD>::bytes(kRows), kValueTile = Tile<kV>::bytes(kRows);
  const Tile<kD> q_tile{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const Tile<kD> k_tile{q_tile.at + kTile};
  const Tile<kV> d_o_tile{k_tile.at + kTile}, v_tile{d_o_tile.at + kValueTile};
  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const LeftTile<kD, false> q_left{q_tile.from_row(warp_row), {}};
  const LeftTile<kV, false> d_o_left{d_o_tile.from_row(warp_row), {}};
  const bool drops = (kMay & kMayDrop) != 0 && a.dropout > 0.0f;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, drops);

  float sum[kKeys / 8][4] = {};
  for (int sequence = sequence_begin; sequence < sequence_end; ++sequence) {
    const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
    if (start >= k.count) continue;
    for (int head = head_begin; head < head_end; ++head) {
      const MmaScores<kMay> scores(a, sequence, head, q.count, k.count);
      const int kv = head / group;
      const int first_begin = all_rows ? 0 : tile * kRows;
      const int first_end = all_rows ? q.count : min(q.count, first_begin + kRows);
      for (int first = first_begin; first < first_end; first += kRows) {
        if (!scores.meets(first, first + kRows, start, start + kKeys) ||
            scores.hides(first, first + kRows, start, start + kKeys))
          continue;
        __syncthreads();  // the last step's tiles have been read
        q_tile.template copy<kRows, kThreads>(
            row_of<T>(a.q, q.first + first, a.q_stride, head, D.elements()), a.q_stride,
            q.count - first, D);
        k_tile.template copy<kKeys, kThreads>(
            row_of<T>(a.k, k.first + start, a.k_stride, kv, D.elements()), a.k_stride,
            k.count - start, D);
        copy_commit();
        d_o_tile.template copy<kRows, kThreads>(
            row_of<T>(b.d_o, q.first + first, a.o_stride, head, V.elements()), a.o_stride,
            q.count - first, V);
        v_tile.template copy<kKeys, kThreads>(
            row_of<T>(a.v, k.first + start, a.v_stride, kv, V.elements()), a.v_stride,
            k.count - start, V);
        copy_commit();
        const int row = first + warp_row;
        float lse[2], delta[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          lse[r] = lse2_of(a, head, q, row + l / 4 + 8 * r);
          delta[r] = delta_of(b, head, q, row + l / 4 + 8 * r);
        }
        float p[kKeys / 8][4], d_p[kKeys / 8][4];
        uint32_t no_slopes[1][2];
        copy_wait<1>();
        __syncthreads();  // q and k are there for all
        if (rotates) {
          rotate_rows<T, kD, kRows, kThreads>(shared, a, first + scores.shift);
          rotate_rows<T, kD, kKeys, kThreads>(shared + kTile, a, start);
          __syncthreads();  // they are rotated for all
        }
        product_rows<T, kD, kKeys>(p, q_left, k_tile);
        to_scores<T, false, false, kKeys>(scores, p, no_slopes, row, start);
        copy_wait<0>();
        __syncthreads();  // d_o and v too
        product_rows<T, kV, kKeys>(d_p, d_o_left, v_tile);
        uint32_t words[4] = {};
#pragma unroll
        for (int c = 0; c < kKeys / 8; ++c) {
          if (drops && c % 2 == 0)
            dropout.draw_rows(words, random_row(a, head, q.first + row) +
                                         static_cast<uint64_t>(start / 4 + 2 * c));
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float one = exp2_fast(p[c][e] - lse[e / 2]);
            const float kept = dropout.keeps(words, c % 2, e) ? one * keep_scale : 0.0f;
            sum[c][e] += kept * d_p[c][e] - one * delta[e / 2];
          }
        }
      }
    }
  }
  float* d_bias = static_cast<float*>(b.d_bias) + sequence_begin * b.d_bias_sequence_stride +
                  head_begin * b.d_bias_head_stride;
  if (!all_rows) {
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int2 at = place_of<false>(tile * kRows + warp_row, start, c, e);
        if (at.x < a.max_q && at.y < a.max_k) d_bias[at.x * b.d_bias_row_stride + at.y] = sum[c][e];
      }
    return;
  }
  // The columns' sums: over the lanes of a column, then over the warps in order.
  __shared__ float columns[kThreads / 32][kKeys];
#pragma unroll
  for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float total = sum[c][e] + sum[c][e + 2];
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        total += __shfl_xor_sync(0xFFFFFFFFu, total, offset);
      if (l < 4) columns[warp_row / 16][c * 8 + l * 2 + e] = total;
    }
  __syncthreads();  // every warp's sums are there
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kKeys || start + column >= a.max_k) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += columns[w][column];
  d_bias[start + column] = total;
#endif
}

template <class T, int kD, int kV, uint32_t kMay>
void launch_bias_features(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const int64_t sequences = b.d_bias_sequence_stride == 0 ? 1 : a.sequences;
  const int64_t heads = b.d_bias_head_stride == 0 ? 1 : a.heads;
  const int64_t rows = b.d_bias_row_stride == 0 ? 1 : a.max_q;
  if (sequences == 0 || rows == 0 || a.max_k == 0) return;
  constexpr int kBytes = Tile<kD>::bytes(128) + Tile<kV>::bytes(128);
  const auto kernel = attention_backward_bias_features_kernel<T, kD, kV, kMay>;
  SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int64_t row_tiles = (rows + 63) / 64;
  const dim3 grid(static_cast<unsigned>(row_tiles * sequences * heads),
                  static_cast<unsigned>((a.max_k + 63) / 64));
  kernel<<<grid, 128, kBytes, cuda::stream_of(ctx)>>>(b, static_cast<int>(row_tiles),
                                                      static_cast<int>(heads));
  SAT_CUDA_LAUNCHED("attention_backward_bias_features_kernel");
}

}  // namespace saturate::kernels::attention
