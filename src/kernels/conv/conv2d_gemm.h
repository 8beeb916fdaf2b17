// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/conv/conv2d.h"

namespace saturate::kernels::conv {

// Splits of the summed pixels in the weight gradient; the partial sums lie in ctx.workspace.
struct Split {
  int count = 1;
  int depth = 0;  // a multiple of 32 pixels
  size_t workspace_bytes = 0;
};

// T: __half, __nv_bfloat16 (tensor cores) or float (plain units).
template <class T>
void forward(const Context& ctx, const Conv2dArgs& args);
template <class T>
void input_gradient(const Context& ctx, const Conv2dBackwardArgs& args);
template <class T>
void weight_gradient(const Context& ctx, const Conv2dBackwardArgs& args, const Split& split);

// d_w from the partial sums, in the order of the splits.
void join_weight_gradient(const Context& ctx, const Conv2dBackwardArgs& args, const Split& split);

}  // namespace saturate::kernels::conv
