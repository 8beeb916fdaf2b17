// SPDX-License-Identifier: Apache-2.0
#include "observe/report/counters_rows.h"

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

std::string with_unit(CounterUnit unit, double v) {
  switch (unit) {
    case CounterUnit::percent:
      return fmt::format("{:.0f}%", v);
    case CounterUnit::bytes:
      return format_bytes(v);
    case CounterUnit::bytes_per_s:
      return format_bytes(v) + "/s";
    case CounterUnit::watts:
      return fmt::format("{:.0f} W", v);
    case CounterUnit::mhz:
      return fmt::format("{:.0f} MHz", v);
    case CounterUnit::cores:
      return fmt::format("{:.2f} cores", v);
    case CounterUnit::per_s:
      return format_count(v) + "/s";
  }
  return "";
}

// What one step takes of a rate.
std::string of_a_step(CounterUnit unit, double v) {
  if (unit == CounterUnit::watts) return fmt::format("{:.3g} J", v);
  if (unit == CounterUnit::bytes_per_s) return format_bytes(v);
  return fmt::format("{:.3g}", v);
}

}  // namespace

std::vector<CounterRow> counter_rows(const Counters& counters, double step_ns) {
  std::vector<CounterRow> rows;
  for (const Counter& c : counters.values) {
    const CounterUnit unit = c.info->unit;
    CounterRow row{c.gpu,
                   c.info->title,
                   with_unit(unit, c.range.mean),
                   with_unit(unit, c.range.least) + " to " + with_unit(unit, c.range.most),
                   "",
                   c.info->meaning};
    if (c.info->per_step && step_ns > 0)
      row.per_step = of_a_step(unit, c.range.mean * step_ns * 1e-9);
    if (unit == CounterUnit::bytes) {  // of memory the peak and its growth are asked for
      const double grown = c.last - c.first;
      row.range = "most " + with_unit(unit, c.range.most) + ", " + (grown < 0 ? "-" : "+") +
                  format_bytes(std::abs(grown));
    }
    const auto held = counters.clocks_held_by.find(c.gpu);
    if (unit == CounterUnit::mhz && held != counters.clocks_held_by.end() && held->second != "none")
      row.meaning = "held down by: " + held->second;
    const auto clock = counters.clocks.find(c.gpu);
    if (unit == CounterUnit::mhz && clock != counters.clocks.end() && clock->second.held > 0)
      row.meaning =
          fmt::format("held down in {:.0f}% of the samples with work: {}",
                      100.0 * clock->second.held / clock->second.samples, held_by(clock->second));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string counter_text(const CounterInfo& info, double value) {
  return with_unit(info.unit, value);
}

std::optional<double> counter_mean(const Counters& counters, const CounterInfo& info) {
  std::optional<Range> all;
  for (const Counter& c : counters.values)
    if (c.info == &info) add(all, std::optional<double>(c.range.mean));
  if (!all) return {};
  return all->mean;
}

std::string counter_group(const Counters& counters, int gpu) {
  if (gpu < 0) return "processes and machine";
  const auto name = counters.gpus.find(gpu);
  return fmt::format("GPU {}{}", gpu,
                     name == counters.gpus.end() ? "" : ", " + printable(name->second));
}

std::string counters_text(const Counters& counters, double step_ns) {
  if (counters.empty() && counters.no_gpu.empty()) return "";
  std::string out =
      fmt::format("\nSeen from outside, {:.1f} s: mean (range), a step\n", counters.seconds);
  if (!counters.no_gpu.empty()) out += "  no GPU counters: " + printable(counters.no_gpu) + "\n";
  int group = -2;
  for (const CounterRow& row : counter_rows(counters, step_ns)) {
    if (row.gpu != group) out += " " + counter_group(counters, row.gpu) + "\n";
    group = row.gpu;
    out += fmt::format("  {:<21} {:>12} {:<26} {:>10}  {}\n", row.title, row.mean,
                       "(" + row.range + ")", row.per_step, row.meaning);
  }
  return out;
}

}  // namespace saturate::observe
