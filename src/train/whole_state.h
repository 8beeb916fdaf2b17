// SPDX-License-Identifier: Apache-2.0
// The state that ranks share, brought together in the host memory of one of them.
#pragma once
#include <memory>

#include "ops/parameters.h"

namespace saturate::train {

// An empty store in host memory with the parameters of `shared` and its purpose; nothing is shared.
// Errors: out_of_memory.
std::unique_ptr<ParameterStore> whole_copy(const ParameterStore& shared);

// What checkpoints hold of `shared` into `whole`, its whole_copy(); null on ranks that only give.
// Collective over the ranks that share it; synchronises.
void gather_into(ParameterStore* whole, const ParameterStore& shared, const Stream& stream);

}  // namespace saturate::train
