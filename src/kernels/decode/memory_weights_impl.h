// SPDX-License-Identifier: Apache-2.0
// What memory_weights.cpp shares with the implementations.
#pragma once
#include "kernels/decode/memory_weights.h"

namespace saturate::kernels {

// Scores and sums of a row in shared memory, of the 48 KiB that every GPU gives.
constexpr int64_t kMaxWeighted = 6000;

void memory_weights_cpu(const Context& ctx, const MemoryWeightsArgs& args);
void memory_weights_cuda(const Context& ctx, const MemoryWeightsArgs& args);

}  // namespace saturate::kernels
