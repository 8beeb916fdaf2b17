// SPDX-License-Identifier: Apache-2.0
// The lists of one rank of a layout, recorded without memory, with a time for each operation.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "plan/machine.h"
#include "plan/simulate.h"
#include "train/training_step.h"

namespace saturate::plan {

// Parameters whose gradients are summed over ranks together.
struct Reduction {
  int32_t after = 0;   // operation of the last micro-batch's list that finishes the last of them
  int32_t needed = 0;  // operation of the first that reads one of them
  double elements = 0;
  std::vector<int> ranks;
  std::string axes;
};

struct Recorded {
  TaskList operations;  // of one micro-batch, forward and backward, with its collectives
  std::vector<Reduction> reductions;
  double element_bytes = 4;  // of a gradient
  double compute_bytes = 2;  // of a weight as products read it
  // Elements of gradients on this rank, by group of parameters, and the ranks that have the same.
  std::vector<std::pair<double, int>> trained;
  double measured = 0;  // share of the operations' time that was measured
  train::StepMemory memory;
};

// Of rank `rank` of `ranks` with config.parallel, on synthetic sentences of `length` tokens.
// `device` and `kernels` decide what some operations keep; the machine gives the times.
// Errors: those of the layout (train/parallel_setup.h) and of collective_us.
Recorded record_rank(const RunConfig& config, int64_t length, int ranks, int rank, Device device,
                     const kernels::KernelOptions& kernels, const Machine& machine);

}  // namespace saturate::plan
