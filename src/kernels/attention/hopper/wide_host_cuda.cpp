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
void set_problem(ForwardProblem& p, const AttentionArgs& a, int keys) {
  const int64_t V = attention_v_head_size(a);
  const auto map = [&](const void* data, int64_t rows, int64_t width, int64_t stride, int box) {
    return wgmma::map_of(data, a.dtype, rows, width, stride, box);
  };
  p.q = map(a.q, a.q_rows, a.heads * a.head_size, a.q_stride, wide::kForwardQueries);
  p.k = map(a.k, a.k_rows, a.kv_heads * a.head_size, a.k_stride, keys);
  p.v = map(a.v, a.k_rows, a.kv_heads * V, a.v_stride, keys);
  p.o = a.o;
  p.lse = static_cast<float*>(a.lse);
  p.cu_q = a.cu_q;
  p.cu_k = a.cu_k;
  p.o_stride = a.o_stride;
  p.q_rows = a.q_rows;
  p.sequences = static_cast<int>(a.sequences);
  p.heads = static_cast<int>(a.heads);
  p.group = static_cast<int>(a.heads / a.kv_heads);
  const int tiles = static_cast<int>(wgmma::ceil_div(a.max_q, wide::kForwardQueries));
  p.parts = a.causal ? (tiles + 1) / 2 : tiles;
  p.items = p.sequences * p.heads * p.parts;
  p.causal = a.causal;
  p.scale_log2 = a.scale * 1.44269504f;
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
  set_problem(p, a, wide::forward_keys(a.head_size));
  const bool bf16 = a.dtype == DType::bf16;
  const auto launch = a.head_size == 256
                          ? (bf16 ? wide::forward_d256_bf16 : wide::forward_d256_f16)
                          : (bf16 ? wide::forward_d192_bf16 : wide::forward_d192_f16);
  const int blocks = std::max(1, std::min(wgmma::blocks_of(ctx), p.items));
  SAT_CUDA(launch(p, blocks, cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
