// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/attention/features.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/hopper/backward_problem.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/plain/plain.h"
#include "kernels/hopper/tensor_map.h"

namespace saturate::kernels {

using namespace attention::hopper;

Fit attention_backward_hopper_fits(const Context& ctx, const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  if (a.dtype != DType::bf16 && a.dtype != DType::f16)
    return {"dtype is neither bf16 nor f16 (tensor-core operands)"};
  if (a.head_size != 64 && a.head_size != 128) return {"head size is neither 64 nor 128"};
  if (const Fit f = attention::fits_windowed(a); !f) return f;
  if (const Fit f = attention_hopper_dropout_fits(a); !f) return f;
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(b.d_o, a.o_stride) ||
      !attention_rows_aligned(b.d_q, b.d_q_stride) ||
      !attention_rows_aligned(b.d_k, b.d_k_stride) || !attention_rows_aligned(b.d_v, b.d_v_stride))
    return {"a matrix is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (a.sequences * a.kv_heads * (a.max_k / kBackwardKeys + 1) > INT32_MAX / 2)
    return {"more than 2^30 blocks of keys (32-bit numbers)"};
  if (a.q_rows > INT32_MAX / 2 || a.k_rows > INT32_MAX / 2)
    return {"more than 2^30 rows (32-bit coordinates of TMA)"};
  if (a.heads * backward_query_blocks(a) > INT32_MAX / 4)
    return {"more than 2^29 blocks of queries (32-bit numbers)"};
  if (b.workspace_bytes < attention_backward_hopper_workspace(a))
    return {"the workspace is too small for the fp32 sums of d_q"};
  return wgmma::device_fits(ctx);
}

Fit attention_backward_hopper_pays(const Context&, const AttentionBackwardArgs& b) noexcept {
  const AttentionArgs& a = b.forward;
  // Blocks of 128 keys by 64 or 128 queries; tiles for short sequences exist at head size 64. The
  // bounds are measured (LADDER.md).
  const int64_t shortest = a.head_size == 64 ? 80 : 64;
  if (a.sequences == 0 || std::min(a.q_rows, a.k_rows) / a.sequences < shortest)
    return {"sequences are short in the mean"};
  return {};
}

void attention_backward_hopper_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  const AttentionArgs& a = b.forward;
  if (b.d_sinks) attention::backward_plain_sinks(ctx, b);
  if (a.sequences == 0) {
    if (b.d_alibi_slopes) attention::backward_plain_slopes(ctx, b);  // zeros
    return;
  }
  BackwardProblem p{};
  const int64_t width = a.heads * a.head_size, kv_width = a.kv_heads * a.head_size;
  const int queries = backward_queries(a.head_size);
  if (a.q_rows > 0) {
    p.q = wgmma::map_of(a.q, a.dtype, a.q_rows, width, a.q_stride, queries);
    p.d_o = wgmma::map_of(b.d_o, a.dtype, a.q_rows, width, a.o_stride, queries);
  }
  if (a.k_rows > 0) {
    p.k = wgmma::map_of(a.k, a.dtype, a.k_rows, kv_width, a.k_stride, kBackwardKeys);
    p.v = wgmma::map_of(a.v, a.dtype, a.k_rows, kv_width, a.v_stride, kBackwardKeys);
    const int half = kBackwardKeys / 2;
    p.d_k = wgmma::map_of(b.d_k, a.dtype, a.k_rows, kv_width, b.d_k_stride, half);
    p.d_v = wgmma::map_of(b.d_v, a.dtype, a.k_rows, kv_width, b.d_v_stride, half);
  }
  p.b = b;
  p.group = static_cast<int>(a.heads / a.kv_heads);
  p.score_scale = a.scale * 1.44269504f;  // log2(e)
  p.key_blocks = static_cast<int>(std::max<int64_t>(1, wgmma::ceil_div(a.max_k, kBackwardKeys)));
  p.query_blocks = static_cast<int>(backward_query_blocks(a));
  p.units = static_cast<int>(a.sequences * a.kv_heads * p.key_blocks);
  p.windowed = attention::windowed_of(a);
  const bool bands = a.head_size == 64 || !a.causal;  // measured (LADDER.md)
  p.band = bands ? std::max(1, wgmma::blocks_of(ctx) / p.key_blocks) : 1;
  const int64_t pieces = a.heads * p.query_blocks;
  p.partial = static_cast<float*>(b.workspace);
  p.added = reinterpret_cast<int*>(p.partial + pieces * queries * a.head_size);
  p.ticket = p.added + 2 * pieces;
  p.added_bytes = static_cast<size_t>(2 * pieces + 1) * sizeof(int);
  if (b.d_alibi_slopes) {  // cleared with the counters
    p.key_pieces = backward_key_blocks(a);
    p.slope_sums = reinterpret_cast<float*>(p.ticket + 1);
    p.added_bytes += static_cast<size_t>(a.heads * p.key_pieces) * kBackwardWarps * sizeof(float);
  }
  const uint32_t features = features_of(a) & ~kFeatureSinks;  // which are all in lse
  const bool score_mod = (features & attention::kScoreModFeatures) != 0;
  const auto launch = [&]<class T, int kD>() {
    if (score_mod) return launch_backward<T, kD, true, true, false>(ctx, p);
    if (features != kNoFeatures) return launch_backward<T, kD, true, false, false>(ctx, p);
    if (a.dropout > 0.0f) return launch_backward<T, kD, false, false, true>(ctx, p);
    launch_backward<T, kD, false, false, false>(ctx, p);
  };
  const auto launch_size = [&]<class T>() {
    a.head_size == 64 ? launch.template operator()<T, 64>() : launch.template operator()<T, 128>();
  };
  a.dtype == DType::bf16 ? launch_size.operator()<__nv_bfloat16>()
                         : launch_size.operator()<__half>();
  if (b.d_alibi_slopes) backward_slopes(ctx, p);
}

}  // namespace saturate::kernels
