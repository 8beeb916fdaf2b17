// SPDX-License-Identifier: Apache-2.0
// Operations of published models that are run here but not trained: none has a backward pass, and a
// tape for training is a bug of the model's code (SAT_ASSERT; training_refusal() keeps users away).
#pragma once
#include <vector>

#include "ops/attention.h"
#include "ops/tape.h"

namespace saturate::ops {

// An RMS norm of each head in columns [column, column + heads * head_size) of x by itself.
//
// Shapes    x (rows, at least column + heads * head_size); weight (head_size), a wide parameter;
//           returns an alias of x: in place.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/head_norm/head_norm.h
Value head_norm(Tape& tape, Slice x, int64_t heads, int64_t head_size, Value weight, float eps);

// z with zeros but in the columns of each row's own group: adapters of low rank side by side. Groups
// have columns [begins[g], begins[g + 1]); the group of a row is at group_of_row[row * stride], which
// is read when the operation runs.
//
// Shapes    z (rows, begins.back()); returns an alias of z: in place.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/adapters/keep_columns.h
Value keep_columns(Tape& tape, Value z, const std::vector<int32_t>& begins,
                   const int32_t* group_of_row, int64_t stride);

// bias[h][i * keys + j] = table[buckets[sign * j - i]][h]
//
// Shapes    table (buckets, heads), a wide parameter; `buckets` as the kernel says; returns
//           (heads, queries * keys) in the wide type.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/relative_bias/relative_bias.h
Value relative_bias(Tape& tape, Value table, const int32_t* buckets, int64_t queries, int64_t keys,
                    int sign);

// cap * tanh(x / cap)
//
// Shapes    any; returns an alias of x: in place.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/elementwise/elementwise.h
Value soft_cap(Tape& tape, Value x, float cap);

}  // namespace saturate::ops
