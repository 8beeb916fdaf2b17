// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/attention/attention_features.h"
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/hopper/wide.h"
#include "kernels/attention/hopper/wide_launch.h"
#include "kernels/gemm/wgmma/wgmma_host.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace attention;

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
}

// Pieces of work for clusters of so many blocks: `tiles` of a sequence, or if causal pairs of them,
// for `heads` heads. Returns the blocks of a launch.
int set_items(const Context& ctx, ForwardProblem& p, int cluster, int64_t tiles, int64_t heads) {
  p.parts = static_cast<int>(p.causal ? (tiles + 1) / 2 : tiles);
  p.items = static_cast<int>(p.sequences * heads * p.parts);
  return cluster * std::max(1, std::min(wgmma::blocks_of(ctx) / cluster, p.items));
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
  if (const Fit f = fits_features(a, kFeatureValueSize); !f) return f;
  if (a.dropout > 0.0f) return {"dropout is not built for this kernel"};
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (a.k_rows == 0) return {"there are no keys"};
  if (std::max(a.q_rows, a.k_rows) >= int64_t{1} << 30 || a.heads * a.head_size >= int64_t{1} << 30)
    return {"more than 2^30 rows or columns (coordinates of the copy engine)"};
  const int64_t longest = std::max<int64_t>(std::max(a.max_q, a.max_k), 1);
  if (a.sequences * a.heads * wgmma::ceil_div(longest, 64) >= int64_t{1} << 30)
    return {"more than 2^30 tiles"};
  return wgmma::device_fits(ctx);
}

Fit attention_forward_wide_pays(const Context& ctx, const AttentionArgs& a) noexcept {
  if (a.q_rows < kShortest * a.sequences) return {"sequences are short in the mean"};
  return attention_forward_wide_fits(ctx, a);
}

void attention_forward_wide_cuda(const Context& ctx, const AttentionArgs& a) {
  ForwardProblem p{};
  set_problem(p, a, wide::kForwardQueries, wide::forward_keys(a.head_size));
  const bool bf16 = a.dtype == DType::bf16;
  const auto launch = a.head_size == 256
                          ? (bf16 ? wide::forward_d256_bf16 : wide::forward_d256_f16)
                          : (bf16 ? wide::forward_d192_bf16 : wide::forward_d192_f16);
  const int blocks = set_items(ctx, p, 1, wgmma::ceil_div(a.max_q, wide::kForwardQueries), a.heads);
  SAT_CUDA(launch(p, blocks, cuda::stream_of(ctx)));
}

Fit attention_backward_wide_fits(const Context& ctx, const AttentionBackwardArgs& b) noexcept {
  if (!attention_rows_aligned(b.d_o, b.forward.o_stride) ||
      !attention_rows_aligned(b.d_q, b.d_q_stride) ||
      !attention_rows_aligned(b.d_k, b.d_k_stride) || !attention_rows_aligned(b.d_v, b.d_v_stride))
    return {"a gradient is not aligned to 16 bytes, or its stride is no multiple of 8"};
  return attention_forward_wide_fits(ctx, b.forward);
}

Fit attention_backward_wide_pays(const Context& ctx, const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  if (std::min(a.q_rows, a.k_rows) < kShortest * a.sequences)
    return {"sequences are short in the mean"};
  return attention_backward_wide_fits(ctx, b);
}

void attention_backward_wide_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  const AttentionArgs& a = b.forward;
  if (a.sequences == 0) return;
  const bool bf16 = a.dtype == DType::bf16, d256 = a.head_size == 256;
  const int cluster = wide::key_cluster(a.head_size);
  const auto launch = [&](auto kernel, const wide::BackwardProblem& of, int together, int64_t tiles,
                          int64_t heads) {
    wide::BackwardProblem p = of;
    const int blocks = set_items(ctx, p, together, tiles, heads);
    SAT_CUDA(kernel(p, blocks, cuda::stream_of(ctx)));
  };
  launch(d256 ? (bf16 ? wide::keys_d256_bf16 : wide::keys_d256_f16)
              : (bf16 ? wide::keys_d192_bf16 : wide::keys_d192_f16),
         backward_problem(b, wide::kKeyRows / cluster, wide::kKeyRows), cluster,
         wgmma::ceil_div(a.max_k, cluster * wide::kKeyRows), a.kv_heads);
  launch(d256 ? (bf16 ? wide::queries_d256_bf16 : wide::queries_d256_f16)
              : (bf16 ? wide::queries_d192_bf16 : wide::queries_d192_f16),
         backward_problem(b, wide::kQueryRows, wide::query_keys(a.head_size)), 1,
         wgmma::ceil_div(a.max_q, wide::kQueryRows), a.heads);
}

}  // namespace saturate::kernels
