// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "observe/analyse/analysis.h"
#include "observe/analyse/attribute.h"
#include "observe/analyse/replay.h"
#include "observe/analyse/steps.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

struct AnalyseOptions {
  std::optional<int64_t> warm_up;  // steps left out at the start; empty: found
  double untraced_step_ns = 0;     // what a step takes without recording; 0: not known
};

// Attributes a capture in one pass over windows of it, in memory that depends on the size of a
// window and the number of different names and steps, not on the length of the capture.
class Analyser {
 public:
  explicit Analyser(AnalyseOptions options = {});
  ~Analyser();

  // Takes what can be settled out of `window`, which must be sorted and hold at least the records
  // that an earlier call left in it; the same object each time, so that names keep their numbers.
  // The first window decides how steps are detected, so it should hold several.
  void consume(Trace& window, bool last);

  // Of the first window; empty before it.
  const std::optional<Replay>& replay() const;

  // After the last window. Errors    Error{invalid_argument} when nothing ran on a device.
  Analysis finish(const Trace& trace);

 private:
  struct Device;
  struct State;
  void begin(const Trace& window, const HostTimeline& host);
  void tell_apart(const Trace& window, const HostTimeline& host, const Segment& segment,
                  Device& device);
  void add_memory(Trace& window);
  void add_memory_before(uint32_t device, MemoryUse& use) const;
  std::vector<bool> calls_to_keep(const Trace& window, const HostTimeline& host, int64_t settled_ns,
                                  int64_t since_ns) const;
  static void keep_calls_before(const Trace& window, const HostTimeline& host, int64_t since_ns,
                                std::vector<bool>& keep);
  static void add_waits(const Trace& window, const HostTimeline& host, Device& device,
                        int64_t to_ns);
  void count_kernel(int64_t start_ns);
  void process(const Trace& window, const HostTimeline& host, Device& device, int64_t to_ns);
  std::unique_ptr<State> state_;
};

// A whole trace at once.
Analysis analyse(Trace& trace, AnalyseOptions options = {});

}  // namespace saturate::observe
