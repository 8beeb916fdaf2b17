// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "observe/analyse/compile_times.h"
#include "observe/analyse/host_calls_before.h"

namespace saturate::observe {
namespace {

std::string_view without_number(std::string_view name) {
  while (!name.empty() && std::isdigit(static_cast<unsigned char>(name.back())))
    name.remove_suffix(1);
  return name;
}

bool names_steps(std::string_view prefix) {
  std::string n(prefix);
  for (char& c : n) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Not the optimizer's part of a step.
  if (n.find("optimizer") != std::string::npos) return false;
  return n.find("step") != std::string::npos || n.find("iter") != std::string::npos ||
         n.find("batch") != std::string::npos;
}

uint32_t busiest_device(const Trace& trace) {
  std::map<uint32_t, int64_t> count;
  for (const DeviceOp& op : trace.ops) ++count[trace.streams[op.stream].device];
  uint32_t best = 0;
  int64_t most = -1;
  for (const auto& [device, n] : count) {
    if (n > most) best = device, most = n;
  }
  return best;
}

// The prefix of spans that number at least three and recur like steps; ProfilerStep before others,
// then the one that covers most time.
std::string range_prefix(const Trace& trace) {
  struct Group {
    int64_t count = 0, covered_ns = 0;
  };
  std::map<std::string, Group> groups;
  for (const HostSpan& s : trace.spans) {
    if (s.kind != SpanKind::range) continue;
    const std::string_view prefix = without_number(trace.names[s.name]);
    if (!names_steps(prefix)) continue;
    Group& g = groups[std::string(prefix)];
    ++g.count;
    g.covered_ns += s.end_ns - s.start_ns;
  }
  std::string best;
  int64_t best_ns = -1;
  for (const auto& [prefix, g] : groups) {
    if (g.count < 3) continue;
    if (prefix == "ProfilerStep#") return prefix;
    if (g.covered_ns > best_ns) best = prefix, best_ns = g.covered_ns;
  }
  return best;
}

template <class T>
T median_of(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string StepRule::describe() const {
  switch (by) {
    case By::nothing:
      return "no steps found";
    case By::ranges:
      return fmt::format("marked by ranges \"{}...\"", prefix);
    case By::anchor:
      return fmt::format(
          "{} operation{} a step{}, {:.0f}% of the time explained by their repeating; begins with "
          "{}",
          anchor.usual_ops, anchor.usual_ops == 1 ? "" : "s",
          anchor.with_copies ? "" : " besides copies", 100 * anchor.explained, begins_with);
  }
  return "";
}

StepRule find_step_rule(const Trace& trace, const HostTimeline& host) {
  StepRule rule;
  if (trace.ops.empty()) return rule;
  rule.device = busiest_device(trace);
  rule.prefix = range_prefix(trace);
  if (!rule.prefix.empty()) {
    rule.by = StepRule::By::ranges;
    if (mark_steps(rule, trace, host).begin_ns.size() >= 3) return rule;
  }
  rule.by = StepRule::By::nothing;
  // Another loop may run first, so long that no rule holds for both; or code is made, and tried on
  // the device, for longer than the steps take.
  std::vector<size_t> starts{0, trace.ops.size() / 2, trace.ops.size() / 4 * 3};
  const int64_t made_ns = CompileTimes(trace).last_ns();
  const auto after =
      std::partition_point(trace.ops.begin(), trace.ops.end(),
                           [&](const DeviceOp& op) { return op.start_ns < made_ns; });
  if (after != trace.ops.end()) starts.push_back(static_cast<size_t>(after - trace.ops.begin()));
  for (const size_t left_out : starts) {
    rule.anchor = find_step_anchor(trace, host, rule.device, trace.ops[left_out].start_ns);
    if (rule.anchor.explained == 0) continue;
    rule.by = StepRule::By::anchor;
    rule.begins_with = rule.anchor.symbol.name == kNone
                           ? "a graph"
                           : '"' + trace.names[rule.anchor.symbol.name].substr(0, 60) + '"';
    if (mark_steps(rule, trace, host).begin_ns.size() >= 3) return rule;
    rule.by = StepRule::By::nothing;
  }
  return rule;
}

namespace {

StepMarks mark_ranges(const StepRule& rule, const Trace& trace, const HostTimeline& host) {
  std::vector<const HostSpan*> spans;
  for (const HostSpan& s : trace.spans) {
    if (s.kind == SpanKind::range && without_number(trace.names[s.name]) == rule.prefix)
      spans.push_back(&s);
  }
  // The first operation of each range, by the time of its call: spans are in order of start, and a
  // program marks its steps one after the other.
  std::vector<int64_t> first(spans.size(), INT64_MAX);
  for (const DeviceOp& op : trace.ops) {
    if (trace.streams[op.stream].device != rule.device) continue;
    const uint32_t call = host.issuer(op);
    if (call == kNone) continue;
    const int64_t issued = trace.calls[call].start_ns;
    const auto after = std::partition_point(
        spans.begin(), spans.end(), [&](const HostSpan* s) { return s->start_ns <= issued; });
    if (after == spans.begin()) continue;
    const auto i = static_cast<size_t>(after - spans.begin()) - 1;
    first[i] = std::min(first[i], op.start_ns);
  }
  StepMarks marks;
  for (const int64_t t : first) {
    if (t == INT64_MAX || (!marks.begin_ns.empty() && t <= marks.begin_ns.back())) continue;
    marks.begin_ns.push_back(t);
    marks.regular.push_back(true);
  }
  return marks;
}

StepMarks mark_anchors(const StepRule& rule, const Trace& trace, const HostTimeline& host) {
  StepMarks marks;
  const StepAnchor& a = rule.anchor;
  const std::optional<HostCallsBefore> before =
      a.with_calls ? std::optional<HostCallsBefore>(std::in_place, trace, host) : std::nullopt;
  int64_t works = 0, copies = 0;
  for (const DeviceOp& op : trace.ops) {
    const StreamKey& stream = trace.streams[op.stream];
    if (stream.device != rule.device || stream.process != a.process) continue;
    if (is_anchor(a, op, before ? before->of(op) : uint8_t{0}) &&
        (marks.begin_ns.empty() || op.start_ns > marks.begin_ns.back())) {
      if (!marks.begin_ns.empty())
        marks.regular.back() =
            works >= a.least_ops && works <= a.most_ops && copies >= a.least_copies;
      marks.begin_ns.push_back(op.start_ns);
      marks.regular.push_back(false);
      works = copies = 0;
    }
    works += step_work(op, a.with_copies);
    copies += op.kind == OpKind::copy;
  }
  return marks;
}

}  // namespace

StepMarks mark_steps(const StepRule& rule, const Trace& trace, const HostTimeline& host) {
  switch (rule.by) {
    case StepRule::By::nothing:
      return {};
    case StepRule::By::ranges:
      return mark_ranges(rule, trace, host);
    case StepRule::By::anchor:
      return mark_anchors(rule, trace, host);
  }
  return {};
}

constexpr size_t kMostWarmUp = 20;

size_t start_up_steps(const StepMarks& marks) {
  const size_t n = marks.begin_ns.empty() ? 0 : marks.begin_ns.size() - 1;
  int64_t all = 0, odd = 0;
  size_t start = 0;
  for (size_t i = n; i-- > 0;) {
    const int64_t ns = marks.begin_ns[i + 1] - marks.begin_ns[i];
    all += ns;
    odd += marks.regular[i] ? 0 : ns;
    if (marks.regular[i] && odd * 20 <= all) start = i;
  }
  // A pause after many steps one after the other interrupts them: it is no start.
  for (size_t i = 0, run = 0; i < std::min(start, n); ++i) {
    run = marks.regular[i] ? run + 1 : 0;
    if (run == kMostWarmUp) start = i + 1 - run;
  }
  // Kernels that are tried while they are compiled begin many short steps that are none.
  const auto regular_in = [&](size_t from, size_t to) {
    return std::count(marks.regular.begin() + static_cast<std::ptrdiff_t>(from),
                      marks.regular.begin() + static_cast<std::ptrdiff_t>(to), true);
  };
  const bool most_follow = start <= n / 2 || regular_in(0, start) <= regular_in(start, n);
  return most_follow ? start : 0;
}

namespace {

std::vector<int64_t> durations_of(const StepMarks& marks) {
  std::vector<int64_t> durations;
  for (size_t i = 1; i < marks.begin_ns.size(); ++i)
    durations.push_back(marks.begin_ns[i] - marks.begin_ns[i - 1]);
  return durations;
}

}  // namespace

size_t steps_after_compiling(const StepMarks& marks, const Trace& trace) {
  constexpr size_t kRarely = 33, kFewest = 20;
  const size_t n = marks.begin_ns.empty() ? 0 : marks.begin_ns.size() - 1;
  if (n < kFewest) return 0;
  const std::vector<int64_t> durations = durations_of(marks);
  const int64_t usual = median_of(durations);
  const CompileTimes compiling(trace);
  size_t times = 0, after = 0;
  int64_t all = 0;
  for (size_t i = 0; i < n; ++i) {
    if (durations[i] < 2 * usual) continue;  // a device that has work left does not wait for it
    const int64_t ns = compiling.total_ns(marks.begin_ns[i], marks.begin_ns[i + 1]);
    if (2 * ns < durations[i]) continue;
    ++times;
    all += ns;
    after = i + 1;
  }
  const bool much = 5 * all >= marks.begin_ns[n] - marks.begin_ns[0];
  const bool enough = n - after >= kFewest && 3 * (n - after) >= n;
  return times > 0 && kRarely * times <= n && much && enough ? after : 0;
}

size_t steps_after_pauses(const StepMarks& marks) {
  constexpr size_t kFewest = 20, kRarely = 33;
  constexpr int64_t kPause = 30;  // usual steps
  const size_t n = marks.begin_ns.empty() ? 0 : marks.begin_ns.size() - 1;
  if (n < kFewest) return 0;
  const std::vector<int64_t> durations = durations_of(marks);
  const int64_t usual = median_of(durations);
  size_t pauses = 0, after = 0;
  int64_t all = 0;
  for (size_t i = 0; i < n; ++i) {
    if (durations[i] < kPause * usual) continue;
    ++pauses;
    all += durations[i];
    after = i + 1;
  }
  const bool much = 20 * all >= marks.begin_ns[n] - marks.begin_ns[0];
  return pauses > 0 && kRarely * pauses <= n && much && n >= 3 * after + kFewest ? after : 0;
}

size_t warm_up_steps(const std::vector<int64_t>& durations_ns) {
  if (durations_ns.size() < 4) return 0;
  const double limit = 1.25 * static_cast<double>(median_of(durations_ns));
  size_t n = 0;
  while (n < std::min(kMostWarmUp, durations_ns.size() / 2) &&
         static_cast<double>(durations_ns[n]) > limit)
    ++n;
  // One that stands out soon after: something was made for the first time.
  const size_t early = std::min(durations_ns.size() / 4, kMostWarmUp);
  for (size_t i = n; i < early; ++i) {
    if (static_cast<double>(durations_ns[i]) > 8 * limit) n = i + 1;
  }
  return n;
}

double step_drift(const std::vector<int64_t>& durations_ns) {
  const size_t n = durations_ns.size();
  if (n < 12) return 1;
  const size_t quarter = n / 4, stride = std::max<size_t>(1, n / 512);
  const auto begin = durations_ns.begin();
  const auto early = static_cast<double>(
      median_of(std::vector(begin, begin + static_cast<std::ptrdiff_t>(quarter))));
  const auto late = static_cast<double>(median_of(
      std::vector(durations_ns.end() - static_cast<std::ptrdiff_t>(quarter), durations_ns.end())));
  if (early <= 0) return 1;
  int64_t agree = 0, pairs = 0;
  for (size_t i = 0; i < n; i += stride) {
    for (size_t j = i + stride; j < n; j += stride) {
      ++pairs;
      agree += (durations_ns[j] > durations_ns[i]) == (late > early);
    }
  }
  return static_cast<double>(agree) >= 0.7 * static_cast<double>(pairs) ? late / early : 1;
}

}  // namespace saturate::observe
