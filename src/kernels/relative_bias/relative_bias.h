// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// The bias of attention's scores that T5 has in place of positions, from a table by buckets of
// distances:
//   bias[h][i][j] = table[buckets[sign * j - i]][h]
//
// Shapes    table (rows of buckets, heads); bias (heads, queries, keys); `buckets` points at the entry
//           of distance 0 and has entries, i32, from 1 - queries (sign -1: 2 - queries - keys) to
//           keys - 1 (sign -1: 0).
// Types     table and bias in dtype, f64 or f32.
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: a copy.
// Errors    invalid_argument for sizes, pointers, types and sign; unsupported when no implementation
//           fits; device.
// Cost      writes the bias once.
// Source    Raffel et al., arXiv:1910.10683.
struct RelativeBiasArgs {
  const void* table = nullptr;
  const int32_t* buckets = nullptr;
  void* bias = nullptr;
  int64_t heads = 0, queries = 0, keys = 0;
  int sign = 1;  // 1: key j stands j - i tokens behind query i; -1: j + i before it
  DType dtype = DType::f32;
};

void relative_bias(const Context& ctx, const RelativeBiasArgs& args);

}  // namespace saturate::kernels
