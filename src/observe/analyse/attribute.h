// SPDX-License-Identifier: Apache-2.0
// The core of the doctor: cuts a device's time into pieces of one leaf each, without gap or
// overlap.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "observe/analyse/host_timeline.h"
#include "observe/analyse/leaf.h"
#include "observe/analyse/names.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

constexpr int64_t kTinyKernelNs = 10'000;     // XProf's and NVIDIA's scale of a launch: 5-20 us
constexpr int64_t kLaunchLatencyNs = 10'000;  // longer waits of issued work are dependencies

// Whether a kernel keeps seven of eight multiprocessors idle for 0.2 ms and more, and is neither a product nor of a
// recurrent layer nor communication: a sum, say, with few results along an axis that is not contiguous. `ns`: of one launch.
bool is_serial(std::string_view kernel, int64_t blocks, int64_t ns, int64_t multiprocessors);

struct Segment {
  int64_t start_ns, end_ns;
  Leaf leaf;
  uint32_t op;        // index: busy, the operation charged; idle, the next to run or kNone
  uint32_t name;      // busy: of the operation; idle: of the call or span the host was in, or 0
  uint32_t issuer;    // idle: the call that issued the next operation, or kNone
  double filled = 1;  // low-grid kernels: share of the multiprocessors that those running have
};

// Tiles [from_ns, to_ns) of `device` with segments, in order of time, each handed to `take` once.
// Busy: while anything runs, the leaf that comes first in Leaf; low-grid kernels that together fill
// the device count as what they compute. Idle: the gap up to the next
// operation is cut by the pieces of the thread that issued it; what lies after the return of the
// issuing call is launch latency up to kLaunchLatencyNs, then dependency. Host code between a
// synchronisation that was waiting when the device ran dry and the next issue is after_sync. A
// thread that is blocked, reads a file or waits for the network counts as waiting for data when the
// next operation copies to the device and such waits are a third of the gap.
// `trace` must be sorted. Time within a gap that starts before `from_ns` is attributed as if the
// gap began there; callers that cut runs into windows cut at the start of an operation. Cost: O(n).
void attribute(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from_ns,
               int64_t to_ns, const std::function<void(const Segment&)>& take);

// The leaf of operations when they run alone. Reads each name once; the trace must not get new
// ones.
class BusyLeaves {
 public:
  explicit BusyLeaves(const Trace& trace) : trace_(trace), kinds_(trace.names.size(), kUnread) {}
  // `multiprocessors` 0 when not known.
  Leaf of(const DeviceOp& op, int64_t multiprocessors);
  KernelClass kind(uint32_t name);

 private:
  static constexpr uint8_t kUnread = UINT8_MAX;
  const Trace& trace_;
  std::vector<uint8_t> kinds_;
};

}  // namespace saturate::observe
