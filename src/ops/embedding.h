// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/collectives.h"
#include "ops/tape.h"

namespace saturate::ops {

// Device arrays of one side of a batch (see data/batch.h for what they hold).
struct TokenArrays {
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* cu = nullptr;
  const int32_t* order = nullptr;  // not needed for inference
  const int32_t* valid = nullptr;
  const int32_t* chunk_offsets = nullptr;  // where ranks have chunks of the rows (row_chunks.h)
  int64_t rows = 0, sequences = 0;
};

struct EmbeddingSpec {
  TokenArrays tokens = {};
  Value table = {}, positions_table = {};
  float scale = 1.0f, dropout = 0.0f;
  // The rows that are wanted, from first_row on (in the order of ranks, see Tape::set_chunks); 0: all
  // of the tokens'. The tape numbers masks by its own first row.
  int64_t first_row = 0, rows = 0;
  // Ranks with an equal part each of the table's rows, and neighbouring runs of as many of the
  // tokens' rows: that of position i before that of i + 1. Nobody named: the table is whole.
  GroupOfRanks vocabulary = {};
};

// y = dropout(scale * table[id] + positions_table[position])
//
// Shapes    table (vocab, C) or this rank's part, a parameter; positions_table (positions, C): none,
//           an external value (sinusoids) or a wide parameter (learned: gets a gradient); returns
//           (rows, C).
// Ranks     each looks the rows of all ranks up in its part; of the sum, in which one term is not
//           zero, each keeps its rows. Backward gathers the gradient's rows.
// Backward  adds to the gradients of the tables; the parameter's zero_row gets none.
// Errors    invalid_argument when the operation runs, as the kernel says; collective.
// Kernel    kernels/embedding/embedding.h
Value embedding(Tape& tape, const EmbeddingSpec& spec);

}  // namespace saturate::ops
