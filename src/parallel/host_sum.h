// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace saturate::parallel {

// into[i] = into[i] + from[i]. bf16 and f16 are added in f32 and rounded to nearest even once an
// addition: a sum of n of them has n - 1 roundings.
void add_into(DType dtype, void* into, const void* from, int64_t count);

}  // namespace saturate::parallel
