// SPDX-License-Identifier: Apache-2.0
// What one rank of a layout does in a step, recorded without memory, with a time for each operation.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "plan/machine.h"
#include "plan/simulate.h"
#include "train/training_step.h"

namespace saturate::plan {

// An action of a rank: operations of one of its chunks, or a transfer between two stages.
struct RecordedStep {
  int32_t micro_batch = 0;
  std::vector<OperationRange> runs = {};  // of Recorded::operations; none: `transfer`
  Task transfer = {};
  std::vector<size_t> waits = {};  // steps with transfers that end before it begins
};

// After or before an operation of a step.
struct Point {
  size_t step = 0;
  int32_t operation = 0;  // of Recorded::operations
  auto operator<=>(const Point&) const = default;
};

// Parameters that ranks with the same elements sum and gather together.
struct Bucket {
  Point finished = {};  // the last of their gradients; behind all steps: after the sums of tables
  Point needed = {};    // the first of them
  int zero = 0;         // that of their group: 0 or 1 sums here, 1 or 2 gathers here
  double elements = 0;
  std::vector<int> ranks = {};
  std::vector<int> replicas = {};  // of this rank's share: add up their sums; one: nobody does
  bool coded = false;              // in 8 bits; at level 0 that is over `ranks`
  std::string axes = {};
};

// A table that several stages hold, whose gradients they add.
struct SharedTable {
  int64_t number = 0;  // the same on all ranks
  double elements = 0;
  std::vector<int> ranks = {};
};

struct Recorded {
  int stage = 0;
  // Of all chunks, one behind the other. Waits are for operations of the same segment. The lane of
  // a collective is that which starts it and waits for it.
  TaskList operations;
  std::vector<RecordedStep> steps;
  std::vector<Bucket> buckets;  // by Point finished
  std::vector<SharedTable> tables;
  std::vector<int> world, stages;  // ranks: all, and those of the stages that this one talks to
  std::vector<int> norm_ranks;     // that add up blocks of the norm; one: nobody does
  double norm_bytes = 0;
  double gradient_bytes = 4;  // of an element
  double compute_bytes = 2;   // of a weight as products read it
  double owned = 0;           // elements that AdamW updates here
  double us = 0;              // of the computation of each operation once
  double measured_us = 0;     // of that: by measurements
  double scaled_us = 0;       // and from measurements of other shapes
  train::StepMemory memory;
};

// One rank of each stage, first to last, of `ranks` ranks with config.parallel on synthetic sentences of
// `length` tokens; ends with the first that takes more than the machine's memory. `device` and
// `kernels` decide what some operations keep; the machine gives the times.
// Errors: those of the layout (train/parallel_setup.h, train/pipeline_setup.h) and of collective_us.
std::vector<Recorded> record_stages(const RunConfig& config, int64_t length, int ranks,
                                    Device device, const kernels::KernelOptions& kernels,
                                    const Machine& machine);

}  // namespace saturate::plan
