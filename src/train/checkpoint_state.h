// SPDX-License-Identifier: Apache-2.0
// training/optimizer.safetensors of a checkpoint, and training/residual.safetensors of runs whose sums
// travel in 8 bits: every saved array (ops/parameter_group.h) of every
// parameter under "<array>/<parameter>", in the wide type, whatever moments are held in: so a run may
// go on with them in another. Arrays are whole in the
// file, whatever a rank holds, and without the rows that pad a vocabulary: each rank writes and reads
// its own elements at the places that the header gives them, straight from and to the arrays.
#pragma once
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "ops/held_runs.h"
#include "ops/layout.h"
#include "train/together.h"

namespace saturate::train {

// The residual's file is of its own, since few runs have one, and the other is the same for every
// layout. It holds the sum of what all ranks keep (TrainingStep::add_up_residuals), which no layout
// knows about; of what trains and has no residual it holds zeros.
enum class StateFile : uint8_t { optimizer, residual };

// What the file holds, in its order. `all` has every parameter of the model, or is a cut one's store
// whose parts are known to be of all; it need not be allocated.
std::vector<model::TensorSpec> state_tensors(const ParameterStore& all, Purpose purpose,
                                             StateFile which = StateFile::optimizer);

// Which share this rank writes of each group of `store`: ranks that own the same elements (copies,
// where the state is not shared) take equal parts of them. Collective.
std::vector<Share> shares_of_copies(const ParameterStore& store, const Layout& layout,
                                    const Together& ranks);

// The own elements of `store` into a file of `tensors`, of each group a share (none: all). Ranks
// together write all of it. Synchronises.
// Errors: io; invalid_argument naming the parameter when masters are not finite.
void write_owned(model::SafetensorsWriter& file, const std::vector<model::TensorSpec>& tensors,
                 const ParameterStore& store, const Stream& stream,
                 const std::vector<Share>& shares = {}, StateFile which = StateFile::optimizer);

// Reads the own elements, and refreshes the compute copy. Moments and averages of parameters that are
// frozen now, and rows that pad a vocabulary, are passed over: earlier versions wrote them.
// Synchronises.
// Errors: invalid_argument naming file and tensor when one is missing, has another shape or type, or
// masters are not finite; io. The store may hold part of the file then.
void read_owned(const model::SafetensorsReader& file, ParameterStore& store, const Stream& stream,
                StateFile which = StateFile::optimizer);

}  // namespace saturate::train
