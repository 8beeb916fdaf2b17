// SPDX-License-Identifier: Apache-2.0
#include "observe/top/gpu_lines.h"

#include <fmt/format.h>

#include "base/text.h"
#include "observe/top/line.h"

namespace saturate::observe {
namespace {

const char* by_load(std::optional<double> share) {
  if (!share) return kDim;
  return *share >= 0.75 ? kGreen : *share >= 0.1 ? kYellow : kRed;
}

std::optional<double> share_of(std::optional<int> percent) {
  if (!percent) return {};
  return *percent / 100.0;
}

template <class T>
std::string text_of(std::optional<T> value, std::string_view unit) {
  return value ? fmt::format("{:.0f}{}", static_cast<double>(*value), unit)
               : "N/A" + std::string(unit == "%" ? "" : unit);
}

std::string bytes_of(std::optional<int64_t> value) {
  return value ? format_bytes(static_cast<double>(*value)) : "N/A";
}

std::string rate_of(std::optional<double> value) {
  return value ? format_bytes(*value) + "/s" : "N/A";
}

std::optional<double> memory_share(const GpuReading& r) {
  if (!r.memory_used || !r.memory_total || *r.memory_total == 0) return {};
  return static_cast<double>(*r.memory_used) / static_cast<double>(*r.memory_total);
}

void add_bar(Line& line, std::optional<double> share, int width, const View& view,
             const char* style) {
  line.add("[").add(draw_bar(share, width, view.ascii), width, style).add("]");
}

const char* reason_style(const std::optional<uint64_t>& reasons) {
  return reasons && (*reasons & kReasonsHarmful)   ? kRed
         : reasons && (*reasons & kReasonPowerCap) ? kYellow
                                                   : kPlain;
}

std::string reasons_of(const std::optional<uint64_t>& reasons) {
  return reasons ? clock_reason_names(*reasons) : "N/A";
}

}  // namespace

std::string gpu_compact_line(const GpuView& g, const View& view, int width) {
  const GpuReading& r = g.reading;
  Line line(view, width);
  line.add(fmt::format("GPU {:<2} ", g.info.index), -1, kBold);
  if (!r.lost.empty()) return line.add(r.lost, -1, kRed).take();
  const std::optional<double> load = share_of(r.utilisation);
  add_bar(line, load, 10, view, by_load(load));
  line.add(fmt::format(" {:>4}", text_of(r.utilisation, "%")), -1, by_load(load));
  line.add(fmt::format("  mem {}/{}", bytes_of(r.memory_used), bytes_of(r.memory_total)));
  line.add(fmt::format("  {}", text_of(r.power_w, " W")));
  line.add(fmt::format("  {}", text_of(r.temperature_c, " C")));
  line.add(fmt::format("  SM {}", text_of(r.activity.sm, "%")));
  line.add(fmt::format("  {}", reasons_of(r.clock_reasons)), -1, reason_style(r.clock_reasons));
  return line.take();
}

std::vector<std::string> gpu_full_lines(const GpuView& g, const View& view, int width) {
  const GpuReading& r = g.reading;
  const int bar = std::clamp(width / 5, 6, 30);
  std::vector<std::string> lines;
  Line first(view, width);
  first.add(fmt::format("GPU {:<2} ", g.info.index), 7, kBold);
  first.add(g.info.name, std::clamp(width / 4, 21, 24), kBold).add(" ");
  if (!r.lost.empty()) {
    lines.push_back(first.add(r.lost, -1, kRed).take());
    lines.resize(kGpuFullLines);
    return lines;
  }
  const std::optional<double> load = share_of(r.utilisation);
  first.add("util ");
  add_bar(first, load, bar, view, by_load(load));
  first.add(fmt::format(" {:>4}", text_of(r.utilisation, "%")), -1, by_load(load));
  first.add(fmt::format("  {}", text_of(r.power_w, "")) + "/" + text_of(r.power_limit_w, " W"));
  first.add(fmt::format("  {}", text_of(r.temperature_c, " C")));
  if (g.info.mig.value_or(false)) first.add("  MIG", -1, kCyan);
  lines.push_back(first.take());

  Line second(view, width);
  const std::optional<double> memory = memory_share(r);
  second.add("", 7).add(bytes_of(r.memory_used) + " of " + bytes_of(r.memory_total),
                        std::clamp(width / 4, 21, 24));
  second.add(" mem  ");
  add_bar(second, memory, bar, view, memory && *memory > 0.9 ? kRed : kCyan);
  second.add(memory ? fmt::format(" {:>3.0f}%", *memory * 100) : "  N/A");
  second.add(
      fmt::format("  clock {}/{}", text_of(r.sm_mhz, ""), text_of(g.info.max_sm_mhz, " MHz")));
  second.add("  held by: ").add(reasons_of(r.clock_reasons), -1, reason_style(r.clock_reasons));
  lines.push_back(second.take());

  Line third(view, width);
  third.add("", 7);
  const auto counter = [&](const char* name, std::optional<double> value) {
    third.add(fmt::format("{} ", name))
        .add(fmt::format("{:<5}", text_of(value, "%")), -1, value ? by_load(*value / 100) : kDim);
  };
  counter("SM", r.activity.sm);
  counter("tensor", r.activity.tensor);
  counter("DRAM", r.activity.dram);
  third.add(fmt::format(" PCIe in {} out {}", rate_of(r.pcie_received), rate_of(r.pcie_sent)));
  if (r.activity.nvlink_received || r.activity.nvlink_sent)
    third.add(fmt::format("  NVLink in {} out {}", rate_of(r.activity.nvlink_received),
                          rate_of(r.activity.nvlink_sent)));
  lines.push_back(third.take());
  return lines;
}

std::vector<std::string> gpu_plot(const GpuHistory& h, const View& view, int width) {
  constexpr int kLabel = 6;
  const int half = std::max((width - 3) / 2 - kLabel, 0);
  const auto plot = [&](const std::deque<std::optional<double>>& values) {
    return draw_history({values.begin(), values.end()}, half, kPlotLines, view.ascii);
  };
  const auto left = plot(h.utilisation), right = plot(h.memory);
  std::vector<std::string> lines;
  for (size_t i = 0; i < static_cast<size_t>(kPlotLines); ++i) {
    const char* scale = i == 0 ? "100%" : i + 1 == kPlotLines ? "0%" : "";
    const char* names[2] = {i == 1 ? "util" : scale, i == 1 ? "mem" : scale};
    Line line(view, width);
    line.add(fmt::format("{:>4}|", names[0]), kLabel - 1, kDim)
        .add(left[i], half, kGreen)
        .add("  ");
    line.add(fmt::format("{:>4}|", names[1]), kLabel - 1, kDim).add(right[i], half, kCyan);
    lines.push_back(line.take());
  }
  return lines;
}

}  // namespace saturate::observe
