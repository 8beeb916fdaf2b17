// SPDX-License-Identifier: Apache-2.0
// The truth that tests compare with: straight from the formula of attention.h, in double, with the
// whole score matrix of a head in memory. dtype must be f64 and every pointer host memory.
#pragma once
#include "kernels/attention/attention.h"

namespace saturate::kernels {

void attention_forward_reference(const AttentionArgs& args);
void attention_backward_reference(const AttentionBackwardArgs& args);

}  // namespace saturate::kernels
