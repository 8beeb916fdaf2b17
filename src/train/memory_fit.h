// SPDX-License-Identifier: Apache-2.0
// How a step is made to fit a bound of memory, at the least modelled time.
#pragma once
#include <functional>
#include <optional>

#include "parallel/communicator.h"
#include "train/training_step.h"

namespace saturate::train {

// What a step can trade for memory; its results stay the same but for rounding.
struct MemoryTrial {
  int64_t halvings = 0;               // of the micro-batch: 2^halvings times as many of them
  std::optional<int64_t> units = {};  // StepOptions::recompute_units
};

struct MemoryFit {
  static constexpr int64_t kAnyHalvings = 64;

  // What a trial takes; none when the micro-batch is too small to be halved so often.
  std::function<std::optional<StepMemory>(const MemoryTrial&)> plan = {};
  size_t limit = 0;
  int64_t halvings = 0;    // that are allowed
  bool automatic = false;  // may compute results again that plan() would keep by itself

  // The trial that fits on every rank and is modelled to be the fastest on the slowest one; none
  // when nothing fits. All ranks call it together. Cost: some dozens of plans.
  std::optional<MemoryTrial> cheapest(parallel::Communicator& ranks) const;
};

}  // namespace saturate::train
