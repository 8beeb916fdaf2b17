// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "kernels/options.h"
#include "runtime/context.h"

namespace saturate::kernels {

// One generation step of causal self-attention: row r brings one token at position p =
// positions[r], appends its key and value to the cache and attends to the positions 0 .. p of its
// history.
//
//   cache[slot(r, p)] = (k, v of qkv[r])
//   o[r] = sum_j softmax_j(s[j]) v[j],  j < p from slot(r, j), j = p itself
//   s[j] = cap(scale * q[r].k[j]) + bias[h][p - j]
//
// window > 0: of the history only the positions above p - window. soft_cap > 0: cap(x) = soft_cap *
// tanh(x / soft_cap); else x. bias (heads, bias_stride) in wide_of(dtype), by how far the key lies
// before the token; null: none.
//
// Shapes: qkv (rows, (heads + 2 kv_heads) * head_size) = [q | k | v]; o (rows, heads * head_size);
// cache (slots, 2 * kv_heads * head_size) = [k | v]; positions, starts, finished (rows) i32. Query
// head h reads key head h / (heads / kv_heads).
//
// Where the history lies, slot(r, j), one of three:
//
//   contiguous   starts[r] + j: row r owns the slots from starts[r] on
//   slots        slots[starts[r] + j] for j < p (one entry for each slot), starts[r] + p for the
//                new token: beams share a history and change their rows without moving keys;
//                beam_step keeps the table
//   paged        page_table[r * page_table_stride + j / page_size] * page_size + j % page_size:
//                pages lie anywhere and rows may share those before the one that holds position p
//
// Memory: with `lengths` instead of positions nothing is appended. The rows of qkv are queries alone,
// (rows, heads * head_size), and row r attends to all of the positions 0 .. lengths[r] - 1 that lie
// in the slots starts[r] + j, as a decoder reads its source; lengths[r] 0 gives o = 0.
//
// Groups: rows g * group_rows .. + group_rows - 1 are the beams of one sequence. Their first
// shared_positions[g] positions, none of them written in this step, lie in the same slots: a GPU
// then reads them once for several beams (with a workspace; not with window, soft_cap or bias). It
// changes no result but for rounding.
//
// No row writes a slot that another reads or writes in the same step.
//
// Finished: rows with finished[r] != 0 get o = 0 and leave the cache alone; null: none is finished.
//
// Short caches: with max_positions up to 256 and many rows and heads a GPU gives each of them a warp,
// whose sums have another order (not with pages).
//
// Long caches: with few rows and heads a GPU shares the positions of each out among several blocks;
// their parts meet in ctx.workspace, whose size bounds how many there are (none: one block each).
//
// Types: qkv, cache, o in dtype; softmax and sums in wide_of(dtype). In 16 bits, with head_size 64 or 128
// and query heads that share a key head or histories above 256 positions, a GPU of compute capability
// 8.0 or later rounds the weights of values to dtype (tensor cores). Aliasing: none.
//
// Stream: enqueued on ctx.stream; the grid depends on rows, heads, max_positions and the device
// alone (graph-capturable). Order: bitwise repeatable.
//
// Errors: invalid_argument, unsupported (no implementation fits), device.
//
// Cost: reads the history once, 2 kv_heads head_size elements a position and row, and as many times
// 2 heads / kv_heads flops.
//
// Source: the formula is attention.h's; pages: Kwon et al., arXiv:2309.06180.
struct CachedAttentionArgs {
  const void* qkv = nullptr;
  void* cache = nullptr;
  void* o = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* starts = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* finished = nullptr;
  const int32_t* lengths = nullptr;     // (rows) of a memory; then without positions and slots
  const int32_t* page_table = nullptr;  // (rows, page_table_stride) page numbers; without starts
  int64_t page_size = 0;                // positions of a page
  int64_t page_table_stride = 0;        // at least ceil(max_positions / page_size)
  const int32_t* shared_positions = nullptr;  // (rows / group_rows), at most positions[r]
  int64_t group_rows = 0;                     // divides rows; 0 without groups
  int64_t rows = 0, heads = 0, kv_heads = 0, head_size = 0;
  int64_t max_positions = 0;  // bounds positions[r] + 1, or lengths[r]
  DType dtype = DType::f32;
  float scale = 1.0f;
  int64_t window = 0;
  float soft_cap = 0.0f;
  const void* bias = nullptr;
  int64_t bias_stride = 0;           // at least max_positions
  CpuLevel level = CpuLevel::plain;  // the newest that may run: cpu_level() or older
};

void cached_attention(const Context& ctx, const CachedAttentionArgs& args);

}  // namespace saturate::kernels
