// SPDX-License-Identifier: Apache-2.0
#include "observe/report/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/html.h"
#include "base/line_chart.h"
#include "base/text.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

bool drifts(double growth, double last) {
  return growth >= kMemoryDrift && last * (1 - 1 / growth) >= kMemoryDriftBytes;
}

// Of the last three quarters of the time, spread over its steps; 0 where there are none.
double growth_a_step(const Diagnosis& g, const DeviceAnalysis& d) {
  const double steps = 0.75 * static_cast<double>(d.to_ns - d.from_ns) / g.analysis.steps.mean_ns;
  return g.analysis.steps.found && steps >= 1
             ? d.memory.allocated.most() * (1 - 1 / d.memory.growth) / steps
             : 0;
}

// Of the memory that a GPU's driver shows: an allocator takes it in large pieces.
double growth_of(const Curve& used) { return lasting_growth(used.points()); }

// Over the seconds since the first sample; empty when no curve has two samples and a duration.
std::string memory_chart(const std::string& of,
                         const std::vector<std::pair<const char*, const Curve*>>& curves) {
  int64_t first_ns = INT64_MAX;
  double most = 0, seconds = 0;
  for (const auto& [name, curve] : curves) {
    if (!curve->empty()) first_ns = std::min(first_ns, curve->first_ns());
    most = std::max(most, curve->most());
  }
  const bool gib = most >= 0x1p30;
  Chart chart{.title = of + ", memory over time",
              .unit = gib ? " GiB" : " MiB",
              .series = {},
              .marks = {},
              .x_name = "second",
              .from_zero = true};
  for (const auto& [name, curve] : curves) {
    if (curve->samples() < 2) continue;
    ChartSeries& s = chart.series.emplace_back();
    s.name = fmt::format("{}, most {}", name, format_bytes(curve->most()));
    for (const Curve::Point& p : curve->points()) {
      s.x.push_back(1e-9 * static_cast<double>(curve->first_ns() + p.time_ns - first_ns));
      s.y.push_back((gib ? 0x1p-30 : 0x1p-20) * p.most);
    }
    seconds = std::max(seconds, s.x.back());
  }
  return most > 0 && seconds > 0 ? render_chart(chart) : "";
}

}  // namespace

std::string memory_drift(const Diagnosis& g) {
  std::string what;
  for (const DeviceAnalysis& d : g.analysis.devices)
    if (drifts(d.memory.growth, d.memory.allocated.most())) {
      what = fmt::format("what the program allocates on device {} grew {:.2f}x", d.device,
                         d.memory.growth);
      if (const double bytes = growth_a_step(g, d); bytes >= 1)
        what += fmt::format(", about {} a step,", format_bytes(bytes));
    }
  for (const auto& [gpu, used] : g.counters.memory)
    if (what.empty() && drifts(growth_of(used), used.most()))
      what = fmt::format("the memory used of GPU {} grew {:.2f}x", gpu, growth_of(used));
  if (what.empty()) return "";
  return what +
         " from the first to the last quarter, and still grows: search for tensors that stay alive "
         "(losses kept with their graph, a cache, a list that grows), before memory runs out";
}

std::string memory_text(const Diagnosis& g) {
  std::string out;
  bool by_calls = false;
  for (const DeviceAnalysis& d : g.analysis.devices) {
    const MemoryUse& m = d.memory;
    if (m.allocated.empty()) continue;
    by_calls = m.by_calls;
    out +=
        fmt::format("  device {}: at most {} allocated of {} reserved; {} to {} over the capture\n",
                    d.device, format_bytes(m.allocated.most()), format_bytes(m.reserved.most()),
                    format_bytes(m.allocated.first()), format_bytes(m.allocated.last()));
  }
  if (out.empty()) return "";
  return (by_calls ? "\nMemory that the program took from CUDA (its calls; a framework's allocator "
                     "keeps and reuses it)\n"
                   : "\nMemory of the program's allocator\n") +
         out;
}

std::string memory_html(const Diagnosis& g) {
  std::string html;
  for (const DeviceAnalysis& d : g.analysis.devices) {
    const std::string chart =
        memory_chart(fmt::format("Device {}", d.device),
                     {{"allocated", &d.memory.allocated}, {"reserved", &d.memory.reserved}});
    if (!chart.empty())
      html +=
          fmt::format("<p>Device {}, by the program's {}</p>\n", d.device,
                      d.memory.by_calls ? "calls to CUDA (cudaMalloc and the like)" : "allocator") +
          chart;
  }
  for (const auto& [gpu, used] : g.counters.memory) {
    const std::string chart = memory_chart(fmt::format("GPU {}", gpu), {{"used", &used}});
    if (!chart.empty())
      html += fmt::format(
                  "<p>GPU {}, by the driver: the program's, or all processes' where it tells no "
                  "more</p>\n",
                  gpu) +
              chart;
  }
  if (html.empty()) return "";
  const std::string drift = memory_drift(g);
  return "<h2>Memory</h2>\n" + html +
         (drift.empty() ? "" : "<p><b>Drift</b>: " + escape_html(drift) + ".</p>\n");
}

}  // namespace saturate::observe
