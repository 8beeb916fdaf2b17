// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "observe/trace/trace.h"

namespace saturate::observe {

// When the processes that issue work made code, by samples of their threads' stacks: from sample to
// sample, and half way to those that show something else, where it may have ended at once. Cost:
// O(samples + nodes).
class CompileTimes {
 public:
  explicit CompileTimes(const Trace& trace);
  // Whether most of [from_ns, to_ns) of the process lies in them.
  bool at(uint32_t process, int64_t from_ns, int64_t to_ns) const;
  // All of it within [from_ns, to_ns), of the process that did most; and when the last ended,
  // INT64_MIN where there was none.
  int64_t total_ns(int64_t from_ns, int64_t to_ns) const;
  int64_t last_ns() const;
  // Whether samples before and after the moment show it.
  bool within(uint32_t process, int64_t time_ns) const;

 private:
  using Times = std::map<uint32_t, std::vector<std::pair<int64_t, int64_t>>>;  // in order, apart
  static void join(Times& all);
  Times times_, between_;  // by process; between two samples that both show it
};

}  // namespace saturate::observe
