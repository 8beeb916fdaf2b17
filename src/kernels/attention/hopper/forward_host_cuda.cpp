// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/attention/features.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/hopper/forward.h"
#include "kernels/attention/hopper/forward_problem.h"
#include "kernels/attention/hopper/windowed_band.h"
#include "kernels/attention/impl.h"
#include "kernels/hopper/tensor_map.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

// Mean lengths, between what was measured (LADDER.md): at 64 rows mma.sync's tiles win, at 128
// those of 128 rows here are faster; the largest tiles of narrow heads lose at 1024 and win at
// 2048.
constexpr int64_t kShortest = 96, kLong = 1536;

bool is_windowed(const AttentionArgs& a) noexcept { return features_of(a) != kNoFeatures; }

}  // namespace

Fit attention_forward_hopper_fits(const Context& ctx, const AttentionArgs& a) noexcept {
  if (a.dtype != DType::bf16 && a.dtype != DType::f16) return {"dtype is neither bf16 nor f16"};
  if (a.head_size != 64 && a.head_size != 128) return {"head size is neither 64 nor 128"};
  if (const Fit f = attention::fits_windowed(a); !f) return f;
  if (const Fit f = attention_hopper_dropout_fits(a); !f) return f;
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (a.k_rows == 0) return {"there are no keys"};
  if (std::max(a.q_rows, a.k_rows) >= int64_t{1} << 30 || a.heads * a.head_size >= int64_t{1} << 30)
    return {"more than 2^30 rows or columns (coordinates of TMA)"};
  const int64_t tiles = wgmma::ceil_div(a.max_q, 64);  // of the smallest
  if (a.sequences * a.heads * std::max<int64_t>(tiles, 1) >= int64_t{1} << 30)
    return {"more than 2^30 tiles"};
  return wgmma::device_fits(ctx);
}

Fit attention_forward_hopper_pays(const Context&, const AttentionArgs& a) noexcept {
  if (a.q_rows < kShortest * a.sequences) return {"sequences are short in the mean"};
  return {};
}

void attention_forward_hopper_cuda(const Context& ctx, const AttentionArgs& a) {
  using namespace attention;
  const bool windowed = is_windowed(a);
  // With dropout the large tiles have too few registers.
  const bool is_long =
      a.q_rows >= kLong * a.sequences && !a.causal && !windowed && a.dropout == 0.0f;
  const ForwardShape shape = forward_shape(static_cast<int>(a.head_size), is_long);
  ForwardProblem p{};
  const auto map = [&](const void* data, int64_t rows, int64_t heads, int64_t stride, int box) {
    return wgmma::map_of(data, a.dtype, rows, heads * a.head_size, stride, box);
  };
  p.q = map(a.q, a.q_rows, a.heads, a.q_stride, shape.queries);
  p.k = map(a.k, a.k_rows, a.kv_heads, a.k_stride, shape.keys);
  p.v = map(a.v, a.k_rows, a.kv_heads, a.v_stride, shape.keys);
  p.o = a.o;
  p.lse = static_cast<float*>(a.lse);
  p.cu_q = a.cu_q;
  p.cu_k = a.cu_k;
  p.o_stride = a.o_stride;
  p.q_rows = a.q_rows;
  p.sequences = static_cast<int>(a.sequences);
  p.heads = static_cast<int>(a.heads);
  p.group = static_cast<int>(a.heads / a.kv_heads);
  const int tiles = static_cast<int>(wgmma::ceil_div(a.max_q, shape.queries));
  p.parts = a.causal && !windowed ? (tiles + 1) / 2 : tiles;
  p.items = p.sequences * p.heads * p.parts;
  p.causal = a.causal;
  p.scale_log2 = a.scale * 1.44269504f;
  p.dropout = a.dropout;
  p.rng = a.rng;
  p.windowed = windowed_of(a);
  p.windowed.tiles = tiles;
  p.windowed.band = windowed_band(a);
  const int blocks =
      std::max(1, std::min(wgmma::blocks_of(ctx), (p.items + shape.teams - 1) / shape.teams));
  const auto stream = cuda::stream_of(ctx);
  const bool score_mod = (features_of(a) & kScoreModFeatures) != 0, drops = a.dropout > 0.0f;
  const auto launch = [&]<int kD>() {
    if (windowed)
      return score_mod ? launch_forward_windowed<kD, true>(a.dtype, p, blocks, stream)
                       : launch_forward_windowed<kD, false>(a.dtype, p, blocks, stream);
    return drops ? launch_forward_types<kD, true>(a.dtype, is_long, p, blocks, stream)
                 : launch_forward_types<kD, false>(a.dtype, is_long, p, blocks, stream);
  };
  SAT_CUDA(a.head_size == 64 ? launch.operator()<64>() : launch.operator()<128>());
}

}  // namespace saturate::kernels
