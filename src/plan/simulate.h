// SPDX-License-Identifier: Apache-2.0
// When the tasks of several ranks begin and end: discrete events over their lists.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace saturate::plan {

enum class TaskKind : uint8_t { compute, communication };

struct Task {
  std::string name;
  TaskKind kind = TaskKind::compute;
  int32_t lane = 0;  // tasks of a lane run one after the other, in the order of the list
  double us = 0;     // alone on the device
  std::vector<int32_t> waits = {};  // tasks of the same list that end before it begins
  // Tasks of several lists with the same number, each once in a list, begin and end together. -1:
  // it meets none.
  int64_t meeting = -1;
  std::string axis = {};  // of communication: who talks (dp, tp, ...)
};
using TaskList = std::vector<Task>;  // of one rank

struct TaskTime {
  double begin_us = 0, end_us = 0;
};
struct RankTime {
  double end_us = 0;
  double compute_us = 0;        // in which computation runs
  double communication_us = 0;  // in which a collective runs
  double exposed_us = 0;        // in which a collective runs and no computation does
  double idle_us() const noexcept { return end_us - compute_us - exposed_us; }
  std::vector<std::pair<std::string, double>> exposed_by_axis;
};
struct Simulation {
  double end_us = 0;
  std::vector<std::vector<TaskTime>> times;  // by rank and task
  std::vector<RankTime> ranks;
};

// `beside`: rate of computation while a collective runs on the same rank, of what it is alone. The
// time in which a rank waits for others inside a collective counts as idle, the transfer itself as
// communication.
// Errors: invalid_argument when some tasks can never begin; names what each rank waits for.
// Cost: n log n of all tasks.
Simulation simulate(std::span<const TaskList> ranks, double beside = 1.0);

}  // namespace saturate::plan
