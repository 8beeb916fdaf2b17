// SPDX-License-Identifier: Apache-2.0
// A parameter as the whole model has it, put together from what each rank holds of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ops/parameters.h"
#include "parallel/communicator.h"

namespace saturate::train {

struct WholeParameter {
  std::vector<double> values;
  // Largest distance of what a rank holds from the mean of all that hold the same element. Zero up
  // to one rounding while ranks agree.
  double spread = 0;
};

// Collective over all of `ranks`: `array` of the parameter of this name, which has so many elements
// in the whole model; padding of a vocabulary beyond them is left out. A rank that holds nothing of
// it takes part. Sums travel in f64, a bounded number of elements at a time. Synchronises.
// Errors: collective; internal when no rank holds an element.
WholeParameter whole_parameter(parallel::Communicator& ranks, const Stream& stream,
                               const ParameterStore& store, const std::string& name,
                               int64_t elements, StateArray array);

}  // namespace saturate::train
