// SPDX-License-Identifier: Apache-2.0
// One rank's step as a list for the simulator, in the order and with the waits of TrainingStep::enqueue.
#pragma once
#include "plan/machine.h"
#include "plan/recorded.h"
#include "plan/simulate.h"

namespace saturate::plan {

// Which micro-batches of a step are simulated: all, or of a rank without a pipeline the first few
// and the last.
struct Simulated {
  int64_t first = INT64_MAX;  // so many
  int64_t of = 0;             // micro-batches of the step
  bool merged = true;         // operations that nothing comes between are one task
  bool has(int64_t m) const noexcept { return m + 1 >= of || m + 1 < first; }
};

// Collectives of all groups share one lane, as they share NCCL's stream. What a collective that was
// recorded on another lane waits for, and what waits for it, is as that lane has it. Transfers and
// what all stages add up meet those of the other stages' lists.
TaskList step_list(const Recorded& recorded, const Machine& machine, const Simulated& simulated);

}  // namespace saturate::plan
