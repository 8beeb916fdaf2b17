// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/host_calls_before.h"

#include <algorithm>

#include "observe/analyse/analysis.h"
#include "observe/analyse/names.h"

namespace saturate::observe {

HostCallsBefore::HostCallsBefore(const Trace& trace, const HostTimeline& host) : host_(host) {
  std::vector<bool> issues(trace.calls.size());
  for (const DeviceOp& op : trace.ops) {
    if (const uint32_t call = host.issuer(op); call != kNone) issues[call] = true;
  }
  constexpr uint8_t kUnread = UINT8_MAX;
  std::vector<uint8_t> of_name(trace.names.size(), kUnread), of_thread(trace.threads.size());
  std::vector<int64_t> reach(trace.threads.size(), INT64_MAX);
  before_.resize(trace.calls.size());
  for (size_t i = 0; i < trace.calls.size(); ++i) {
    const HostCall& call = trace.calls[i];
    uint8_t& kind = of_name[call.name];
    if (kind == kUnread) {
      const CallClass c = classify_call(trace.names[call.name]);
      kind = c == CallClass::sync ? kWaited : c == CallClass::allocate ? kAllocated : 0;
    }
    uint8_t& seen = of_thread[call.thread];
    int64_t& end = reach[call.thread];
    if (end != INT64_MAX && call.start_ns - end > kDispatchNs) seen |= kPaused;
    end = end == INT64_MAX ? call.end_ns : std::max(end, call.end_ns);
    before_[i] = seen;
    seen = issues[i] ? 0 : seen | kind;
  }
}

}  // namespace saturate::observe
