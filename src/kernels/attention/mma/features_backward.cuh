// SPDX-License-Identifier: Apache-2.0
// Backward pass on tensor cores with every feature: the two kernels of mma/backward.cuh,
// over the tiles that the features leave, for heads of q and k up to kD elements and of v up to kV.
#pragma once
#include "kernels/attention/impl.h"
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/attention/mma/rotary.cuh"
#include "kernels/attention/mma/scores.cuh"
#include "kernels/attention/mma/tiles.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {

// What a keys kernel computes: wide heads lack the registers for both gradients at once.
enum class KeyGradients { both, d_k, d_v };

// Scores become probabilities; lse2 is times log2(e) and plus infinity where nothing is seen.
__device__ __forceinline__ float lse2_of(const AttentionArgs& a, int head, Rows q, int i) {
  if (i >= q.count) return CUDART_INF_F;
  const float lse = static_cast<const float*>(a.lse)[head * a.q_rows + q.first + i];
  return lse == -CUDART_INF_F ? CUDART_INF_F : lse * kLog2e;
}
__device__ __forceinline__ float delta_of(const AttentionBackwardArgs& b, int head, Rows q, int i) {
  return i < q.count ? static_cast<const float*>(b.delta)[head * b.forward.q_rows + q.first + i]
                     : 0.0f;
}

// One block: kWarps * 16 keys of one key head, keys in the rows of the scores.
template <class T, int kD, int kV, int kWarps, int kQueries, uint32_t kMay, KeyGradients kWhat>
__global__ __launch_bounds__(kWarps * 32) void attention_backward_keys_features_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int tiles) {
#if __CUDA_ARCH__ >= 800
  constexpr bool kDk = kWhat != KeyGradients::d_v, kDv = kWhat != KeyGradients::d_k;
  constexpr int kThreads = kWarps * 32, kKeys = kWarps * 16;
  const AttentionArgs& a = b.forward;
  const int sequence = static_cast<int>(blockIdx.x) / tiles;
  const int tile = static_cast<int>(blockIdx.x) % tiles;  // causal: the first keys see most queries
  const int kv = static_cast<int>(blockIdx.y);
  const Rows q = rows_of(a.cu_q, sequence), k = rows_of(a.cu_k, sequence);
  const int first = tile * kKeys;
  if (first >= k.count) return;
  const bool rotates = (kMay & kFeatureRotary) != 0 && a.rotary_base > 0.0f;
  const HeadColumns D = head_columns(a, rotates), V = value_columns(a);

  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kKeyTile = Tile<kD>::bytes(kKeys), kValueTile = Tile<kV>::bytes(kKeys);
  constexpr int kQueryTile = Tile<kD>::bytes(kQueries), kOutputTile = Tile<kV>::bytes(kQueries);
  const Tile<kD> k_tile{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const Tile<kV> v_tile{k_tile.at + kKeyTile};
  // Two stages each.
  const auto q_tile = [&](int stage) {
    return Tile<kD>{v_tile.at + kValueTile + stage * kQueryTile};
  };
  const auto d_o_tile = [&](int stage) {
    return Tile<kV>{v_tile.at + kValueTile + 2 * kQueryTile + stage * kOutputTile};
  };
  auto* lse_at =
      reinterpret_cast<float*>(shared + kKeyTile + kValueTile + 2 * (kQueryTile + kOutputTile));
  float* delta_at = lse_at + 2 * kQueries;

  k_tile.template copy<kKeys, kThreads>(
      row_of<T>(a.k, k.first + first, a.k_stride, kv, D.elements()), a.k_stride, k.count - first,
      D);
  v_tile.template copy<kKeys, kThreads>(
      row_of<T>(a.v, k.first + first, a.v_stride, kv, V.elements()), a.v_stride, k.count - first,
      V);
  copy_commit();

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16, row = first + warp_row;
  const bool drops = (kMay & kMayDrop) != 0 && a.dropout > 0.0f;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, drops);
  const LeftTile<kD, false> k_left{k_tile.from_row(warp_row), {}};
  const LeftTile<kV, false> v_left{v_tile.from_row(warp_row), {}};
  float d_k[kDk ? kD / 8 : 1][4] = {}, d_v[kDv ? kV / 8 : 1][4] = {};

  if (rotates) {
    copy_wait<0>();
    __syncthreads();  // k is there for all
    rotate_rows<T, kD, kKeys, kThreads>(shared, a, first);
  }
  const int group = static_cast<int>(a.heads / a.kv_heads);
  for (int head = kv * group; head < (kv + 1) * group; ++head) {
    const MmaScores<kMay> scores(a, sequence, head, q.count, k.count);
    const int end = scores.end_query(min(first + kKeys, k.count) - 1);
    const auto next_tile = [&](int from) {
      while (from < end && scores.hides(from, from + kQueries, first, first + kKeys))
        from += kQueries;
      return from;
    };
    const auto fetch = [&](int start, int stage) {
      q_tile(stage).template copy<kQueries, kThreads>(
          row_of<T>(a.q, q.first + start, a.q_stride, head, D.elements()), a.q_stride,
          q.count - start, D);
      d_o_tile(stage).template copy<kQueries, kThreads>(
          row_of<T>(b.d_o, q.first + start, a.o_stride, head, V.elements()), a.o_stride,
          q.count - start, V);
      for (int r = static_cast<int>(threadIdx.x); r < kQueries; r += kThreads) {
        lse_at[stage * kQueries + r] = lse2_of(a, head, q, start + r);
        delta_at[stage * kQueries + r] = delta_of(b, head, q, start + r);
      }
      copy_commit();
    };
    int start = next_tile(scores.first_query(first) / kQueries * kQueries), stage = 0;
    __syncthreads();  // the last head's tiles have been read
    if (start < end) fetch(start, 0);
    while (start < end) {
      copy_wait<0>();
      __syncthreads();  // this step's tiles are there for all, and the last step's have been read
      const int next = next_tile(start + kQueries);
      if (next < end) fetch(next, stage ^ 1);
      if (rotates) {
        rotate_rows<T, kD, kQueries, kThreads>(shared + kKeyTile + kValueTile + stage * kQueryTile,
                                               a, start + scores.shift);
        __syncthreads();  // q is rotated for all
      }
      if (scores.meets(start, start + kQueries, row, row + 16)) {
        const float* lse = lse_at + stage * kQueries + l % 4 * 2;
        const float* delta = delta_at + stage * kQueries + l % 4 * 2;
        float p[kQueries / 8][4], d_s[kQueries / 8][4];
        uint32_t cap_slope[kQueries / 8][2];
        product_rows<T, kD, kQueries>(p, k_left, q_tile(stage));
        to_scores<T, true, true, kQueries>(scores, p, cap_slope, start, row);
        if constexpr (kDk) product_rows<T, kV, kQueries>(d_s, v_left, d_o_tile(stage));
        // Then p holds what was kept, and d_s = kept * d_p - p * delta.
        uint32_t words[4] = {};
#pragma unroll
        for (int c = 0; c < kQueries / 8; ++c) {
          const float2 row_lse = *reinterpret_cast<const float2*>(lse + c * 8);
          const float2 row_delta = *reinterpret_cast<const float2*>(delta + c * 8);
          if (drops && c % 2 == 0)
            dropout.draw_columns(words, random_row(a, head, q.first + start + c * 8) +
                                            static_cast<uint64_t>(row / 4));
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float one = exp2_fast(p[c][e] - (e % 2 == 0 ? row_lse.x : row_lse.y));
            const float kept = dropout.keeps(words, c % 2, e) ? one * keep_scale : 0.0f;
            if constexpr (kDk)
              d_s[c][e] = kept * d_s[c][e] - one * (e % 2 == 0 ? row_delta.x : row_delta.y);
            p[c][e] = kept;
          }
        }
        if constexpr (kDk) {
          if (scores.kCap && a.soft_cap > 0.0f) multiply_cap_slope<kQueries>(d_s, cap_slope);
        }
        if constexpr (kDv) add_product<T, kV, kQueries>(d_v, p, d_o_tile(stage));
        if constexpr (kDk) add_product<T, kD, kQueries>(d_k, d_s, q_tile(stage));
      }
      start = next;
      stage ^= 1;
    }
  }
  copy_wait<0>();
  __syncthreads();  // k and v have arrived everywhere and have been read: their tiles carry results

  if constexpr (kDk) {
    if (rotates) rotate_back<kD>(d_k, a, row);
    Tile<kD>::template write<T>(shared + warp_row * Tile<kD>::kRowBytes,
                                row_of<T>(b.d_k, k.first + row, b.d_k_stride, kv, D.elements()),
                                b.d_k_stride, k.count - row, D, d_k, a.scale, a.scale);
  }
  if constexpr (kDv)
    Tile<kV>::template write<T>(shared + kKeyTile + warp_row * Tile<kV>::kRowBytes,
                                row_of<T>(b.d_v, k.first + row, b.d_v_stride, kv, V.elements()),
                                b.d_v_stride, k.count - row, V, d_v, 1.0f, 1.0f);
#endif
}

// One block: kWarps * 16 queries of one head. Where the slopes' gradient is wanted, overwrites the
// rows' delta by their share of it.
template <class T, int kD, int kV, int kWarps, int kKeys, uint32_t kMay>
__global__ __launch_bounds__(kWarps * 32) void attention_backward_queries_features_kernel(
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
  const bool rotates = (kMay & kFeatureRotary) != 0 && a.rotary_base > 0.0f;
  const HeadColumns D = head_columns(a, rotates), V = value_columns(a);

  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kQueryTile = Tile<kD>::bytes(kQueries), kOutputTile = Tile<kV>::bytes(kQueries);
  constexpr int kKeyTile = Tile<kD>::bytes(kKeys), kValueTile = Tile<kV>::bytes(kKeys);
  const Tile<kD> q_tile{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const Tile<kV> d_o_tile{q_tile.at + kQueryTile};
  // Two stages each.
  const auto k_tile = [&](int stage) {
    return Tile<kD>{d_o_tile.at + kOutputTile + stage * kKeyTile};
  };
  const auto v_tile = [&](int stage) {
    return Tile<kV>{d_o_tile.at + kOutputTile + 2 * kKeyTile + stage * kValueTile};
  };
  const MmaScores<kMay> scores(a, sequence, head, q.count, k.count);
  const int end = scores.end_key(min(first + kQueries, q.count) - 1);
  const auto next_tile = [&](int from) {
    while (from < end && scores.hides(first, first + kQueries, from, from + kKeys)) from += kKeys;
    return from;
  };
  const auto fetch = [&](int start, int stage) {
    k_tile(stage).template copy<kKeys, kThreads>(
        row_of<T>(a.k, k.first + start, a.k_stride, kv, D.elements()), a.k_stride, k.count - start,
        D);
    v_tile(stage).template copy<kKeys, kThreads>(
        row_of<T>(a.v, k.first + start, a.v_stride, kv, V.elements()), a.v_stride, k.count - start,
        V);
    copy_commit();
  };
  q_tile.template copy<kQueries, kThreads>(
      row_of<T>(a.q, q.first + first, a.q_stride, head, D.elements()), a.q_stride, q.count - first,
      D);
  d_o_tile.template copy<kQueries, kThreads>(
      row_of<T>(b.d_o, q.first + first, a.o_stride, head, V.elements()), a.o_stride,
      q.count - first, V);
  int start = next_tile(scores.first_key(first) / kKeys * kKeys), stage = 0;
  if (start < end) fetch(start, 0);
  copy_commit();

  const int l = lane(), warp_row = static_cast<int>(threadIdx.x) / 32 * 16, row = first + warp_row;
  const bool drops = (kMay & kMayDrop) != 0 && a.dropout > 0.0f;
  const float keep_scale = 1.0f / (1.0f - a.dropout);
  const DropoutBits dropout(a.rng, a.dropout, drops);
  float lse[2], delta[2], d_slope[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    lse[r] = lse2_of(a, head, q, row + l / 4 + 8 * r);
    delta[r] = delta_of(b, head, q, row + l / 4 + 8 * r);
  }
  const LeftTile<kD, false> q_left{q_tile.from_row(warp_row), {}};
  const LeftTile<kV, false> d_o_left{d_o_tile.from_row(warp_row), {}};
  float d_q[kD / 8][4] = {};
  bool begun = false;

  while (start < end) {
    copy_wait<0>();
    __syncthreads();  // this step's tiles are there for all, and the last step's have been read
    const int next = next_tile(start + kKeys);
    if (next < end) fetch(next, stage ^ 1);
    if (rotates) {
      if (!begun) rotate_rows<T, kD, kQueries, kThreads>(shared, a, first + scores.shift);
      begun = true;
      rotate_rows<T, kD, kKeys, kThreads>(shared + kQueryTile + kOutputTile + stage * kKeyTile, a,
                                          start);
      __syncthreads();  // they are rotated for all
    }
    if (scores.meets(row, row + 16, start, start + kKeys)) {
      float p[kKeys / 8][4], d_s[kKeys / 8][4];
      uint32_t cap_slope[kKeys / 8][2];
      product_rows<T, kD, kKeys>(p, q_left, k_tile(stage));
      to_scores<T, false, true, kKeys>(scores, p, cap_slope, row, start);
      product_rows<T, kV, kKeys>(d_s, d_o_left, v_tile(stage));
      uint32_t words[4] = {};
#pragma unroll
      for (int c = 0; c < kKeys / 8; ++c) {
        if (drops && c % 2 == 0)
          dropout.draw_rows(
              words, random_row(a, head, q.first + row) + static_cast<uint64_t>(start / 4 + 2 * c));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float one = exp2_fast(p[c][e] - lse[e / 2]);
          const float kept = dropout.keeps(words, c % 2, e) ? one * keep_scale : 0.0f;
          d_s[c][e] = kept * d_s[c][e] - one * delta[e / 2];
        }
      }
      if (scores.kAlibi && b.d_alibi_slopes != nullptr) {
#pragma unroll
        for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int2 at = place_of<false>(row, start, c, e);
            d_slope[e / 2] -= d_s[c][e] * scores.distance(at.x, at.y);
          }
      }
      if (scores.kCap && a.soft_cap > 0.0f) multiply_cap_slope<kKeys>(d_s, cap_slope);
      add_product<T, kD, kKeys>(d_q, d_s, k_tile(stage));
    }
    start = next;
    stage ^= 1;
  }
  copy_wait<0>();
  __syncthreads();  // q has arrived everywhere (there may be no step): its tile carries d_q
  if (rotates) rotate_back<kD>(d_q, a, row + scores.shift);
  Tile<kD>::template write<T>(shared + warp_row * Tile<kD>::kRowBytes,
                              row_of<T>(b.d_q, q.first + row, b.d_q_stride, head, D.elements()),
                              b.d_q_stride, q.count - row, D, d_q, a.scale, a.scale);
  if constexpr (scores.kAlibi) {
    if (b.d_alibi_slopes == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = d_slope[r];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      const int i = row + l / 4 + 8 * r;
      if (l % 4 == 0 && i < q.count)
        static_cast<float*>(b.delta)[head * a.q_rows + q.first + i] = sum;
    }
  }
#endif
}

template <class T, int kD, int kV, uint32_t kMay, int kOwn>
void launch_backward_rows(const Context& ctx, const AttentionBackwardArgs& b) {
  constexpr int kWarps = kOwn / 16, kOther = other_rows(kD, kV);
  constexpr int kBytes = backward_bytes(kD, kV, kOwn);
  const AttentionArgs& a = b.forward;
  const auto launch = [&](auto kernel, int64_t longest, int64_t heads) {
    if (longest == 0) return;
    SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    const int tiles = static_cast<int>((longest + kOwn - 1) / kOwn);
    const dim3 grid(static_cast<unsigned>(tiles * a.sequences), static_cast<unsigned>(heads));
    kernel<<<grid, kWarps * 32, kBytes, cuda::stream_of(ctx)>>>(b, tiles);
    SAT_CUDA_LAUNCHED("attention_backward_features_kernel");
  };
  const auto launch_keys = [&](auto kernel) { launch(kernel, a.max_k, a.kv_heads); };
  if constexpr (kD + kV <= 256) {
    launch_keys(attention_backward_keys_features_kernel<T, kD, kV, kWarps, kOther, kMay,
                                                        KeyGradients::both>);
  } else {
    launch_keys(attention_backward_keys_features_kernel<T, kD, kV, kWarps, kOther, kMay,
                                                        KeyGradients::d_k>);
    launch_keys(attention_backward_keys_features_kernel<T, kD, kV, kWarps, kOther, kMay,
                                                        KeyGradients::d_v>);
  }
  // Last, because it may overwrite delta.
  launch(attention_backward_queries_features_kernel<T, kD, kV, kWarps, kOther, kMay>, a.max_q,
         a.heads);
}

template <class T, int kD, int kV, uint32_t kMay>
void launch_backward_features(const Context& ctx, const AttentionBackwardArgs& b) {
  if constexpr (kD + kV >= 512) {
    if (capability_of(ctx).shared_bytes >= backward_bytes(kD, kV, kManyRows))
      return launch_backward_rows<T, kD, kV, kMay, kManyRows>(ctx, b);
  }
  launch_backward_rows<T, kD, kV, kMay, kOwnRows>(ctx, b);
}

}  // namespace saturate::kernels::attention
