// SPDX-License-Identifier: Apache-2.0
// Memory over time, as inline SVG.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "observe/report/html_charts.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

constexpr double kWidth = 960, kHeight = 160, kLeft = 80;

}  // namespace

std::string memory_chart(const std::vector<MemoryLine>& lines) {
  double most = 0;
  int64_t first_ns = INT64_MAX, end_ns = INT64_MIN;
  for (const MemoryLine& line : lines) {
    if (line.curve->samples() < 2) continue;
    most = std::max(most, line.curve->most());
    first_ns = std::min(first_ns, line.curve->first_ns());
    end_ns = std::max(end_ns, line.curve->first_ns() + line.curve->points().back().time_ns);
  }
  if (most <= 0 || end_ns <= first_ns) return "";
  const auto x = [&](int64_t ns) {
    return kLeft + (kWidth - kLeft) * static_cast<double>(ns - first_ns) /
                       static_cast<double>(end_ns - first_ns);
  };
  const auto y = [&](double bytes) { return kHeight * (1.05 - bytes / most) / 1.05; };
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"memory over time\">",
                  kWidth, kHeight + 18);
  std::string names;
  for (const MemoryLine& line : lines) {
    if (line.curve->samples() < 2) continue;
    // Memory stays as it is until the next sample.
    std::string path;
    for (const Curve::Point& p : line.curve->points()) {
      const double at = x(line.curve->first_ns() + p.time_ns), high = y(p.most);
      path += path.empty() ? fmt::format("M{:.1f} {:.1f}", at, high)
                           : fmt::format("H{:.1f}V{:.1f}", at, high);
    }
    svg += fmt::format("<path d=\"{}H{:.1f}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>",
                       path, kWidth, line.colour);
    names += fmt::format("<span><i style=\"background:{}\"></i>{}, most {}</span> ", line.colour,
                         line.name, format_bytes(line.curve->most()));
  }
  svg += fmt::format(
      "<text x=\"0\" y=\"{:.1f}\">{}</text><text x=\"0\" y=\"{}\">0</text>"
      "<text x=\"{}\" y=\"{}\">0</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
      y(most) + 10, format_bytes(most), kHeight, kLeft, kHeight + 15, kWidth, kHeight + 15,
      format_ns(static_cast<double>(end_ns - first_ns)));
  return svg + "</svg>\n<p class=\"legend\">" + names + "</p>\n";
}

}  // namespace saturate::observe
