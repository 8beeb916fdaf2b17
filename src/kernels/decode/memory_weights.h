// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// How much each row of a generation step looks at each position of its memory: the weights with which
// cached_attention() of the same arguments sums values, as their mean over some heads.
//
//   w[to][j] = 1 / head_count  sum_h softmax_j(scale q_h . k_j),  to = slot_starts[r] + positions[r]
//
// so a row's weights lie under the slot of its new position, and beams that share a history share
// them (cached_attention.h).
//
// Shapes    q (rows, heads * head_size); memory: rows [k | v] of 2 kv_heads * head_size, those of row r
//           from starts[r] on, lengths[r] of them, at most max_positions; w (slots, stride), of which
//           the first lengths[r] of a row are written; of rows with finished[r] != 0 nothing is.
// Types     q and memory in dtype; w f32; sums f32, of f64 f64.
// Aliasing  none; no two rows that are not finished have one `to`.
// Stream    enqueued on ctx.stream; grid and shared memory depend on rows and max_positions alone
//           (graph-capturable).
// Order     bitwise equal run to run; a row's weights depend on its own row only.
// Errors    invalid_argument for sizes, heads and pointers; unsupported when no implementation fits;
//           device.
// Cost      one read of the keys of each row that is not finished.
// Source    the formula is attention.h's; as a word alignment: Bahdanau et al., arXiv:1409.0473.
struct MemoryWeightsArgs {
  const void* q = nullptr;
  const void* memory = nullptr;
  float* w = nullptr;
  const int32_t* starts = nullptr;
  const int32_t* lengths = nullptr;
  const int32_t* finished = nullptr;
  const int32_t* slot_starts = nullptr;
  const int32_t* positions = nullptr;
  int64_t rows = 0, heads = 0, kv_heads = 0, head_size = 0;
  int64_t first_head = 0, head_count = 1;  // those of the mean
  int64_t max_positions = 0, stride = 0;   // stride is at least max_positions
  DType dtype = DType::f32;
  float scale = 1.0f;
};

void memory_weights(const Context& ctx, const MemoryWeightsArgs& args);

}  // namespace saturate::kernels
