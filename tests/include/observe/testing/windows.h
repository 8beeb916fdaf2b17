// SPDX-License-Identifier: Apache-2.0
// What a recorder that pauses has of a program, and one that hands over what it has in parts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "observe/analyse/analyser.h"
#include "observe/trace/trace.h"

namespace saturate::observe::testing {

// `whole` recorded for `window_ns`, not for `pause_ns`, and so on, from `first_ns` after its start.
// As CUPTI does it: an operation is recorded if its call was, however late it runs, and a call that
// waits also when it began in a pause and returns after it.
inline Trace record_in_windows(Trace whole, int64_t first_ns, int64_t window_ns, int64_t pause_ns) {
  const int64_t from = whole.calls.front().start_ns;
  const int64_t end = std::max(whole.calls.back().end_ns, whole.ops.back().end_ns);
  for (int64_t at = from + first_ns; at < end; at += window_ns + pause_ns)
    whole.pauses.push_back({at, at + pause_ns});
  const auto paused = [&](int64_t time_ns) {
    return std::any_of(whole.pauses.begin(), whole.pauses.end(),
                       [&](const Pause& p) { return p.start_ns <= time_ns && time_ns < p.end_ns; });
  };
  std::unordered_set<int64_t> unseen;
  std::erase_if(whole.calls, [&](const HostCall& c) {
    if (!paused(c.start_ns)) return false;
    unseen.insert(c.correlation);
    return paused(c.end_ns) || whole.names[c.name].find("Synchronize") == std::string::npos;
  });
  std::erase_if(whole.ops, [&](const DeviceOp& op) { return unseen.contains(op.correlation); });
  return whole;
}

// `whole` in `parts` of equal length, each with what has ended by then, as a recorder hands it out.
inline Analysis analyse_in_parts(const Trace& whole, int64_t parts) {
  Analyser analyser;
  Trace window = whole;
  window.ops.clear();
  window.calls.clear();
  window.spans.clear();
  const int64_t from = whole.calls.front().start_ns, to = whole.ops.back().end_ns;
  int64_t low = INT64_MIN;
  for (int64_t part = 1; part <= parts; ++part) {
    const int64_t high = part == parts ? INT64_MAX : from + (to - from) * part / parts;
    const auto pick = [&](const auto& in, auto& out) {
      for (const auto& r : in) {
        if (r.end_ns > low && r.end_ns <= high) out.push_back(r);
      }
    };
    pick(whole.ops, window.ops);
    pick(whole.calls, window.calls);
    pick(whole.spans, window.spans);
    window.sort();
    analyser.consume(window, part == parts);
    low = high;
  }
  return analyser.finish(window);
}

}  // namespace saturate::observe::testing
