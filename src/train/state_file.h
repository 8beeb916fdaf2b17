// SPDX-License-Identifier: Apache-2.0
// training/optimizer.safetensors of a checkpoint: every saved array (ops/parameter_group.h) of every
// parameter under "<array>/<parameter>", in the type in which it is held. Arrays are whole in the
// file, whatever a rank holds: each writes and reads its own ranges at the places that the header
// gives them, straight from and to the arrays.
#pragma once
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "ops/parameters.h"

namespace saturate::train {

// What the file of `store` holds, in its order.
std::vector<model::TensorSpec> state_tensors(const ParameterStore& store);

// The own ranges of `store` into a file of its state_tensors(). Synchronises.
// Errors: io; invalid_argument naming the parameter when masters are not finite.
void write_owned(model::SafetensorsWriter& file, const ParameterStore& store, const Stream& stream);

// Reads the own ranges, and refreshes the compute copy. Moments and averages of parameters that are
// frozen now are passed over: earlier versions wrote them. Synchronises.
// Errors: invalid_argument naming file and tensor when one is missing, has another shape or type, or
// masters are not finite; io. The store may hold part of the file then.
void read_owned(const model::SafetensorsReader& file, ParameterStore& store, const Stream& stream);

}  // namespace saturate::train
