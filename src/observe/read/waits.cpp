// SPDX-License-Identifier: Apache-2.0
#include "observe/read/waits.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace saturate::observe {
namespace {

constexpr int64_t kShortestLullNs = 200'000;
constexpr int64_t kReachNs = 30'000'000;  // three samples
constexpr int64_t kEnoughSamples = 5;     // of stacks, to know what pauses of a kind are
constexpr double kMostOfThem = 0.9;       // asleep: all of such a pause may be sleep

struct Lull {
  struct Wait {
    int64_t ns;
    uint32_t name;
    SpanKind kind;
  };
  int64_t start_ns, end_ns;
  uint32_t before = 0, after = 0;  // names of the calls
  int64_t room_ns = 0;             // for sleep
  int64_t slept_ns = 0;
  int64_t wish_ns = -1;  // where the first wait that it took began
  std::vector<Wait> waits = {};
  int64_t room() const { return room_ns - slept_ns; }
};

// Between the calls of every thread, in order of time; calls may nest.
std::vector<std::vector<Lull>> lulls_of(const Trace& trace) {
  std::vector<std::vector<Lull>> lulls(trace.threads.size());
  std::vector<int64_t> reach(trace.threads.size(), INT64_MIN);
  std::vector<uint32_t> before(trace.threads.size());
  for (const HostCall& call : trace.calls) {
    int64_t& end = reach[call.thread];
    if (end != INT64_MIN && call.start_ns - end >= kShortestLullNs)
      lulls[call.thread].push_back(
          {end, call.start_ns, before[call.thread], call.name, call.start_ns - end});
    if (call.end_ns >= end) before[call.thread] = call.name;
    end = std::max(end, call.end_ns);
  }
  return lulls;
}

// Of pauses of one kind, between the same calls of a thread, those hold sleep in which samples of
// its stack found it asleep: as much of each as of the samples.
void limit_room(const Trace& trace, std::vector<std::vector<Lull>>& lulls) {
  struct Seen {
    int64_t samples = 0, asleep = 0;
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Seen> kinds;
  const auto kind_of = [](uint32_t thread, const Lull& p) {
    return std::tuple{thread, p.before, p.after};
  };
  for (const HostSample& s : trace.samples) {
    const std::vector<Lull>& own = lulls[s.thread];
    for (uint32_t i = 0; i < s.count && !own.empty(); ++i) {
      const int64_t time =
          s.count < 2 ? s.start_ns : s.start_ns + (s.end_ns - s.start_ns) / (s.count - 1) * i;
      const auto at = std::partition_point(own.begin(), own.end(),
                                           [&](const Lull& p) { return p.end_ns <= time; });
      if (at == own.end() || at->start_ns > time) continue;
      Seen& seen = kinds[kind_of(s.thread, *at)];
      ++seen.samples;
      seen.asleep += s.state != HostState::running;
    }
  }
  for (uint32_t t = 0; t < lulls.size(); ++t) {
    for (Lull& p : lulls[t]) {
      const auto at = kinds.find(kind_of(t, p));
      if (at == kinds.end() || at->second.samples < kEnoughSamples) continue;
      const double asleep =
          static_cast<double>(at->second.asleep) / static_cast<double>(at->second.samples);
      if (asleep < kMostOfThem)
        p.room_ns = static_cast<int64_t>(asleep * static_cast<double>(p.room_ns));
    }
  }
}

int64_t overlap(const Lull& p, const HostSpan& s) {
  return std::min(p.end_ns, s.end_ns) - std::max(p.start_ns, s.start_ns);  // below 0: the distance
}

void place(const HostSpan& span, std::vector<Lull>& lulls) {
  const auto first = std::partition_point(lulls.begin(), lulls.end(), [&](const Lull& p) {
    return p.end_ns < span.start_ns - kReachNs;
  });
  std::vector<Lull*> near;
  for (auto p = first; p != lulls.end() && p->start_ns <= span.end_ns + kReachNs; ++p)
    near.push_back(&*p);
  std::stable_sort(near.begin(), near.end(), [&](const Lull* a, const Lull* b) {
    return overlap(*a, span) > overlap(*b, span);
  });
  int64_t left = span.end_ns - span.start_ns;
  for (Lull* p : near) {
    const int64_t ns = std::min(left, p->room());
    if (ns <= 0) continue;
    if (p->wish_ns < 0) p->wish_ns = span.start_ns;
    if (!p->waits.empty() && p->waits.back().name == span.name && p->waits.back().kind == span.kind)
      p->waits.back().ns += ns;
    else
      p->waits.push_back({ns, span.name, span.kind});
    p->slept_ns += ns;
    left -= ns;
  }
}

}  // namespace

void place_waits(Trace& trace) {
  std::vector<std::vector<Lull>> lulls = lulls_of(trace);
  limit_room(trace, lulls);
  std::vector<bool> calls(trace.threads.size());
  for (const HostCall& call : trace.calls) calls[call.thread] = true;
  const auto moves = [&](const HostSpan& s) { return is_host_wait(s.kind) && calls[s.thread]; };
  for (const HostSpan& span : trace.spans) {
    if (moves(span)) place(span, lulls[span.thread]);
  }
  std::erase_if(trace.spans, moves);
  for (uint32_t t = 0; t < lulls.size(); ++t) {
    for (const Lull& p : lulls[t]) {
      if (p.slept_ns == 0) continue;
      int64_t start = std::clamp(p.wish_ns, p.start_ns, p.end_ns - p.slept_ns);
      for (const Lull::Wait& w : p.waits) {
        trace.spans.push_back({start, start + w.ns, w.name, t, w.kind});
        start += w.ns;
      }
    }
  }
  trace.sort();
}

void follow_deciders(Trace& trace) {
  std::map<uint32_t, uint32_t> first_of;  // by process
  for (uint32_t t = 0; t < trace.threads.size(); ++t) {
    if (trace.threads[t].thread == trace.threads[t].process)
      first_of.emplace(trace.threads[t].process, t);
  }
  std::vector<bool> issues(trace.threads.size());
  // What first threads do beside running their own code; a span of none for a call. In order.
  std::vector<std::vector<HostSpan>> busy(trace.threads.size());
  for (const HostCall& call : trace.calls) {
    issues[call.thread] = true;
    if (trace.threads[call.thread].thread == trace.threads[call.thread].process)
      busy[call.thread].push_back({call.start_ns, call.end_ns, 0, call.thread, SpanKind::overhead});
  }
  for (const HostSpan& span : trace.spans) {
    if (is_host_wait(span.kind) || span.kind == SpanKind::runnable) {
      if (trace.threads[span.thread].thread == trace.threads[span.thread].process)
        busy[span.thread].push_back(span);
    }
  }
  for (auto& spans : busy)
    std::stable_sort(spans.begin(), spans.end(),
                     [](const HostSpan& a, const HostSpan& b) { return a.start_ns < b.start_ns; });
  std::vector<HostSpan> kept;
  for (const HostSpan& span : trace.spans) {
    const auto first = first_of.find(trace.threads[span.thread].process);
    if ((span.kind != SpanKind::blocked && span.kind != SpanKind::lock) || !issues[span.thread] ||
        first == first_of.end() || first->second == span.thread) {
      kept.push_back(span);
      continue;
    }
    const std::vector<HostSpan>& spans = busy[first->second];
    // Waits and calls of one thread hardly overlap, so ends are in order too.
    auto at = std::partition_point(spans.begin(), spans.end(),
                                   [&](const HostSpan& b) { return b.end_ns <= span.start_ns; });
    for (int64_t now = span.start_ns; at != spans.end() && at->start_ns < span.end_ns; ++at) {
      HostSpan part = at->kind == SpanKind::overhead ? span : *at;
      part.thread = span.thread;
      part.start_ns = std::max(now, at->start_ns);
      part.end_ns = now = std::max(now, std::min(at->end_ns, span.end_ns));
      if (part.end_ns > part.start_ns) kept.push_back(part);
    }
  }
  trace.spans = std::move(kept);
  trace.sort();
}

// Whether samples found a thread in the wait of PyTorch's loader for its workers.
class LoaderStacks {
 public:
  explicit LoaderStacks(const Trace& trace)
      : waits_(trace.stacks.size()), of_(trace.threads.size()) {
    for (uint32_t i = 0; i < waits_.size(); ++i) {  // callers come first
      const StackNode& n = trace.stacks[i];
      waits_[i] = (n.caller != kNoStack && waits_[n.caller]) ||
                  (trace.names[n.function].ends_with("_try_get_data") &&
                   trace.names[n.file].ends_with("torch/utils/data/dataloader.py"));
    }
    for (const HostSample& s : trace.samples) of_[s.thread].push_back(&s);
  }

  // Of the samples of its thread during `span` that found it asleep, most.
  bool found_in(const HostSpan& span) const {
    const auto& samples = of_[span.thread];
    auto at = std::partition_point(samples.begin(), samples.end(),
                                   [&](const HostSample* s) { return s->end_ns < span.start_ns; });
    size_t asleep = 0, waiting = 0;
    for (; at != samples.end() && (*at)->start_ns <= span.end_ns; ++at) {
      if ((*at)->state != HostState::blocked || (*at)->stack == kNoStack) continue;
      ++asleep;
      waiting += waits_[(*at)->stack] ? 1 : 0;
    }
    return 2 * waiting > asleep;
  }

 private:
  std::vector<bool> waits_;                         // by stack
  std::vector<std::vector<const HostSample*>> of_;  // by thread, in order
};

void mark_loader_waits(Trace& trace) {
  const LoaderStacks stacks(trace);
  std::map<std::pair<uint32_t, int64_t>, bool> copies_in;  // by process and correlation
  for (const DeviceOp& op : trace.ops) {
    if (op.correlation != kNoCorrelation)
      copies_in.try_emplace({trace.streams[op.stream].process, op.correlation},
                            op.kind == OpKind::copy && op.copy == CopyKind::host_to_device);
  }
  struct Issue {
    int64_t start_ns;
    bool copy_in;
  };
  std::vector<std::vector<Issue>> issues(trace.threads.size());
  for (const HostCall& call : trace.calls) {
    const auto at = copies_in.find({trace.threads[call.thread].process, call.correlation});
    if (at != copies_in.end()) issues[call.thread].push_back({call.start_ns, at->second});
  }
  std::vector<std::vector<Lull>> lulls = lulls_of(trace);
  const auto lull_of = [&](const HostSpan& span) -> Lull* {
    std::vector<Lull>& own = lulls[span.thread];
    const auto around = std::partition_point(
        own.begin(), own.end(), [&](const Lull& p) { return p.end_ns <= span.start_ns; });
    const bool inside =
        around != own.end() && around->start_ns <= span.start_ns && around->end_ns >= span.end_ns;
    return inside ? &*around : nullptr;
  };
  for (const HostSpan& span : trace.spans) {
    if (!is_host_wait(span.kind)) continue;
    if (Lull* const around = lull_of(span)) around->slept_ns += span.end_ns - span.start_ns;
  }
  for (HostSpan& span : trace.spans) {
    if (span.kind != SpanKind::blocked && span.kind != SpanKind::file_read &&
        span.kind != SpanKind::network)
      continue;
    const std::vector<Issue>& all = issues[span.thread];
    // The end of a wait is known to a fraction of a millisecond.
    const int64_t after =
        span.end_ns - std::min<int64_t>(500'000, (span.end_ns - span.start_ns) / 2);
    const auto next = std::partition_point(all.begin(), all.end(),
                                           [&](const Issue& i) { return i.start_ns < after; });
    // A loop that asks for a batch before it has used the one it copied (Accelerate) issues kernels
    // next: there the stack says what it waits for.
    const bool seen = span.kind == SpanKind::blocked && stacks.found_in(span);
    if (!seen && (next == all.end() || !next->copy_in)) continue;
    const Lull* const around = lull_of(span);
    // A short sleep in long work of the thread's own is not what the copy waited for.
    if (!seen && span.kind == SpanKind::blocked && around != nullptr &&
        3 * around->slept_ns < around->end_ns - around->start_ns)
      continue;
    span.kind = SpanKind::loader;
    if (around == nullptr) continue;
    if (2 * (span.end_ns - span.start_ns) < around->end_ns - around->start_ns) continue;
    span.start_ns = around->start_ns;
    span.end_ns = around->end_ns;
  }
  trace.sort();
}

}  // namespace saturate::observe
