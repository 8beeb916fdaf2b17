// SPDX-License-Identifier: Apache-2.0
#include "base/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/html.h"
#include "base/svg.h"

namespace saturate {
namespace {

// The drawing, in SVG units; the page scales it.
constexpr double kWidth = 640, kHeight = 250, kLeft = 58, kRight = 14, kTop = 10, kBottom = 28;
constexpr size_t kMostPoints = 400;  // about one per 1.5 units of width

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void include(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

// A series as drawn: the mean of each group of points, and the least and greatest of it.
struct Thinned {
  std::vector<double> x, mean, low, high;
  bool grouped = false;
};

Thinned thin(const ChartSeries& s) {
  const size_t group = (s.x.size() + kMostPoints - 1) / kMostPoints;
  Thinned t;
  t.grouped = group > 1;
  for (size_t begin = 0; begin < s.x.size(); begin += group) {
    const size_t end = std::min(begin + group, s.x.size());
    Range range;
    double sum = 0, count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(s.y[i])) continue;
      range.include(s.y[i]);
      sum += s.y[i];
      count += 1;
    }
    t.x.push_back(s.x[end - 1]);
    t.mean.push_back(sum / count);  // NaN for an empty group: a gap
    t.low.push_back(range.low);
    t.high.push_back(range.high);
  }
  return t;
}

struct Axes {
  Range x, y;
  double px(double v) const {
    return kLeft + (v - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  double py(double v) const {
    return kHeight - kBottom - (v - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
};

// Widens x to the whole run, y to whole ticks, and a range of one value.
Axes make_axes(const std::vector<Thinned>& all, const Chart& chart) {
  Axes axes;
  for (const auto& t : all) {
    for (size_t i = 0; i < t.x.size(); ++i) {
      if (!std::isfinite(t.mean[i])) continue;
      axes.x.include(t.x[i]);
      axes.y.include(t.mean[i]);
    }
  }
  if (axes.y.empty()) return axes;
  axes.x.include(0);
  axes.x.include(chart.last_x);
  if (axes.x.low == axes.x.high) axes.x.high += 1;
  if (chart.from_zero) axes.y.include(0);
  if (axes.y.low == axes.y.high) {
    const double margin = axes.y.low == 0 ? 1 : std::abs(axes.y.low) * 0.1;
    if (axes.y.low > 0 || !chart.from_zero) axes.y.low -= margin;
    axes.y.high += margin;
  }
  const double step = tick_step(axes.y.low, axes.y.high, 5);
  axes.y.low = std::floor(axes.y.low / step + 1e-9) * step;
  axes.y.high = std::ceil(axes.y.high / step - 1e-9) * step;
  return axes;
}

std::string tick_text(double value, double step) {
  if (value == 0) return "0";
  if (step < 1e-3) return fmt::format("{:.3g}", value);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  if (step >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (step >= 1000) return fmt::format("{:g}k", value / 1000);
  return fmt::format("{:.{}f}", value, decimals);
}

void draw_grid(Svg& svg, const Axes& a, const Chart& chart) {
  const double y_step = tick_step(a.y.low, a.y.high, 5);
  const auto lines = static_cast<int64_t>(std::llround((a.y.high - a.y.low) / y_step));
  for (int64_t i = 0; i <= lines; ++i) {
    double v = a.y.low + static_cast<double>(i) * y_step;
    if (std::abs(v) < 1e-9 * y_step) v = 0;
    svg.path(fmt::format("M{} {:.1f}H{}", kLeft, a.py(v), kWidth - kRight), R"(class="grid")");
    svg.text(kLeft - 7, a.py(v) + 4, Svg::Anchor::end,
             tick_text(v, y_step) + (v == 0 ? "" : chart.unit));
  }
  const double least = chart.x_name == "step" ? 1 : 0;
  const double x_step = std::max(least, tick_step(a.x.low, a.x.high, 6));
  for (double v = std::ceil(a.x.low / x_step) * x_step; v <= a.x.high; v += x_step)
    svg.text(a.px(v), kHeight - 8, Svg::Anchor::middle, tick_text(v, x_step));
  for (const double mark : chart.marks) {
    if (mark < a.x.low || mark > a.x.high) continue;
    svg.path(fmt::format("M{:.1f} {}V{}", a.px(mark), kTop, kHeight - kBottom), R"(class="mark")",
             fmt::format("resumed at step {}", mark));
  }
}

// Lines between neighbours that are finite; a value alone between gaps becomes a dot.
std::string line_path(const Axes& a, const Thinned& t) {
  std::string d;
  for (size_t i = 0; i < t.x.size(); ++i) {
    if (!std::isfinite(t.mean[i])) continue;
    const bool joined = i > 0 && std::isfinite(t.mean[i - 1]);
    d += fmt::format("{}{:.1f} {:.1f}", joined ? "L" : "M", a.px(t.x[i]), a.py(t.mean[i]));
    if (!joined) d += "h0";  // with round caps a dot
  }
  return d;
}

std::string band_path(const Axes& a, const Thinned& t) {
  std::string d;
  for (size_t begin = 0; begin < t.x.size();) {
    size_t end = begin;
    while (end < t.x.size() && std::isfinite(t.mean[end])) ++end;
    if (end - begin > 1) {
      for (size_t i = begin; i < end; ++i) {
        d += fmt::format("{}{:.1f} {:.1f}", i == begin ? "M" : "L", a.px(t.x[i]), a.py(t.high[i]));
      }
      for (size_t i = end; i-- > begin;) {
        d += fmt::format("L{:.1f} {:.1f}", a.px(t.x[i]), a.py(t.low[i]));
      }
      d += "Z";
    }
    begin = std::max(end, begin + 1);
  }
  return d;
}

std::string json_numbers(const std::vector<double>& values) {
  std::string json = "[";
  for (const double v : values) {
    if (json.size() > 1) json += ',';
    json += std::isfinite(v) ? fmt::format("{:.6g}", v) : "null";
  }
  return json + "]";
}

}  // namespace

double tick_step(double low, double high, int count) {
  const double raw = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string render_chart(const Chart& chart) {
  std::vector<Thinned> all;
  for (const auto& s : chart.series) all.push_back(thin(s));
  const Axes axes = make_axes(all, chart);
  if (axes.y.empty()) return "";

  std::string shapes, data, legend, spoken = chart.title;
  int shown = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Thinned& t = all[i];
    const auto last =
        std::find_if(t.mean.rbegin(), t.mean.rend(), [](double v) { return std::isfinite(v); });
    if (last == t.mean.rend()) continue;
    ++shown;
    const std::string name = escape_html(chart.series[i].name);
    if (t.grouped)
      shapes += fmt::format(R"(<path class="band s{}" d="{}"/>)", i, band_path(axes, t));
    shapes += fmt::format(R"(<path class="line s{}" d="{}"/>)", i, line_path(axes, t));
    legend += fmt::format(R"(<span class="key s{}">{}</span>)", i, name);
    spoken += fmt::format(", {} last {:.4g}{}", chart.series[i].name, *last, chart.unit);
    data += fmt::format(R"( data-n{0}="{1}" data-x{0}="{2}" data-y{0}="{3}")", i, name,
                        json_numbers(t.x), json_numbers(t.mean));
  }
  std::string clip = chart.title;  // an id of letters alone
  std::erase_if(clip, [](char c) { return (c | 0x20) < 'a' || (c | 0x20) > 'z'; });
  Svg svg(
      0, 0, kWidth, kHeight, spoken,
      fmt::format(R"(data-unit="{}" data-x-name="{}" data-range="[{:.9g},{:.9g},{:.9g},{:.9g}]" )"
                  R"(data-box="[{},{},{},{}]"{})",
                  escape_html(chart.unit), escape_html(chart.x_name), axes.x.low, axes.x.high,
                  axes.y.low, axes.y.high, kLeft, kTop, kWidth - kRight, kHeight - kBottom, data));
  svg.raw(fmt::format(R"(<clipPath id="{}"><path d="M{} {}H{}V{}H{}Z"/></clipPath>)", clip, kLeft,
                      kTop, kWidth - kRight, kHeight - kBottom, kLeft));
  draw_grid(svg, axes, chart);
  svg.raw(fmt::format(R"svg(<g clip-path="url(#{})">{}</g>)svg", clip, shapes));
  return fmt::format("<figure><figcaption>{}{}</figcaption>{}</figure>\n", escape_html(chart.title),
                     shown > 1 ? "<span class=\"legend\">" + legend + "</span>" : "", svg.str());
}

}  // namespace saturate
