// SPDX-License-Identifier: Apache-2.0
#include "observe/read/seams.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace saturate::observe {
namespace {

constexpr int64_t kLeastLeadNs = 50'000;  // below, an operation began as soon as it could
constexpr size_t kMostCalls = 4096;       // searched for the first that issued something
constexpr int64_t kCompleteNs = 3 * Seams::kMostLeadNs;  // of a window, to settle its beginning
constexpr int64_t kFarNs = INT64_MAX / 2;

bool waits(std::string_view call) {
  return call.find("Synchronize") != std::string_view::npos ||
         call.find("Memcpy") != std::string_view::npos;
}

template <class Record>
size_t first_from(const std::vector<Record>& records, int64_t time_ns) {
  return static_cast<size_t>(
      std::partition_point(records.begin(), records.end(),
                           [&](const Record& r) { return r.start_ns < time_ns; }) -
      records.begin());
}

// From when on the calls and the operations of a window are known.
struct Beginning {
  int64_t call_ns, op_ns;
  int64_t lead_ns() const { return op_ns - call_ns; }
};

// When the last of the waiting calls returned that were under way at the end of the pause.
int64_t end_of_waits(const Trace& trace, const Pause& pause) {
  int64_t end_ns = pause.end_ns;
  for (size_t i = first_from(trace.calls, pause.start_ns - Seams::kMostLeadNs);
       i < trace.calls.size() && trace.calls[i].start_ns < pause.end_ns; ++i) {
    const HostCall& c = trace.calls[i];
    if (c.end_ns > end_ns && waits(trace.names[c.name])) end_ns = c.end_ns;
  }
  return end_ns;
}

// Of the window from the end of `pause` to `to_ns`.
Beginning beginning(const Trace& trace, const Pause& pause, int64_t to_ns) {
  const int64_t start_ns = std::min(end_of_waits(trace, pause), to_ns);
  std::unordered_multimap<int64_t, const HostCall*> issuers;
  const size_t first = first_from(trace.calls, start_ns);
  for (size_t i = first; i < std::min(trace.calls.size(), first + kMostCalls); ++i) {
    const HostCall& c = trace.calls[i];
    if (c.start_ns < to_ns && c.correlation != kNoCorrelation) issuers.emplace(c.correlation, &c);
  }
  // The first operation of each process on each device shows how far that is behind.
  Beginning b{start_ns, start_ns};
  std::map<std::pair<uint32_t, uint32_t>, bool> seen;
  for (size_t i = first_from(trace.ops, start_ns);
       i < trace.ops.size() && trace.ops[i].start_ns < to_ns; ++i) {
    const DeviceOp& op = trace.ops[i];
    const StreamKey& key = trace.streams[op.stream];
    const auto [low, high] = issuers.equal_range(op.correlation);
    const auto call = std::find_if(low, high, [&](const auto& c) {
      return trace.threads[c.second->thread].process == key.process;
    });
    if (call == high || std::exchange(seen[{key.process, key.device}], true)) continue;
    if (op.start_ns - call->second->end_ns > kLeastLeadNs && op.start_ns > b.op_ns)
      b = {call->second->start_ns, op.start_ns};
  }
  return b;
}

}  // namespace

void Seams::add(Pause pause) {
  if (pause.start_ns >= settled_ns_) return paused_.add(pause);
  host_.add(pause);
  device_.add(pause);
}

void Seams::settle(const Trace& trace, int64_t complete_ns) {
  const std::vector<Pause>& pauses = paused_.pauses();
  const auto from = std::partition_point(pauses.begin(), pauses.end(),
                                         [&](const Pause& p) { return p.start_ns < settled_ns_; });
  for (auto p = from; p != pauses.end(); ++p) {
    const int64_t start_ns = p->start_ns;
    Beginning b;
    int64_t skipped = 0;
    for (;; ++p, ++skipped) {
      const bool last = p + 1 == pauses.end();
      const int64_t to_ns = std::min(last ? kFarNs : p[1].start_ns, complete_ns);
      if (complete_ns < (last ? p->end_ns + kCompleteNs : to_ns)) return;
      b = beginning(trace, *p, to_ns);
      const int64_t known_ns = std::min(to_ns, trace.ops.empty() ? 0 : trace.ops.back().end_ns);
      const int64_t most_lead_ns = window_from_ns_ == kNever
                                       ? INT64_MAX
                                       : std::min(kMostLeadNs, (start_ns - window_from_ns_) / 2);
      if (b.op_ns - p->end_ns <= (known_ns - p->end_ns) / 2 && b.lead_ns() <= most_lead_ns) break;
      if (last && complete_ns < p->end_ns + 4 * kCompleteNs) return;
      if (last) {  // little is better than nothing
        b.call_ns = std::max(b.call_ns, b.op_ns - most_lead_ns);
        break;
      }
    }
    skipped_ += skipped;
    device_.add({start_ns, b.op_ns});
    host_.add({start_ns - b.lead_ns(), b.call_ns});
    window_from_ns_ = b.op_ns;
    settled_ns_ = p->end_ns;
  }
}

int64_t Seams::settled_until(int64_t last_ns) const {
  const std::vector<Pause>& pauses = paused_.pauses();
  const auto open = std::partition_point(pauses.begin(), pauses.end(),
                                         [&](const Pause& p) { return p.start_ns < settled_ns_; });
  return std::min(last_ns, open == pauses.end() ? INT64_MAX : open->start_ns) - kMostLeadNs;
}

std::string Seams::note() const {
  if (skipped_ == 0) return "";
  return "windows of the recording left out, for the device was busy with earlier work for most of "
         "the time: " +
         std::to_string(skipped_);
}

void move_settled(Trace& from, const Seams& seams, int64_t until_ns, Trace& into) {
  const auto move = [&](auto& records, const PausedClock& clock, auto& out) {
    size_t kept = 0;
    for (auto& r : records) {
      if (r.start_ns >= until_ns) {
        records[kept++] = r;
        continue;
      }
      auto moved = r;
      const bool whole = clock.move(moved);
      constexpr bool is_span = requires { r.kind == SpanKind::range; };
      if (is_span ? moved.end_ns > moved.start_ns || clock.empty() : whole) out.push_back(moved);
    }
    records.resize(kept);
  };
  move(from.ops, seams.device(), into.ops);
  move(from.calls, seams.host(), into.calls);
  move(from.spans, seams.host(), into.spans);
  std::erase_if(from.samples, [&](HostSample s) {
    if (s.start_ns >= until_ns) return false;
    const int64_t length = s.end_ns - s.start_ns;
    const bool gone = seams.host().paused(s.start_ns) && s.count == 1;
    seams.host().move(s);
    if (length > 0)  // as many as lie outside of pauses
      s.count = static_cast<uint32_t>(static_cast<double>(s.count) *
                                          static_cast<double>(s.end_ns - s.start_ns) /
                                          static_cast<double>(length) +
                                      0.5);
    if (!gone && s.count > 0) into.samples.push_back(s);
    return true;
  });
  std::erase_if(from.memory, [&](const MemorySample& m) {
    if (m.time_ns >= until_ns) return false;
    into.memory.push_back(m);
    into.memory.back().time_ns = seams.host().at(m.time_ns);
    return true;
  });
}

void cut_pauses(Trace& trace) {
  if (trace.pauses.empty()) return;
  trace.sort();
  Seams seams;
  for (const Pause& p : trace.pauses) seams.add(p);
  seams.settle(trace, INT64_MAX);
  if (const std::string note = seams.note(); !note.empty()) trace.notes.push_back(note);
  trace.pauses.clear();
  Trace moved;
  move_settled(trace, seams, INT64_MAX, moved);
  trace.ops = std::move(moved.ops);
  trace.calls = std::move(moved.calls);
  trace.spans = std::move(moved.spans);
  trace.memory = std::move(moved.memory);
  trace.samples = std::move(moved.samples);
}

}  // namespace saturate::observe
