// SPDX-License-Identifier: Apache-2.0
// The gradient of the bias: the scores' gradients summed over what the bias shares.
#include "kernels/attention/plain/backward.cuh"
#include "kernels/attention/plain/plain.h"

namespace saturate::kernels::attention {
namespace {

// One block: kB columns of kB rows of one matrix of d_bias. It goes through all sequences, heads
// and query tiles that add to it, in order, and computes their scores again.
template <class T, class Tile, int kB>
__global__ __launch_bounds__(kPlainThreads) void attention_backward_bias_plain_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int row_tiles, int matrix_heads) {
  constexpr int kM = Tile::kM;
  const AttentionArgs& a = b.forward;
  const int D = static_cast<int>(a.head_size), V = value_size(a);
  const int matrix = static_cast<int>(blockIdx.x) / row_tiles,
            tile = static_cast<int>(blockIdx.x) % row_tiles;
  const int start = static_cast<int>(blockIdx.y) * kB;  // first column
  const bool all_sequences = b.d_bias_sequence_stride == 0, all_heads = b.d_bias_head_stride == 0;
  const bool all_rows = b.d_bias_row_stride == 0;
  const int sequence_begin = all_sequences ? 0 : matrix / matrix_heads;
  const int sequence_end = all_sequences ? static_cast<int>(a.sequences) : sequence_begin + 1;
  const int head_begin = all_heads ? 0 : matrix % matrix_heads;
  const int head_end = all_heads ? static_cast<int>(a.heads) : head_begin + 1;
  const int group = static_cast<int>(a.heads / a.kv_heads);

  extern __shared__ float shared[];
  float* x_tile = shared;                  // q, then d_o
  float* y_tile = x_tile + Tile::kFloats;  // k, then v
  float* s_tile = y_tile + Tile::kFloats;
  const PlainDropout dropout(a);
  float sum[kM][kM] = {};
  for (int sequence = sequence_begin; sequence < sequence_end; ++sequence) {
    const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
    if (start >= k.count) continue;
    const int keys = min(kB, k.count - start);
    for (int head = head_begin; head < head_end; ++head) {
      const PlainScores<true> scores(a, sequence, head, q.count, k.count);
      const float* lse = static_cast<const float*>(a.lse) + head * a.q_rows + q.first;
      const float* delta = static_cast<const float*>(b.delta) + head * a.q_rows + q.first;
      const int first_begin = all_rows ? 0 : tile * kB;
      const int first_end = all_rows ? q.count : min(q.count, first_begin + kB);
      for (int first = first_begin; first < first_end; first += kB) {
        if (scores.hides(first, first + kB, start, start + kB)) continue;
        const int rows = min(kB, q.count - first);
        float s[kM][kM], d_p[kM][kM];
        __syncthreads();  // the last step's tiles have been read
        load_tile<true, T, Tile>(x_tile, a, row_of<T>(a.q, q.first + first, a.q_stride, head, D),
                                 a.q_stride, rows, scores.aligned(first));
        load_tile<true, T, Tile>(y_tile, a,
                                 row_of<T>(a.k, k.first + start, a.k_stride, head / group, D),
                                 a.k_stride, keys, start);
        __syncthreads();  // q and k are there
        Tile::dots(x_tile, y_tile, s);
        __syncthreads();  // they have been read
        Tile::load(x_tile, row_of<T>(b.d_o, q.first + first, a.o_stride, head, V), a.o_stride, rows,
                   V);
        Tile::load(y_tile, row_of<T>(a.v, k.first + start, a.v_stride, head / group, V), a.v_stride,
                   keys, V);
        __syncthreads();  // d_o and v are there
        Tile::dots(x_tile, y_tile, d_p);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const int i = first + Tile::y() + 16 * m;
#pragma unroll
          for (int n = 0; n < kM; ++n) {
            const int j = start + Tile::x() + 16 * n;
            if (!scores.sees(i, j)) continue;
            float cap_slope;
            const float score = scores.score(i, j, s[m][n], cap_slope);
            const float p = exp2f((score - seen_lse<true>(lse[i])) * kLog2e);
            sum[m][n] += p * dropout.factor(head, q.first, i, j) * d_p[m][n] - p * delta[i];
          }
        }
      }
    }
  }
  float* d_bias = static_cast<float*>(b.d_bias) + sequence_begin * b.d_bias_sequence_stride +
                  head_begin * b.d_bias_head_stride;
  if (!all_rows) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kM; ++n) {
        const int i = tile * kB + Tile::y() + 16 * m, j = start + Tile::x() + 16 * n;
        if (i < a.max_q && j < a.max_k) d_bias[i * b.d_bias_row_stride + j] = sum[m][n];
      }
    return;
  }
  Tile::put_scores(s_tile, sum);
  __syncthreads();  // all rows' sums are there
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kB || start + column >= a.max_k) return;
  float total = 0.0f;
  for (int r = 0; r < kB; ++r) total += s_tile[r * Tile::kScoreLd + column];
  d_bias[start + column] = total;
}

}  // namespace

void backward_plain_bias(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const int64_t sequences = b.d_bias_sequence_stride == 0 ? 1 : a.sequences;
  const int64_t heads = b.d_bias_head_stride == 0 ? 1 : a.heads;
  const int64_t rows = b.d_bias_row_stride == 0 ? 1 : a.max_q;
  if (sequences == 0 || rows == 0 || a.max_k == 0) return;
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t v_size = attention_v_head_size(a);
    with_plain_tile(a.head_size > v_size ? a.head_size : v_size, [&](auto tile) {
      using Tile = decltype(tile);
      constexpr int kB = Tile::kM * 16;
      constexpr int kBytes =
          (2 * Tile::kFloats + Tile::kScoreFloats) * static_cast<int>(sizeof(float));
      const auto kernel = attention_backward_bias_plain_kernel<T, Tile, kB>;
      SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
      const int64_t row_tiles = (rows + kB - 1) / kB;
      const dim3 grid(static_cast<unsigned>(row_tiles * sequences * heads),
                      static_cast<unsigned>((a.max_k + kB - 1) / kB));
      kernel<<<grid, kPlainThreads, kBytes, cuda::stream_of(ctx)>>>(b, static_cast<int>(row_tiles),
                                                                    static_cast<int>(heads));
      SAT_CUDA_LAUNCHED("attention_backward_bias_plain_kernel");
    });
  });
}

}  // namespace saturate::kernels::attention
