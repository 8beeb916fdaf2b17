// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// memory[places[r]] = x[r], with x seen as rows of `width` elements: what a forward pass leaves for the
// steps of generation. For inference only: there is no backward pass.
//
// Shapes    x (rows, cols), width divides cols; places (rows * cols / width), i32 in device memory, -1
//           for a row that goes nowhere, no place twice; memory is rows of `width` elements, of x's
//           type.
// Errors    invalid_argument when the operation runs, as the kernel says; a tape for training is a
//           bug of the model's code (SAT_ASSERT).
// Kernel    kernels/experts/expert_rows.h
void store_rows(Tape& tape, Value x, int64_t width, const int32_t* places, void* memory);

}  // namespace saturate::ops
