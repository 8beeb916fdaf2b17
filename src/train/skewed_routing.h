// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/parameters.h"
#include "runtime/stream.h"

namespace saturate::train {

// Sets routers, and the biases of the norms in front of them, so that tokens prefer experts by about
// Zipf's law: the choice of expert i, from 1 on, is as likely as 1 / i^exponent says. For timing
// steps: it takes random parameters as initialise() draws them. A norm's bias gives all rows one
// direction in common, along which a router's weights add what an expert is preferred by; what the
// rows have apart from it is the chance in the choice.
//
// Errors  invalid_argument: the model has no experts, or no layer norm in front of them.
// Stream  synchronises `stream`.
void skew_routing(ParameterStore& store, const Stream& stream, double exponent);

}  // namespace saturate::train
