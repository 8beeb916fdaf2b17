// SPDX-License-Identifier: Apache-2.0
// Which lines of the program gave a device its work, from samples of stacks taken when they did.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "observe/analyse/attribute.h"
#include "observe/analyse/host_lines.h"
#include "observe/analyse/host_timeline.h"
#include "observe/analyse/line_groups.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// A sample up to 1 ms before a call that issues, or within it, is of the line that issues that
// operation, unless it is in a call that waits for the device. The time of all operations of a name is divided by the samples before them; names
// without any are not known. In a backward pass the thread that issues runs no Python: then the
// line is that of the program's thread, which waits for it.
class IssueLines {
 public:
  IssueLines();
  ~IssueLines();
  IssueLines(IssueLines&&) noexcept;
  // Operations of the device that start in [from_ns, to_ns).
  void add(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from_ns,
           int64_t to_ns, BusyLeaves& leaves, int64_t multiprocessors);
  // Of all work; of copies between host and device; and of products without tensor cores, or with
  // fp32 inputs.
  WorkLines work(const Trace& trace) const;
  WorkLines copies(const Trace& trace) const;
  WorkLines products(const Trace& trace) const;
  // Of operations whose names `which` takes, and of copies within a device.
  WorkLines of_names(const Trace& trace, bool (*which)(std::string_view)) const;
  WorkLines device_copies(const Trace& trace) const;
  // By how many operations lines outside the backward pass and the optimizer gave the device: what
  // the host spends on a backward pass goes with their number, not with how long they take.
  ForwardShares forward(const Trace& trace) const;
  // The same by the lines that call a model, with all that it does.
  ForwardShares forward_calls(const Trace& trace) const;

 private:
  struct Counts;
  std::unique_ptr<Counts> counts_;
};

}  // namespace saturate::observe
