// SPDX-License-Identifier: Apache-2.0
#include "observe/report/html_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/svg.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

// Leaves are too many for colours: these groups share one each.
struct LeafGroup {
  std::string_view name, colour;
};
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

// The group of each leaf, in their order.
constexpr std::array<uint8_t, kLeaves> kGroupOf = {
    0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4,  4, 4, 4,  // kernels, communication, copies
    5, 5, 6, 7, 8, 8, 8, 9, 9, 5, 10, 6, 6, 6, 6, 6, 6, 10, 10, 10, 10};  // idle
static_assert(kGroupOf[static_cast<size_t>(Leaf::fill)] == 4 &&
              kGroupOf[static_cast<size_t>(Leaf::allocator)] == 9 &&
              kGroupOf[static_cast<size_t>(Leaf::gil)] == 6);

std::array<int64_t, kGroups.size()> by_group(const Budget& budget) {
  std::array<int64_t, kGroups.size()> sums{};
  for (size_t l = 0; l < kLeaves; ++l) sums[kGroupOf[l]] += budget.ns[l];
  return sums;
}

constexpr double kWidth = 960, kHeight = 160;

}  // namespace

std::string legend() {
  std::string html = "<p class=\"parts\">";
  for (const LeafGroup& g : kGroups)
    html += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ", g.colour, g.name);
  return html + "</p>\n";
}

std::string budget_bar(const Budget& budget) {
  const auto total = static_cast<double>(std::max<int64_t>(1, budget.total_ns()));
  Svg svg(0, 0, kWidth, 40, "shares of the time");
  double x = 0;
  const auto sums = by_group(budget);
  for (size_t g = 0; g < sums.size(); ++g) {
    const double share = static_cast<double>(sums[g]) / total;
    svg.rect(x, 0, share * kWidth, 40, kGroups[g].colour,
             fmt::format("{}: {:.1f}%", kGroups[g].name, 100 * share));
    x += share * kWidth;
  }
  return svg.str();
}

std::string timeline_chart(const DeviceAnalysis& d) {
  if (d.timeline.empty()) return "";
  Svg svg(0, 0, kWidth, kHeight + 18, "shares over time");
  const double width = kWidth / static_cast<double>(d.timeline.size());
  for (size_t i = 0; i < d.timeline.size(); ++i) {
    const auto sums = by_group(d.timeline[i].budget);
    double y = kHeight;
    for (size_t g = 0; g < sums.size(); ++g) {
      const double h = kHeight * static_cast<double>(sums[g]) / static_cast<double>(d.bucket_ns);
      y -= h;
      if (h >= 0.5) svg.rect(static_cast<double>(i) * width, y, width + 0.05, h, kGroups[g].colour);
    }
  }
  svg.text(0, kHeight + 15, Svg::Anchor::start, "0");
  svg.text(kWidth, kHeight + 15, Svg::Anchor::end,
           format_ns(static_cast<double>(d.to_ns - d.from_ns)));
  return svg.str();
}

std::string step_chart(const StepAnalysis& st) {
  if (st.steps.size() < 2) return "";
  constexpr double kLeft = 60;
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
  Svg svg(0, 0, kWidth, kHeight + 18, "step times");
  const double width = (kWidth - kLeft) / static_cast<double>(points);
  const double bar = std::max(width * 0.9, 0.5);
  for (size_t p = 0; p < points; ++p) {
    const double h = kHeight * shown[p].first / most, busy = kHeight * shown[p].second / most;
    const double x = kLeft + static_cast<double>(p) * width;
    svg.rect(x, kHeight - h, bar, h - busy, "#e57373");
    svg.rect(x, kHeight - busy, bar, busy, "#1f5fa8",
             fmt::format("{}, busy {}", format_ns(shown[p].first), format_ns(shown[p].second)));
  }
  svg.text(0, 12, Svg::Anchor::start, format_ns(most)).text(0, kHeight, Svg::Anchor::start, "0");
  svg.text(kLeft, kHeight + 15, Svg::Anchor::start, "step 1");
  svg.text(kWidth, kHeight + 15, Svg::Anchor::end, std::to_string(n));
  return svg.str() + "<p class=\"note\">Blue: the device was busy. Red: idle.</p>\n";
}

}  // namespace saturate::observe
