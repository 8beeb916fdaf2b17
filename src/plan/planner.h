// SPDX-License-Identifier: Apache-2.0
// Which layouts a model has on a number of devices, how long a step of each takes, and why one is
// slower than another.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "plan/goodput.h"
#include "plan/machine.h"
#include "plan/simulate.h"
#include "train/training_step.h"

namespace saturate::plan {

struct PlanRequest {
  RunConfig config = {};  // batch: of a device and step, as data parallel would have it
  int64_t length = 32;    // tokens of a synthetic sentence
  int devices = 1;
  Device device;  // whose kernels are planned for
  kernels::KernelOptions kernels = {};
  Machine machine;
  bool one_layout = false;  // only that of config.parallel
  // Before each layout is looked at: its name, and how many fit so far. Many large ones take minutes.
  std::function<void(const std::string&, size_t)> on_layout = {};
};

struct Estimate {
  RunConfig config;  // with the layout's parallel and batch
  std::string layout;
  double step_ms = 0, tokens_per_s = 0;
  train::StepMemory memory;  // of the stage that takes most
  RankTime rank;             // the mean of the stages
  double measured = 0;       // share of its operations' time that was measured
  double scaled = 0;         // and that measurements of other shapes say
  std::optional<double> joules_per_token = {};
  std::string why = {};  // what makes it slower than the first
};

struct Refusal {
  std::string reason;
  std::vector<std::string> layouts;
};

struct Plan {
  double step_tokens = 0;  // of all ranks, the same for every layout
  double parameters = 0;
  std::vector<Estimate> ranked;  // those that fit, fastest first
  std::vector<Refusal> refused;  // by reason, in the order in which they came up
};

// Every layout of the devices whose axes divide them, with the largest micro-batch that fits; where
// none does, with more and more recomputation, then with the optimizer's state in host memory.
// Errors: those of timed_shape; a layout that is wrong is refused in the result instead.
Plan make_plan(const PlanRequest& request);

// One step of a layout as each simulated rank runs it: one rank of each pipeline stage.
struct StepLists {
  std::vector<TaskList> ranks = {};
  double beside = 1;
};
StepLists step_lists(const PlanRequest& request, const RunConfig& layout);

}  // namespace saturate::plan
