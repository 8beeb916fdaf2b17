// SPDX-License-Identifier: Apache-2.0
// The parts of the plain CUDA path that have sources of their own, because each takes long to
// compile.
#pragma once
#include "kernels/attention/attention.h"

namespace saturate::kernels::attention {

// With or without attention's features (cmake/attention_instances.cmake).
template <bool kFeatures>
void launch_forward_plain(const Context& ctx, const AttentionArgs& a);
// d_q, d_k and d_v, after the preparation; with features overwrites delta[h][i] by the row's share
// of the slope's gradient where that is wanted.
template <bool kFeatures>
void launch_backward_plain(const Context& ctx, const AttentionBackwardArgs& b);
// d_bias; reads delta.
void backward_plain_bias(const Context& ctx, const AttentionBackwardArgs& b);
// d_sinks; reads delta.
void backward_plain_sinks(const Context& ctx, const AttentionBackwardArgs& b);
// d_alibi_slopes from the rows' shares in delta.
void backward_plain_slopes(const Context& ctx, const AttentionBackwardArgs& b);

}  // namespace saturate::kernels::attention
