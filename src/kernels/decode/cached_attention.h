// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// One generation step of causal self-attention: row r brings one token at position p =
// positions[r], appends its key and value to the cache and attends to the positions 0 .. p of its
// history.
//
//   cache[starts[r] + p] = (k, v of qkv[r])
//   o[r] = sum_j softmax_j(scale * q[r].k[j]) v[j],  j < p from slot slots[starts[r] + j], j = p
//   itself
//
// Shapes    qkv (rows, (heads + 2 kv_heads) * head_size) = [q | k | v]; o (rows, heads *
// head_size);
//           cache (slots, 2 * kv_heads * head_size) = [k | v]; positions, starts, finished (rows)
//           i32. Row r owns the slots from starts[r] on and writes no others. Query head h reads
//           key head h / (heads / kv_heads).
// History   slots (one entry for each slot) tells where the history of a row lies, so that beams
//           change places without moving keys: beam_step keeps it. Null: position j is slot
//           starts[r] + j.
// Finished  rows with finished[r] != 0 get o = 0 and leave the cache alone; null: none is finished.
// Types     qkv, cache, o in dtype; softmax and sums in wide_of(dtype). Aliasing: none.
// Stream    enqueued on ctx.stream; the grid depends on rows and max_positions only
//           (graph-capturable). Order: bitwise repeatable.
struct CachedAttentionArgs {
  const void* qkv = nullptr;
  void* cache = nullptr;
  void* o = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* starts = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* finished = nullptr;
  int64_t rows = 0, heads = 0, kv_heads = 0, head_size = 0;
  int64_t max_positions = 0;  // bounds positions[r] + 1
  DType dtype = DType::f32;
  float scale = 1.0f;
};

void cached_attention(const Context& ctx, const CachedAttentionArgs& args);

}  // namespace saturate::kernels
