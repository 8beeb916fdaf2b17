// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/attention/features.h"
#include "kernels/attention/hopper/windowed_band.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/plain/plain.h"
#include "kernels/attention/wide/launch.h"
#include "kernels/attention/wide/wide.h"
#include "kernels/hopper/tensor_map.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace attention;

// Whether a call needs the instances for windows, alignment and a soft cap, and for sinks, which
// the backward pass finds in lse.
bool is_windowed(const AttentionArgs& a, bool forward) noexcept {
  const uint32_t beside = kFeatureValueSize | (forward ? 0u : uint32_t{kFeatureSinks});
  return (features_of(a) & ~beside) != 0;
}

bool is_capped(const AttentionArgs& a) noexcept { return a.soft_cap > 0.0f; }

constexpr int64_t kShortest = 96;  // rows of a sequence in the mean, as for narrower heads

// What both kinds of launches share.
void set_problem(ForwardProblem& p, const AttentionArgs& a, int queries, int keys) {
  const int64_t V = attention_v_head_size(a);
  const auto map = [&](const void* data, int64_t rows, int64_t width, int64_t stride, int box) {
    return wgmma::map_of(data, a.dtype, rows, width, stride, box);
  };
  if (a.q_rows > 0) p.q = map(a.q, a.q_rows, a.heads * a.head_size, a.q_stride, queries);
  if (a.k_rows > 0) p.k = map(a.k, a.k_rows, a.kv_heads * a.head_size, a.k_stride, keys);
  if (a.k_rows > 0) p.v = map(a.v, a.k_rows, a.kv_heads * V, a.v_stride, keys);
  p.o = a.o;
  p.lse = static_cast<float*>(a.lse);
  p.cu_q = a.cu_q;
  p.cu_k = a.cu_k;
  p.o_stride = a.o_stride;
  p.q_rows = a.q_rows;
  p.sequences = static_cast<int>(a.sequences);
  p.heads = static_cast<int>(a.heads);
  p.group = static_cast<int>(a.heads / a.kv_heads);
  p.causal = a.causal;
  p.scale_log2 = a.scale * 1.44269504f;
  p.windowed = windowed_of(a);
  p.windowed.band = windowed_band(a);
}

// Pieces of work for clusters of so many blocks: `tiles` of a sequence, or if causal pairs of them,
// for `heads` heads. Returns the blocks of a launch.
int set_items(const Context& ctx, ForwardProblem& p, int cluster, int64_t tiles, int64_t heads) {
  p.parts = static_cast<int>(p.causal ? (tiles + 1) / 2 : tiles);
  p.items = static_cast<int>(p.sequences * heads * p.parts);
  return cluster * std::max(1, std::min(wgmma::blocks_of(ctx) / cluster, p.items));
}

// The same for tiles of queries where windows or alignment may be set: no pairs, since tiles cost
// what they see (forward_windowed.cuh).
int set_windowed_items(const Context& ctx, ForwardProblem& p, int64_t tiles) {
  p.windowed.tiles = static_cast<int>(tiles);
  p.items = static_cast<int>(p.sequences * p.heads * tiles);
  return std::max(1, std::min(wgmma::blocks_of(ctx), p.items));
}

// Calls launch<T, head size, windowed, score modification>() for the instance of the call.
template <class Launch>
void with_instance(const AttentionArgs& a, bool windowed, const Launch& launch) {
  const auto of_type = [&]<class T>() {
    if (windowed)
      return is_capped(a) ? launch.template operator()<T, 256, true, true>()
                          : launch.template operator()<T, 256, true, false>();
    return a.head_size == 256 ? launch.template operator()<T, 256, false, false>()
                              : launch.template operator()<T, 192, false, false>();
  };
  SAT_CUDA(a.dtype == DType::bf16 ? of_type.template operator()<__nv_bfloat16>()
                                  : of_type.template operator()<__half>());
}

wide::BackwardProblem backward_problem(const AttentionBackwardArgs& b, int queries, int keys) {
  const AttentionArgs& a = b.forward;
  wide::BackwardProblem p{};
  set_problem(p, a, queries, keys);
  if (a.q_rows > 0)
    p.d_o = wgmma::map_of(b.d_o, a.dtype, a.q_rows, a.heads * attention_v_head_size(a), a.o_stride,
                          queries);
  p.delta = static_cast<const float*>(b.delta);
  p.d_q = b.d_q, p.d_k = b.d_k, p.d_v = b.d_v;
  p.d_q_stride = b.d_q_stride, p.d_k_stride = b.d_k_stride, p.d_v_stride = b.d_v_stride;
  p.kv_heads = static_cast<int>(a.kv_heads);
  p.scale = a.scale;
  return p;
}

}  // namespace

Fit attention_forward_wide_fits(const Context& ctx, const AttentionArgs& a) noexcept {
  if (a.dtype != DType::bf16 && a.dtype != DType::f16) return {"dtype is neither bf16 nor f16"};
  const int64_t V = attention_v_head_size(a);
  if (!(a.head_size == 256 && V == 256) && !(a.head_size == 192 && V == 128))
    return {"head sizes are neither 256 nor 192 with values of 128"};
  constexpr uint32_t kMore = kWindowedFeatures | kFeatureSoftCap;
  if (const Fit f = fits_features(a, kFeatureValueSize | (a.head_size == 256 ? kMore : 0)); !f)
    return f;
  if (a.dropout > 0.0f) return {"dropout is not built for this kernel"};
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (a.k_rows == 0) return {"there are no keys"};
  if (std::max(a.q_rows, a.k_rows) >= int64_t{1} << 30 || a.heads * a.head_size >= int64_t{1} << 30)
    return {"more than 2^30 rows or columns (coordinates of TMA)"};
  const int64_t longest = std::max<int64_t>(std::max(a.max_q, a.max_k), 1);
  if (a.sequences * a.heads * wgmma::ceil_div(longest, 64) >= int64_t{1} << 30)
    return {"more than 2^30 tiles"};
  return wgmma::device_fits(ctx);
}

Fit attention_forward_wide_pays(const Context&, const AttentionArgs& a) noexcept {
  if (a.q_rows < kShortest * a.sequences) return {"sequences are short in the mean"};
  return {};
}

void attention_forward_wide_cuda(const Context& ctx, const AttentionArgs& a) {
  ForwardProblem p{};
  set_problem(p, a, wide::kForwardQueries, wide::forward_keys(a.head_size));
  const bool windowed = is_windowed(a, true);
  const int64_t tiles = wgmma::ceil_div(a.max_q, wide::kForwardQueries);
  const int blocks =
      windowed ? set_windowed_items(ctx, p, tiles) : set_items(ctx, p, 1, tiles, a.heads);
  with_instance(a, windowed, [&]<class T, int kD, bool kWindowed, bool kScoreMod>() {
    return wide::launch_forward<T, kD, kWindowed, kScoreMod>(p, blocks, cuda::stream_of(ctx));
  });
}

Fit attention_backward_wide_fits(const Context& ctx, const AttentionBackwardArgs& b) noexcept {
  if (!attention_rows_aligned(b.d_o, b.forward.o_stride) ||
      !attention_rows_aligned(b.d_q, b.d_q_stride) ||
      !attention_rows_aligned(b.d_k, b.d_k_stride) || !attention_rows_aligned(b.d_v, b.d_v_stride))
    return {"a gradient is not aligned to 16 bytes, or its stride is no multiple of 8"};
  return attention_forward_wide_fits(ctx, b.forward);
}

Fit attention_backward_wide_pays(const Context&, const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  if (std::min(a.q_rows, a.k_rows) < kShortest * a.sequences)
    return {"sequences are short in the mean"};
  return {};
}

void attention_backward_wide_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  const AttentionArgs& a = b.forward;
  if (b.d_sinks) backward_plain_sinks(ctx, b);
  if (a.sequences == 0) return;
  const bool windowed = is_windowed(a, false);
  const auto stream = cuda::stream_of(ctx);
  const int cluster = wide::key_cluster(a.head_size);
  wide::BackwardProblem keys = backward_problem(b, wide::kKeyRows / cluster, wide::kKeyRows);
  const int64_t key_tiles = wgmma::ceil_div(a.max_k, cluster * wide::kKeyRows);
  const int key_blocks = set_items(ctx, keys, cluster, key_tiles, a.kv_heads);
  with_instance(a, windowed, [&]<class T, int kD, bool kWindowed, bool kScoreMod>() {
    return wide::launch_keys<T, kD, kWindowed, kScoreMod>(keys, key_blocks, stream);
  });
  wide::BackwardProblem queries =
      backward_problem(b, wide::kQueryRows, wide::query_keys(a.head_size));
  const int64_t query_tiles = wgmma::ceil_div(a.max_q, wide::kQueryRows);
  const int blocks = windowed ? set_windowed_items(ctx, queries, query_tiles)
                              : set_items(ctx, queries, 1, query_tiles, a.heads);
  with_instance(a, windowed, [&]<class T, int kD, bool kWindowed, bool kScoreMod>() {
    return wide::launch_queries<T, kD, kWindowed, kScoreMod>(queries, blocks, stream);
  });
}

}  // namespace saturate::kernels
