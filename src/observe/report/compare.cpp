// SPDX-License-Identifier: Apache-2.0
#include "observe/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "observe/report/counters_rows.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

// Of a gate's metric in nanoseconds (launches: count), per step or of the whole capture.
double metric_of(const Diagnosis& g, const std::string& metric, bool per_step) {
  const StepAnalysis& st = g.analysis.steps;
  const DeviceAnalysis& d = g.device();
  const auto steps = static_cast<double>(per_step ? st.count + st.irregular : 1);
  if (metric == "step") return per_step ? st.median_ns : static_cast<double>(d.to_ns - d.from_ns);
  if (metric == "busy") return static_cast<double>(d.budget.busy_ns()) / steps;
  if (metric == "idle")
    return static_cast<double>(d.budget.total_ns() - d.budget.busy_ns()) / steps;
  if (metric == "launches") return static_cast<double>(d.launches) / steps;
  for (size_t l = 0; l < kLeaves; ++l) {
    if (leaf_info(static_cast<Leaf>(l)).id == metric)
      return static_cast<double>(d.budget.ns[l]) / steps;
  }
  return 0;
}

std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names = {"step", "idle", "busy", "launches"};
  for (size_t l = 0; l < kLeaves; ++l) names.push_back(leaf_info(static_cast<Leaf>(l)).id);
  return names;
}

double launch_call_ns(const DeviceAnalysis& d) {
  return d.launches > 0 ? static_cast<double>(d.launch_ns) / static_cast<double>(d.launches) : 0;
}

// Of copies to the device, in bytes a second.
double copy_rate(const DeviceAnalysis& d) {
  int64_t bytes = 0, ns = 0;
  for (const auto& [key, c] : d.copies) {
    if (key.first != CopyKind::host_to_device) continue;
    bytes += c.bytes;
    ns += c.total_ns;
  }
  return ns > 0 ? static_cast<double>(bytes) * 1e9 / static_cast<double>(ns) : 0;
}

std::string change(double a, double b) {
  if (a <= 0) return b > 0 ? "new" : "";
  return fmt::format("{:+.1f}%", 100 * (b - a) / a);
}

}  // namespace

Gate parse_gate(const std::string& text) {
  const size_t sign = text.find('>');
  const auto bad = [&](const std::string& problem) {
    throw Error(
        Errc::invalid_argument, "doctor",
        fmt::format("--fail-if {}: {}; write METRIC>PERCENT% such as step>3%", text, problem));
  };
  if (sign == std::string::npos) bad("no '>' in it");
  Gate gate;
  gate.metric = trim(std::string_view(text).substr(0, sign));
  const std::vector<std::string_view> names = metric_names();
  if (std::find(names.begin(), names.end(), gate.metric) == names.end()) {
    std::string all;
    for (const std::string_view n : names) all += fmt::format("{}{}", all.empty() ? "" : ", ", n);
    bad(fmt::format("no metric '{}'{}; there are {}", gate.metric, did_you_mean(gate.metric, names),
                    all));
  }
  std::string_view number = trim(std::string_view(text).substr(sign + 1));
  if (number.ends_with('%')) number.remove_suffix(1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), gate.percent);
  if (error != std::errc{} || end != number.data() + number.size() ||
      !(gate.percent >= 0 && gate.percent < 1e6))
    bad("the limit is no percentage from 0 to 1000000");
  return gate;
}

Comparison compare(const Diagnosis& a, const Diagnosis& b, const std::vector<Gate>& gates) {
  const bool steps = a.analysis.steps.found && b.analysis.steps.found;
  if (!steps && !gates.empty())
    throw Error(Errc::invalid_argument, "doctor",
                fmt::format("--fail-if: no steps are found in {}, so there is nothing to hold the "
                            "limits against; record more steps, or mark them (ProfilerStep#, NVTX)",
                            printable(a.analysis.steps.found ? b.file : a.file)));
  Comparison c;
  c.text = fmt::format("A  {}: {}\nB  {}: {}\n\n{:<38} {:>10} {:>10} {:>9}\n", printable(a.file),
                       a.verdict.headline, printable(b.file), b.verdict.headline,
                       steps ? "per step" : "whole captures", "A", "B", "change");
  const auto row = [&](std::string_view title, const std::string& metric, bool time = true) {
    const double x = metric_of(a, metric, steps), y = metric_of(b, metric, steps);
    if (x <= 0 && y <= 0) return;
    const auto show = [&](double v) { return time ? format_ns(v) : fmt::format("{:.1f}", v); };
    c.text += fmt::format("{:<38} {:>10} {:>10} {:>9}\n", title, show(x), show(y), change(x, y));
  };
  row(steps ? "step time, median" : "length", "step");
  row("device busy", "busy");
  row("device idle", "idle");
  row("launches", "launches", false);
  const double call_a = launch_call_ns(a.device()), call_b = launch_call_ns(b.device());
  if (call_a > 0 && call_b > 0)
    c.text += fmt::format("{:<38} {:>10} {:>10} {:>9}\n", "one launch call, mean",
                          format_ns(call_a), format_ns(call_b), change(call_a, call_b));
  const double rate_a = copy_rate(a.device()), rate_b = copy_rate(b.device());
  if (rate_a > 0 && rate_b > 0)
    c.text += fmt::format("{:<38} {:>10} {:>10} {:>9}\n", "copies to the device",
                          fmt::format("{:.1f} GB/s", rate_a * 1e-9),
                          fmt::format("{:.1f} GB/s", rate_b * 1e-9), change(rate_a, rate_b));
  for (size_t l = 0; l < kLeaves; ++l) {
    const LeafInfo& info = leaf_info(static_cast<Leaf>(l));
    row(fmt::format("  {}{}", is_busy(static_cast<Leaf>(l)) ? "" : "idle: ", info.title),
        std::string(info.id));
  }
  for (const CounterInfo& info : counter_infos()) {
    const std::optional<double> x = counter_mean(a.counters, info);
    const std::optional<double> y = counter_mean(b.counters, info);
    if (x && y)
      c.text += fmt::format("{:<38} {:>10} {:>10} {:>9}\n", fmt::format("  seen: {}", info.title),
                            counter_text(info, *x), counter_text(info, *y), change(*x, *y));
  }
  if (steps)
    c.text += fmt::format("\nB is {:.2f} times as fast as A\n",
                          a.analysis.steps.median_ns / std::max(1.0, b.analysis.steps.median_ns));
  else
    c.text += "\nno steps in one of the captures: all figures are of their whole length\n";
  for (const Gate& gate : gates) {
    const double x = metric_of(a, gate.metric, steps), y = metric_of(b, gate.metric, steps);
    const auto shown = [&](double v) {
      return gate.metric == "launches" ? fmt::format("{:.1f}", v) : format_ns(v);
    };
    if (y > x * (1 + gate.percent / 100))
      c.failed.push_back(fmt::format("{} rose from {} to {} ({}), more than {:g}%", gate.metric,
                                     shown(x), shown(y), change(x, y), gate.percent));
  }
  return c;
}

}  // namespace saturate::observe
