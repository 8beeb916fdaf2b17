// SPDX-License-Identifier: Apache-2.0
#include "observe/report/html_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "observe/report/text.h"

namespace saturate::observe {
namespace {

constexpr std::array<LeafGroup, 11> kGroups = {{
    {"tensor-core and matrix kernels", "#1f5fa8"},
    {"other kernels", "#5b9bd5"},
    {"small kernels", "#9cc9e8"},
    {"communication", "#7b5ea7"},
    {"copies", "#e08e2b"},
    {"idle: launching", "#c0392b"},
    {"idle: host code", "#e57373"},
    {"idle: waiting for data", "#f2c744"},
    {"idle: synchronisation", "#8d6e63"},
    {"idle: allocation, loading", "#4caf93"},
    {"idle: other", "#b0b0b0"},
}};

constexpr size_t group_index(Leaf leaf) {
  switch (leaf) {
    case Leaf::tensor:
    case Leaf::matrix:
      return 0;
    case Leaf::memory_bound:
    case Leaf::other_kernel:
    case Leaf::graph:
      return 1;
    case Leaf::low_grid:
    case Leaf::tiny:
      return 2;
    case Leaf::communication:
      return 3;
    case Leaf::copy_in_pageable:
    case Leaf::copy_in:
    case Leaf::copy_out_pageable:
    case Leaf::copy_out:
    case Leaf::copy_device:
    case Leaf::fill:
      return 4;
    case Leaf::launch:
    case Leaf::launch_latency:
    case Leaf::other_call:
      return 5;
    case Leaf::host_code:
    case Leaf::gil:
    case Leaf::runnable:
      return 6;
    case Leaf::loader:
      return 7;
    case Leaf::sync:
    case Leaf::after_sync:
    case Leaf::blocking_copy:
      return 8;
    case Leaf::allocator:
    case Leaf::code_load:
      return 9;
    default:
      return 10;
  }
}

std::array<int64_t, kGroups.size()> by_group(const Budget& budget) {
  std::array<int64_t, kGroups.size()> sums{};
  for (size_t l = 0; l < kLeaves; ++l) sums[group_index(static_cast<Leaf>(l))] += budget.ns[l];
  return sums;
}

constexpr int kWidth = 960;

std::string rect(double x, double y, double w, double h, std::string_view colour,
                 const std::string& title) {
  if (w <= 0 || h <= 0) return "";
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\">{}</rect>", x,
      y, w, h, colour, title.empty() ? "" : "<title>" + title + "</title>");
}

}  // namespace

const LeafGroup& group_of(Leaf leaf) { return kGroups[group_index(leaf)]; }

std::string legend() {
  std::string html = "<p class=\"legend\">";
  for (const LeafGroup& g : kGroups)
    html += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ", g.colour, g.name);
  return html + "</p>\n";
}

std::string budget_bar(const Budget& budget) {
  const auto total = static_cast<double>(std::max<int64_t>(1, budget.total_ns()));
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} 40\" role=\"img\" aria-label=\"shares of the time\">", kWidth);
  double x = 0;
  const auto sums = by_group(budget);
  for (size_t g = 0; g < sums.size(); ++g) {
    const double share = static_cast<double>(sums[g]) / total;
    svg += rect(x, 0, share * kWidth, 40, kGroups[g].colour,
                fmt::format("{}: {:.1f}%", kGroups[g].name, 100 * share));
    x += share * kWidth;
  }
  return svg + "</svg>\n";
}

std::string timeline_chart(const DeviceAnalysis& d) {
  if (d.timeline.empty()) return "";
  constexpr double kHeight = 160;
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"shares over time\">",
                  kWidth, kHeight + 18);
  const double width = static_cast<double>(kWidth) / static_cast<double>(d.timeline.size());
  for (size_t i = 0; i < d.timeline.size(); ++i) {
    const auto sums = by_group(d.timeline[i].budget);
    double y = kHeight;
    for (size_t g = 0; g < sums.size(); ++g) {
      const double h = kHeight * static_cast<double>(sums[g]) / static_cast<double>(d.bucket_ns);
      y -= h;
      if (h >= 0.5)
        svg += rect(static_cast<double>(i) * width, y, width + 0.05, h, kGroups[g].colour, "");
    }
  }
  svg += fmt::format(
      "<text x=\"0\" y=\"{0}\">0</text><text x=\"{1}\" y=\"{0}\" text-anchor=\"end\">{2}</text>",
      kHeight + 15, kWidth, format_ns(static_cast<double>(d.to_ns - d.from_ns)));
  return svg + "</svg>\n";
}

std::string step_chart(const StepAnalysis& st) {
  if (st.steps.size() < 2) return "";
  constexpr double kHeight = 160, kLeft = 60;
  constexpr size_t kPoints = 600;
  const size_t n = st.steps.size(), points = std::min(n, kPoints);
  std::vector<std::pair<double, double>> shown;  // duration, busy
  double most = 0;
  for (size_t p = 0; p < points; ++p) {
    std::pair<double, double> slowest{0, 0};
    for (size_t i = p * n / points; i < (p + 1) * n / points; ++i) {
      const StepStat& s = st.steps[i];
      const auto ns = static_cast<double>(s.end_ns - s.start_ns);
      if (ns > slowest.first) slowest = {ns, static_cast<double>(s.budget.busy_ns())};
    }
    shown.push_back(slowest);
    most = std::max(most, slowest.first);
  }
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"step times\">", kWidth, kHeight + 18);
  const double width = (kWidth - kLeft) / static_cast<double>(points);
  for (size_t p = 0; p < points; ++p) {
    const double h = kHeight * shown[p].first / most, busy = kHeight * shown[p].second / most;
    const double x = kLeft + static_cast<double>(p) * width;
    svg += rect(x, kHeight - h, std::max(width * 0.9, 0.5), h - busy, "#e57373", "");
    svg += rect(x, kHeight - busy, std::max(width * 0.9, 0.5), busy, "#1f5fa8",
                fmt::format("{}, busy {}", format_ns(shown[p].first), format_ns(shown[p].second)));
  }
  svg += fmt::format(
      "<text x=\"0\" y=\"12\">{}</text><text x=\"0\" y=\"{}\">0</text>"
      "<text x=\"{}\" y=\"{}\">step 1</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
      format_ns(most), kHeight, kLeft, kHeight + 15, kWidth, kHeight + 15, n);
  return svg + "</svg>\n<p class=\"note\">Blue: the device was busy. Red: idle.</p>\n";
}

}  // namespace saturate::observe
