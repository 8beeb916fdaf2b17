// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/issue_lines.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "observe/analyse/names.h"
#include "observe/analyse/sample_index.h"
#include "observe/analyse/stack_kinds.h"

namespace saturate::observe {
namespace {

constexpr int64_t kBeforeNs = 1'000'000;  // from a sample to the call

// Whether the thread is in a call that waits for the device: its line then is that of the wait, not of
// the next call.
bool waits_at(const HostTimeline& host, uint32_t thread, int64_t time) {
  const auto pieces = host.thread(thread);
  const size_t p = host.first_after(thread, time);
  return p < pieces.size() && pieces[p].start_ns <= time &&
         (pieces[p].leaf == Leaf::sync || pieces[p].leaf == Leaf::blocking_copy);
}

}  // namespace

struct IssueLines::Counts {
  struct Work {
    Leaf leaf = Leaf::other_kernel;
    int64_t ns = 0, count = 0;
    std::map<LineKey, int64_t> points;
  };
  SampleIndex index;
  std::map<uint32_t, Work> by_name;  // of operations

  WorkLines lines(const Trace& trace,
                  const std::function<bool(uint32_t, const Work&)>& which) const;
  ForwardShares forward(const Trace& trace, bool of_calls) const;
};

IssueLines::IssueLines() : counts_(std::make_unique<Counts>()) {}
IssueLines::~IssueLines() = default;
IssueLines::IssueLines(IssueLines&&) noexcept = default;

void IssueLines::add(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from_ns,
                     int64_t to_ns, BusyLeaves& leaves, int64_t multiprocessors) {
  if (trace.samples.empty()) return;
  Counts& counts = *counts_;
  counts.index.update(trace);
  struct Issue {
    int64_t start_ns, end_ns;
    uint32_t name, thread;
  };
  std::map<uint32_t, std::vector<Issue>> by_thread,
      by_process;  // processes: of threads without samples
  for (const DeviceOp& op : trace.ops) {
    if (trace.streams[op.stream].device != device || op.start_ns < from_ns || op.start_ns >= to_ns)
      continue;
    Counts::Work& work = counts.by_name[op.name];
    work.leaf = leaves.of(op, multiprocessors);
    work.ns += op.end_ns - op.start_ns;
    ++work.count;
    const uint32_t call = host.issuer(op);
    if (call == kNone) continue;
    const HostCall& c = trace.calls[call];
    const Issue issue{c.start_ns, c.end_ns, op.name, c.thread};
    if (counts.index.has(c.thread))
      by_thread[c.thread].push_back(issue);
    else if (const uint32_t t = counts.index.program_thread(trace.threads[c.thread].process);
             t != kNone)
      by_process[t].push_back(issue);
  }
  const auto in_order = [](std::vector<Issue>& issues) {
    std::sort(issues.begin(), issues.end(),
              [](const Issue& a, const Issue& b) { return a.start_ns < b.start_ns; });
  };
  // The point of a sample belongs to the first call that ends after it, of its own thread before
  // others.
  const auto next = [](const std::vector<Issue>& issues, int64_t time) -> const Issue* {
    const auto at = std::partition_point(issues.begin(), issues.end(),
                                         [&](const Issue& i) { return i.end_ns <= time; });
    return at != issues.end() && at->start_ns - time <= kBeforeNs ? &*at : nullptr;
  };
  for (auto* all : {&by_thread, &by_process})
    for (auto& [thread, issues] : *all) in_order(issues);
  static const std::vector<Issue> kNobody;
  const auto of = [](const std::map<uint32_t, std::vector<Issue>>& all,
                     uint32_t thread) -> const std::vector<Issue>& {
    const auto at = all.find(thread);
    return at == all.end() ? kNobody : at->second;
  };
  for (uint32_t thread = 0; thread < trace.threads.size(); ++thread) {
    const std::vector<Issue>&own = of(by_thread, thread), &others = of(by_process, thread);
    if (own.empty() && others.empty()) continue;
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (const auto* issues : {&own, &others}) {
      if (issues->empty()) continue;
      first = std::min(first, issues->front().start_ns - kBeforeNs);
      last = std::max(last, issues->back().end_ns);
    }
    counts.index.each(trace, thread, first, last, [&](const HostSample& s, int64_t) {
      for (uint32_t i = 0; i < s.count; ++i) {
        const int64_t time =
            s.count < 2 ? s.start_ns : s.start_ns + (s.end_ns - s.start_ns) / (s.count - 1) * i;
        if (time < first || time >= last) continue;
        const Issue* issue = next(own, time);
        if (issue == nullptr) issue = next(others, time);
        if (issue == nullptr || (issue->start_ns > time && waits_at(host, thread, time))) continue;
        Counts::Work& work = counts.by_name[issue->name];
        ++work.points[{work.leaf, s.thread, s.stack, s.wait, s.holder, s.holder_stack, s.state}];
      }
    });
  }
}

WorkLines IssueLines::Counts::lines(const Trace& trace,
                                    const std::function<bool(uint32_t, const Work&)>& which) const {
  WorkLines result;
  std::map<LineKey, CountedSamples> counted;
  double known = 0;
  for (const auto& [name, work] : by_name) {
    if (!which(name, work)) continue;
    result.ns += static_cast<double>(work.ns);
    int64_t all = 0;
    for (const auto& [key, points] : work.points) all += points;
    if (all == 0) continue;
    known += static_cast<double>(work.ns);
    result.samples += all;
    for (const auto& [key, points] : work.points) {
      CountedSamples& c = counted[key];
      c.key = key;
      c.points += points;
      c.ns += static_cast<double>(work.ns) * static_cast<double>(points) / static_cast<double>(all);
    }
  }
  result.known = result.ns > 0 ? known / result.ns : 0;
  const StackKinds kinds(trace);
  std::vector<CountedSamples> all, of_calls;
  ForwardShares forward, forward_calls;
  for (const auto& [key, c] : counted) {
    all.push_back(c);
    of_calls.push_back(c);
    if (const uint32_t call = kinds.model_call(key.stack); call != kNoStack)
      of_calls.back().key.stack = call;
    if (kinds.is_backward(key.stack) || kinds.is_update(key.stack)) continue;
    forward[line_of(trace, key.stack)] += c.ns;
    forward_calls[line_of(trace, of_calls.back().key.stack)] += c.ns;
  }
  result.lines = group_lines(trace, kinds, all, known, forward);
  result.calls = group_lines(trace, kinds, of_calls, known, forward_calls);
  backward_last(result.calls);
  return result;
}

WorkLines IssueLines::work(const Trace& trace) const {
  return counts_->lines(trace, [](uint32_t, const Counts::Work&) { return true; });
}

WorkLines IssueLines::copies(const Trace& trace) const {
  return counts_->lines(trace, [](uint32_t, const Counts::Work& w) {
    return w.leaf >= Leaf::copy_in_pageable && w.leaf <= Leaf::copy_out;
  });
}

WorkLines IssueLines::products(const Trace& trace) const {
  return counts_->lines(trace, [&](uint32_t name, const Counts::Work& w) {
    return w.leaf == Leaf::matrix || (w.leaf == Leaf::tensor && is_tf32(trace.names[name]));
  });
}

WorkLines IssueLines::of_names(const Trace& trace, bool (*which)(std::string_view)) const {
  return counts_->lines(
      trace, [&](uint32_t name, const Counts::Work&) { return which(trace.names[name]); });
}

WorkLines IssueLines::device_copies(const Trace& trace) const {
  return counts_->lines(
      trace, [](uint32_t, const Counts::Work& w) { return w.leaf == Leaf::copy_device; });
}

ForwardShares IssueLines::Counts::forward(const Trace& trace, bool of_calls) const {
  ForwardShares shares;
  const StackKinds kinds(trace);
  for (const auto& [name, work] : by_name) {
    if (work.leaf > Leaf::communication) continue;  // copies belong to no pass
    int64_t all = 0;
    for (const auto& [key, points] : work.points) all += points;
    for (const auto& [key, points] : work.points) {
      if (kinds.is_backward(key.stack) || kinds.is_update(key.stack)) continue;
      const uint32_t call = of_calls ? kinds.model_call(key.stack) : kNoStack;
      shares[line_of(trace, call != kNoStack ? call : key.stack)] +=
          static_cast<double>(work.count) * static_cast<double>(points) / static_cast<double>(all);
    }
  }
  return shares;
}

ForwardShares IssueLines::forward(const Trace& trace) const {
  return counts_->forward(trace, false);
}

ForwardShares IssueLines::forward_calls(const Trace& trace) const {
  return counts_->forward(trace, true);
}

}  // namespace saturate::observe
