// SPDX-License-Identifier: Apache-2.0
#include "ops/cached_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/decode/cached_attention.h"
#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::ops {

Value cached_attention(Tape& tape, Value qkv, const CachedAttentionSpec& s) {
  SAT_ASSERT(!tape.training());
  const Tape::Info in = tape.info(qkv);
  SAT_ASSERT(in.cols == (s.heads + (s.lengths == nullptr ? 2 * s.kv_heads : 0)) * s.head_size);
  const Value o = tape.make("cached_attention", in.dtype, in.rows, s.heads * s.head_size);
  const auto level = std::min(kernels::cpu_level(), tape.parameters().kernels().cpu);
  tape.record("cached_attention", {qkv, s.bias}, {o}, [=](const Run& r) {
    kernels::cached_attention(
        r.ctx, {.qkv = r(qkv),
                .cache = s.cache,
                .o = r(o),
                .positions = s.positions,
                .starts = s.starts,
                .slots = s.slots,
                .finished = s.finished,
                .lengths = s.lengths,
                .rows = in.rows,
                .heads = s.heads,
                .kv_heads = s.kv_heads,
                .head_size = s.head_size,
                .max_positions = s.max_positions,
                .dtype = in.dtype,
                .scale = s.scale > 0 ? s.scale : 1.0f / std::sqrt(static_cast<float>(s.head_size)),
                .window = s.window,
                .soft_cap = s.soft_cap,
                .bias = s.bias ? r(s.bias) : nullptr,
                .bias_stride = s.max_positions,
                .level = level});
  });
  return o;
}

}  // namespace saturate::ops
