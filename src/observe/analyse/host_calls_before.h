// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "observe/analyse/host_timeline.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// What the issuing thread did between an operation and the one that it issued before, as bits:
// where kernels are all alike, that still marks a step's first. Cost: O(calls + operations).
class HostCallsBefore {
 public:
  static constexpr uint8_t kWaited = 1;     // for the device
  static constexpr uint8_t kAllocated = 2;  // or gave back
  static constexpr uint8_t kPaused = 4;     // made no call for longer than kDispatchNs

  HostCallsBefore(const Trace& trace, const HostTimeline& host);
  uint8_t of(const DeviceOp& op) const {
    const uint32_t call = host_.issuer(op);
    return call == kNone ? 0 : before_[call];
  }

 private:
  const HostTimeline& host_;
  std::vector<uint8_t> before_;  // by call
};

}  // namespace saturate::observe
