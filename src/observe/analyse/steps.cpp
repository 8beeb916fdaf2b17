// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <unordered_map>

#include "observe/analyse/analysis.h"
#include "observe/analyse/names.h"

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

struct Symbol {
  uint32_t name;
  int64_t size;
  uint8_t before;  // HostCallsBefore
  bool operator==(const Symbol&) const = default;
};
struct SymbolHash {
  size_t operator()(const Symbol& s) const {
    return s.name * 0x9E3779B97F4A7C15u ^
           static_cast<size_t>(s.size * 8 + s.before) * 0xC2B2AE3D27D4EB4Fu;
  }
};

// Whether the issuing thread waited for the device (1), allocated (2) or made no call for a while
// (4) between the operation and the one that it issued before: where kernels are all alike, that
// still marks a step's first.
class HostCallsBefore {
 public:
  HostCallsBefore(const Trace& trace, const HostTimeline& host) : host_(host) {
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
        kind = c == CallClass::sync ? 1 : c == CallClass::allocate ? 2 : 0;
      }
      uint8_t& seen = of_thread[call.thread];
      int64_t& end = reach[call.thread];
      if (end != INT64_MAX && call.start_ns - end > kDispatchNs) seen |= 4;
      end = end == INT64_MAX ? call.end_ns : std::max(end, call.end_ns);
      before_[i] = seen;
      seen = issues[i] ? 0 : seen | kind;
    }
  }
  uint8_t of(const DeviceOp& op) const {
    const uint32_t call = host_.issuer(op);
    return call == kNone ? 0 : before_[call];
  }

 private:
  const HostTimeline& host_;
  std::vector<uint8_t> before_;  // by call
};

// The share of positions whose symbol is the same `lag` later, from a sample of them.
double match_at(const std::vector<uint32_t>& symbols, size_t lag) {
  const size_t n = symbols.size() - lag, stride = std::max<size_t>(1, n / 50'000);
  size_t same = 0, seen = 0;
  for (size_t i = 0; i < n; i += stride) {
    ++seen;
    same += symbols[i] == symbols[i + lag];
  }
  return static_cast<double>(same) / static_cast<double>(seen);
}

struct Period {
  size_t lag = 0;
  double match = 0;
};

// Candidates are the usual distances between two occurrences of the same symbol and sums of a few
// neighbouring ones: a step holds each symbol a whole number of times.
Period find_period(const std::vector<uint32_t>& symbols, uint32_t symbol_count) {
  if (symbols.size() < 6) return {};
  std::vector<std::vector<uint32_t>> places(symbol_count);
  for (uint32_t i = 0; i < symbols.size(); ++i) places[symbols[i]].push_back(i);
  std::map<size_t, size_t> votes;
  for (const auto& p : places) {
    if (p.size() < 3) continue;
    for (const size_t together : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96}) {
      if (p.size() < 2 * together + 1) break;
      const size_t at = p.size() / 2 - together / 2;
      votes[p[std::min(at + together, p.size() - 1)] - p[at]] += p.size() / together;
      votes[p.back() - p[p.size() - 1 - together]] += 1;
    }
  }
  std::vector<std::pair<size_t, size_t>> ranked(votes.begin(), votes.end());
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a < b;
  });
  if (ranked.size() > 400) ranked.resize(400);
  std::vector<Period> good;
  double best = 0;
  for (const auto& [lag, n] : ranked) {
    if (lag == 0 || lag * 3 > symbols.size() + lag / 2) continue;  // almost three times
    good.push_back({lag, match_at(symbols, lag)});
    best = std::max(best, good.back().match);
  }
  // Multiples of the period match as well, parts of it less.
  Period chosen;
  for (const Period& p : good) {
    if (p.match >= best - 0.01 && (chosen.lag == 0 || p.lag < chosen.lag)) chosen = p;
  }
  return chosen.match >= 0.85 ? chosen : Period{};
}

template <class T>
T median_of(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

StepRule find_anchor(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from_ns,
                     bool with_calls) {
  StepRule rule;
  rule.device = device;
  rule.with_calls = with_calls;
  const std::optional<HostCallsBefore> before =
      with_calls ? std::optional<HostCallsBefore>(std::in_place, trace, host) : std::nullopt;
  std::vector<int64_t> count(trace.streams.size());
  for (const DeviceOp& op : trace.ops) ++count[op.stream];
  int64_t most = 0;
  uint32_t stream = 0;
  for (uint32_t s = 0; s < trace.streams.size(); ++s) {
    if (trace.streams[s].device == device && count[s] > most) most = count[s], stream = s;
  }
  std::unordered_map<Symbol, uint32_t, SymbolHash> ids;
  std::vector<Symbol> symbols_of;
  std::vector<uint32_t> symbols;
  std::vector<const DeviceOp*> ops;
  for (const DeviceOp& op : trace.ops) {
    if (op.stream != stream || op.start_ns < from_ns) continue;
    const Symbol symbol{op.name, op.kind == OpKind::kernel ? op.size : 0,
                        before ? before->of(op) : uint8_t{0}};
    const auto [at, fresh] = ids.try_emplace(symbol, static_cast<uint32_t>(ids.size()));
    if (fresh) symbols_of.push_back(symbol);
    symbols.push_back(at->second);
    ops.push_back(&op);
  }
  const Period period = find_period(symbols, static_cast<uint32_t>(symbols_of.size()));
  if (period.lag == 0) return rule;
  // Symbols that occur once a period: most distances are a period, give or take a fifth.
  std::vector<std::vector<int64_t>> pauses(symbols_of.size());
  std::vector<size_t> last(symbols_of.size(), SIZE_MAX), good(symbols_of.size()),
      distances(symbols_of.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    const uint32_t at = symbols[i];
    if (last[at] != SIZE_MAX) {
      const size_t distance = i - last[at];
      ++distances[at];
      good[at] += distance * 5 >= period.lag * 4 && distance * 5 <= period.lag * 6;
      pauses[at].push_back(ops[i]->start_ns - ops[i - 1]->end_ns);
    }
    last[at] = i;
  }
  int64_t longest = INT64_MIN;
  for (uint32_t s = 0; s < pauses.size(); ++s) {
    if (distances[s] < 2 || good[s] * 10 < distances[s] * 7) continue;
    // Nor one that did so for a short while only, as copies at the start of a program.
    if (distances[s] * period.lag * 2 < symbols.size()) continue;
    const int64_t pause = median_of(pauses[s]);
    if (pause <= longest) continue;
    longest = pause;
    rule.by = StepRule::By::anchor;
    rule.anchor_name = symbols_of[s].name;
    rule.anchor_size = symbols_of[s].size;
    rule.anchor_before = symbols_of[s].before;
  }
  rule.anchor_stream = stream;
  rule.period_ops = static_cast<int64_t>(period.lag);
  rule.match = period.match;
  return rule;
}

}  // namespace

std::string StepRule::describe() const {
  switch (by) {
    case By::nothing:
      return "no steps found";
    case By::ranges:
      return fmt::format("marked by ranges \"{}...\"", prefix);
    case By::anchor:
      return fmt::format("{} operations repeat ({:.0f}% the same one period later)", period_ops,
                         100 * match);
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
  // Another loop may run first, so long that no rule holds for both.
  for (const size_t left_out : {size_t{0}, trace.ops.size() / 2, trace.ops.size() / 4 * 3}) {
    const int64_t from_ns = trace.ops[left_out].start_ns;
    const StepRule plain = find_anchor(trace, host, rule.device, from_ns, false);
    const StepRule finer = find_anchor(trace, host, rule.device, from_ns, true);
    const bool tells_more = finer.period_ops > plain.period_ops || plain.period_ops == 1;
    const StepRule& found = finer.by == StepRule::By::anchor && tells_more ? finer : plain;
    if (found.by == StepRule::By::anchor) return found;
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
  const std::optional<HostCallsBefore> before =
      rule.with_calls ? std::optional<HostCallsBefore>(std::in_place, trace, host) : std::nullopt;
  int64_t ops = 0;
  for (const DeviceOp& op : trace.ops) {
    if (op.stream != rule.anchor_stream) continue;
    if (op.name == rule.anchor_name && (op.kind != OpKind::kernel || op.size == rule.anchor_size) &&
        (!before || before->of(op) == rule.anchor_before)) {
      if (!marks.begin_ns.empty())
        marks.regular.back() = std::abs(ops - rule.period_ops) * 5 <= rule.period_ops;
      marks.begin_ns.push_back(op.start_ns);
      marks.regular.push_back(false);
      ops = 0;
    }
    ++ops;
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
  return start <= n / 2 ? start : 0;
}

size_t warm_up_steps(const std::vector<int64_t>& durations_ns) {
  if (durations_ns.size() < 4) return 0;
  const double limit = 1.25 * static_cast<double>(median_of(durations_ns));
  size_t n = 0;
  while (n < durations_ns.size() / 2 && static_cast<double>(durations_ns[n]) > limit) ++n;
  // One that stands out soon after: something was made for the first time.
  const size_t early = std::min<size_t>(durations_ns.size() / 4, 20);
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
