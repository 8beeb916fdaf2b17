// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// Device arrays of one side of a batch (see data/batch.h for what they hold).
struct TokenArrays {
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* cu = nullptr;
  const int32_t* order = nullptr;  // not needed for inference
  const int32_t* valid = nullptr;
  int64_t rows = 0, sequences = 0;
};

// y = dropout(scale * table[id] + positions_table[position])
//
// Shapes    table (vocab, C), a parameter; positions_table (positions, C): none, an external value
//           (sinusoids) or a wide parameter (learned: gets a gradient); returns (rows, C).
// Backward  adds to the gradients of the tables; the parameter's zero_row gets none.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/embedding/embedding.h
Value embedding(Tape& tape, const TokenArrays& tokens, Value table, Value positions_table,
                float scale, float dropout);

}  // namespace saturate::ops
