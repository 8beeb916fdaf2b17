// SPDX-License-Identifier: Apache-2.0
// The tensor-core instances of cmake/attention_instances.cmake: a source each, because each takes
// long to compile.
#pragma once
#include "kernels/attention/attention.h"

namespace saturate::kernels::attention {

// Head sizes 32, 64 and 128.
template <int kD>
void launch_forward_mma(const Context& ctx, const AttentionArgs& a);
template <int kD>
void launch_backward_mma(const Context& ctx, const AttentionBackwardArgs& b);

}  // namespace saturate::kernels::attention
