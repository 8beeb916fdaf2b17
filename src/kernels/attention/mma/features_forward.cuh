// SPDX-License-Identifier: Apache-2.0
// Forward pass on tensor cores with every feature, for heads of q and k up to kD elements and of v
// up to kV. One block: kWarps * 16 query rows of one head; the loop over keys visits only tiles in
// which some query of the block sees a key.
#pragma once
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/attention/mma/rotary.cuh"
#include "kernels/attention/mma/scores.cuh"
#include "kernels/attention/mma/tiles.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

template <class T, int kD, int kV, int kWarps, int kKeys, uint32_t kMay>
__global__ __launch_bounds__(kWarps * 32) void attention_forward_features_kernel(
    const __grid_constant__ AttentionArgs a, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr int kThreads = kWarps * 32, kQueries = kWarps * 16;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;  // causal: the longest first
  const int head = static_cast<int>(blockIdx.y);
  if (sequence == a.sequences) return zero_tail<T>(a, head, tile, tiles);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kQueries;
  if (first >= q.count) return;
  const int kv = head / static_cast<int>(a.heads / a.kv_heads);

  // The output leaves through q's tile, which is as wide as the wider of the two.
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kQueryTile = Tile<(kD > kV ? kD : kV)>::bytes(kQueries);
  const Tile<kD> q_tile{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const Tile<kD> k_tile{q_tile.at + kQueryTile};
  const Tile<kV> v_tile{k_tile.at + Tile<kD>::bytes(kKeys)};
  const bool rotates = (kMay & kFeatureRotary) != 0 && a.rotary_base > 0.0f;
  const HeadColumns D = head_columns(a, rotates), V = value_columns(a);
  const T* k_rows = row_of<T>(a.k, k.first, a.k_stride, kv, D.elements());
  const T* v_rows = row_of<T>(a.v, k.first, a.v_stride, kv, V.elements());

  const MmaScores<kMay> scores(a, sequence, head, q.count, k.count);
  const int end = scores.end_key(min(first + kQueries, q.count) - 1);
  // The first tile from `from` on that some query of the block sees.
  const auto next_tile = [&](int from) {
    while (from < end && scores.hides(first, first + kQueries, from, from + kKeys)) from += kKeys;
    return from;
  };
  int start = next_tile(scores.first_key(first) / kKeys * kKeys);

  q_tile.template copy<kQueries, kThreads>(
      row_of<T>(a.q, q.first + first, a.q_stride, head, D.elements()), a.q_stride, q.count - first,
      D);
  if (start < end)
    k_tile.template copy<kKeys, kThreads>(k_rows + start * a.k_stride, a.k_stride, k.count - start,
                                          D);
  copy_commit();
  if (start < end)
    v_tile.template copy<kKeys, kThreads>(v_rows + start * a.v_stride, a.v_stride, k.count - start,
                                          V);
  copy_commit();

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16, row = first + warp_row;
  const bool drops = (kMay & kMayDrop) != 0 && a.dropout > 0.0f;
  const DropoutBits dropout(a.rng, a.dropout, drops);

  LeftTile<kD, kD <= 128> q_left{q_tile.from_row(warp_row), {}};
  float sum[kV / 8][4] = {}, top[2], weight[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // a sink is a key without a value, counted by one lane of the row
    top[r] = a.sinks ? static_cast<const float*>(a.sinks)[head] * kLog2e : -CUDART_INF_F;
    weight[r] = a.sinks && l % 4 == 0 ? 1.0f : 0.0f;
  }

  bool begun = false;
  while (start < end) {
    if (begun) {
      copy_wait<0>();
    } else {
      copy_wait<1>();  // q and the first k; v may still be under way
    }
    __syncthreads();  // k is there for all, and the last step's v has been read
    if (begun) {
      v_tile.template copy<kKeys, kThreads>(v_rows + start * a.v_stride, a.v_stride,
                                            k.count - start, V);
      copy_commit();
    }
    if (rotates) {
      if (!begun) rotate_rows<T, kD, kQueries, kThreads>(shared, a, first + scores.shift);
      rotate_rows<T, kD, kKeys, kThreads>(shared + kQueryTile, a, start);
      __syncthreads();  // they are rotated for all
    }
    if (!begun) q_left.load();
    begun = true;
    const int next = next_tile(start + kKeys);
    const bool meets = scores.meets(row, row + 16, start, start + kKeys);
    float s[kKeys / 8][4];
    if (meets) {
      product_rows<T, kD, kKeys>(s, q_left, k_tile);
      uint32_t no_slopes[1][2];
      to_scores<T, false, false, kKeys>(scores, s, no_slopes, row, start);
      // Online softmax in powers of two; a lane's share of each row's sum is added up at the end.
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = s[0][2 * r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) high = fmaxf(high, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
        high = fmaxf(high, top[r]);
        const float base = high == -CUDART_INF_F ? 0.0f : high;  // nothing seen yet
        const float shrink = exp2_fast(top[r] - base);
        top[r] = high;
        float w = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            s[n][e] = exp2_fast(s[n][e] - base);
            w += s[n][e];
          }
        weight[r] = weight[r] * shrink + w;
#pragma unroll
        for (int n = 0; n < kV / 8; ++n) {
          sum[n][2 * r] *= shrink;
          sum[n][2 * r + 1] *= shrink;
        }
      }
      if (drops) {
        const uint64_t row0 = random_row(a, head, q.first + row);
#pragma unroll
        for (int n = 0; n < kKeys / 8; n += 2) {
          uint32_t words[4];
          dropout.draw_rows(words, row0 + static_cast<uint64_t>(start / 4 + 2 * n));
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (!dropout.keeps(words, e / 4, e % 4)) s[n + e / 4][e % 4] = 0.0f;
        }
      }
    }
    copy_wait<0>();
    __syncthreads();  // v is there for all, and k has been read
    if (next < end) {
      k_tile.template copy<kKeys, kThreads>(k_rows + next * a.k_stride, a.k_stride, k.count - next,
                                            D);
      copy_commit();
    }
    if (meets) add_product<T, kV, kKeys>(sum, s, v_tile);
    start = next;
  }
  if (!begun) {
    copy_wait<0>();
    __syncthreads();  // q has arrived everywhere, so that its tile can carry the output
  } else if constexpr (pitch_of(kD) != pitch_of(kV)) {
    __syncthreads();  // all warps have read q, whose rows lie elsewhere in the tile than the
                      // output's
  }

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
  Tile<kV>::template write<T>(shared + warp_row * Tile<kV>::kRowBytes,
                              row_of<T>(a.o, q.first + row, a.o_stride, head, V.elements()),
                              a.o_stride, q.count - row, V, sum, factor[0], factor[1]);
#endif
}

template <class T, int kD, int kV, uint32_t kMay>
void launch_forward_features(const Context& ctx, const AttentionArgs& a) {
  constexpr int kWarps = 4, kKeys = 64, kQueries = kWarps * 16, kBytes = forward_bytes(kD, kV);
  const auto kernel = attention_forward_features_kernel<T, kD, kV, kWarps, kKeys, kMay>;
  SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int tiles = static_cast<int>(a.max_q > 0 ? (a.max_q + kQueries - 1) / kQueries : 1);
  const dim3 grid(static_cast<unsigned>(tiles * (a.sequences + 1)), static_cast<unsigned>(a.heads));
  kernel<<<grid, kWarps * 32, kBytes, cuda::stream_of(ctx)>>>(a, tiles);
  SAT_CUDA_LAUNCHED("attention_forward_features_kernel");
}

}  // namespace saturate::kernels::attention
