// SPDX-License-Identifier: Apache-2.0
// Backward pass of short sequences: a block of threads takes a whole sequence of a head.
#pragma once
#include "kernels/attention/attention.h"

namespace saturate::kernels::attention {

// Head sizes 32 and 64 (cmake/attention_instances.cmake). mean: of the lengths, from which the tile
// follows.
template <class T, int kD>
void launch_short_backward(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean);

}  // namespace saturate::kernels::attention
