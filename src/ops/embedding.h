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

// y = dropout(scale * table[id] + positions_table[position]), (rows, C).
// A parameter's zero_row gets no gradient.
// positions_table is none, an external value (sinusoids) or a wide parameter (learned: gets a
// gradient).
Value embedding(Tape& tape, const TokenArrays& tokens, Value table, Value positions_table,
                float scale, float dropout);

}  // namespace saturate::ops
