// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

// y[t][c] = drop(scale * table[ids[t]][c] + position_table[positions[t]][c])
//
// Shapes    y (rows, cols); table (vocab, cols); position_table (max_positions, cols) or null;
//           ids, positions (rows), i32. Ids count from first_id: the table holds ids first_id ...
//           first_id + vocab - 1 of the vocabulary, and others give zeros. Without ids row t takes
//           row t of the table. Positions are clamped to their table.
// Types     y, table in dtype; position_table in wide_of(dtype); arithmetic in wide_of(dtype).
// Dropout   element as RngRef numbers it: block = element / 4, word = element % 4; times 1/(1-p).
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: no atomics, every sum in a fixed order.
// Errors    invalid_argument for sizes, pointers, dropout and zero_row; unsupported when no
//           implementation fits; device.
// Cost      forward reads and writes rows * cols elements; backward reads d_y once for each table
//           and writes the tables.
// Source    Vaswani et al., arXiv:1706.03762, section 3.4.
struct EmbeddingArgs {
  const void* table = nullptr;
  const void* position_table = nullptr;
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  void* y = nullptr;
  int64_t rows = 0, cols = 0, vocab = 0, max_positions = 0;
  int64_t first_id = 0;
  DType dtype = DType::f32;
  float scale = 1.0f;
  float dropout = 0.0f;
  RngRef rng = {};
};

// d_table[v] (+)= scale * sum over rows t with ids[t] - first_id == v of drop'(d_y[t])
// d_position_table[p] (+)= the same sum without scale over the rows at position p
//
// Either is null when it is not wanted.
// Rows      ids, order and cu are those of a batch of batch_rows rows (0: forward.rows), of which
//           d_y has forward.rows from first_row on; the sums run over these.
// `order` (rows) lists the valid rows sorted by id, stable; entries from *valid_rows on are not
// read. It comes with the batch, so that each table row is summed in a fixed order without atomics.
// The position sums walk the sequences: row cu[s] + p of every sequence longer than p.
// Types     d_table, d_position_table in wide_of(dtype). accumulate adds to d_table; otherwise rows
//           that occur are added to zero and ALL other rows are set to zero; accumulate_positions
//           does the same for d_position_table.
// Zero row  d_table[zero_row], a row of this table, is 0 afterwards, whatever was there or would be added: a row that
//           must not learn (the padding symbol of translation models). -1: there is none.
struct EmbeddingBackwardArgs {
  EmbeddingArgs forward;  // y is not read
  const void* d_y = nullptr;
  const int32_t* order = nullptr;
  const int32_t* valid_rows = nullptr;  // device scalar
  const int32_t* cu = nullptr;          // (sequences + 1); needed for d_position_table
  int64_t sequences = 0;
  void* d_table = nullptr;
  void* d_position_table = nullptr;
  int64_t zero_row = -1;
  int64_t first_row = 0, batch_rows = 0;
  bool accumulate = false;
  bool accumulate_positions = false;
};

void embedding_forward(const Context& ctx, const EmbeddingArgs& args);
void embedding_backward(const Context& ctx, const EmbeddingBackwardArgs& args);

}  // namespace saturate::kernels
