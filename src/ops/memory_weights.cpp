// SPDX-License-Identifier: Apache-2.0
#include "ops/memory_weights.h"

#include <cmath>

#include "kernels/decode/memory_weights.h"

namespace saturate::ops {

void memory_weights(Tape& tape, Value q, const MemoryWeightsSpec& s) {
  const Tape::Info in = tape.info(q);
  SAT_ASSERT(!tape.training() && in.cols == s.heads * s.head_size);
  tape.record("memory_weights", {q}, {}, [=](const Run& r) {
    kernels::memory_weights(
        r.ctx,
        {.q = r(q),
         .memory = s.memory,
         .w = s.weights,
         .starts = s.starts,
         .lengths = s.lengths,
         .finished = s.finished,
         .slot_starts = s.slot_starts,
         .positions = s.positions,
         .rows = in.rows,
         .heads = s.heads,
         .kv_heads = s.kv_heads,
         .head_size = s.head_size,
         .first_head = s.first_head,
         .head_count = s.head_count,
         .max_positions = s.max_positions,
         .stride = s.stride,
         .dtype = in.dtype,
         .scale = s.scale > 0 ? s.scale : 1.0f / std::sqrt(static_cast<float>(s.head_size))});
  });
}

}  // namespace saturate::ops
