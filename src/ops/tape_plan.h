// SPDX-License-Identifier: Apache-2.0
// What Tape::plan() decides: where values lie and which operations wait for other lanes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

struct OperationRange {
  int32_t begin = 0, end = 0;
  int32_t size() const noexcept { return end - begin; }
};

struct TapePlan {
  struct Place {          // of a value that owns storage
    int64_t offset = -1;  // in the slot's stash or in the scratch
    bool used = false, stash = false;
  };
  static constexpr int32_t kFork = -1;  // the beginning of the segment on lane 0

  int32_t slots = 1;
  size_t stash_bytes = 0, scratch_bytes = 0;  // the arena: stash of slot 0, 1, ..., scratch
  std::vector<Place> places;                  // by value
  // By operation: those of other lanes that it waits for, kFork among them.
  std::vector<std::vector<int32_t>> waits;
  std::vector<bool> waited_for;  // by operation
  std::vector<OperationRange> segments;
  int32_t lanes = 1;

  size_t bytes() const noexcept { return static_cast<size_t>(slots) * stash_bytes + scratch_bytes; }
};

class Tape;

// "" when the plan is sound for the tape's operations, else what is not: an operation must find
// what it reads written and settled, on its lane or waited for; nothing may be written that another
// lane may still read; values whose memory overlaps must never be alive together; what one segment
// leaves for another must lie in the slot's stash when there are several slots. Written apart from
// the planner: orders are derived from the waits alone. Cost: quadratic in operations; for tests.
std::string flaw_of(const Tape& tape, const TapePlan& plan);

}  // namespace saturate
