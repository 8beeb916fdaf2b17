// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// Device arrays of a generation step; kernels/decode/memory_weights.h says what they hold.
struct MemoryWeightsSpec {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  int64_t first_head = 0, head_count = 1;
  int64_t max_positions = 0;
  const void* memory = nullptr;
  const int32_t* starts = nullptr;
  const int32_t* lengths = nullptr;
  const int32_t* finished = nullptr;
  const int32_t* slot_starts = nullptr;
  const int32_t* positions = nullptr;
  float* weights = nullptr;
  int64_t stride = 0;
  float scale = 0.0f;  // 0: 1/sqrt(head_size)
};

// What each row of a step looks at in its memory is written to `weights`. For inference only: there is
// no backward pass.
//
// Shapes    q (rows, heads * head_size); the rest as the kernel says.
// Errors    invalid_argument when the operation runs, as the kernel says; another width of q or a tape
//           for training is a bug of the model's code (SAT_ASSERT).
// Kernel    kernels/decode/memory_weights.h
void memory_weights(Tape& tape, Value q, const MemoryWeightsSpec& spec);

}  // namespace saturate::ops
