// SPDX-License-Identifier: Apache-2.0
#include "apps/ladder_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/durable_file.h"
#include "base/svg.h"

namespace saturate::apps {
namespace {

constexpr double kWidth = 900, kHeight = 520, kLeft = 60, kRight = 240, kTop = 44, kBottom = 46;

class Canvas {
 public:
  explicit Canvas(const LadderPlot& p) {
    const auto [low, high] = std::minmax_element(p.sizes.begin(), p.sizes.end());
    first_ = std::log2(*low);
    last_ = std::max(std::log2(*high), first_ + 1);
    double most = 1;
    for (const double r : p.roofline) most = std::max(most, r);
    for (const LadderPlot::Line& l : p.lines)
      for (const double r : l.tflops) most = std::max(most, r);
    step_ = most > 150 ? 100 : most > 15 ? 10 : 1;
    top_ = std::ceil(most / step_) * step_;
  }
  double x(double size) const {
    return kLeft + (std::log2(size) - first_) / (last_ - first_) * (kWidth - kLeft - kRight);
  }
  double y(double tflops) const {
    return kHeight - kBottom - tflops / top_ * (kHeight - kTop - kBottom);
  }
  double top() const { return top_; }
  double step() const { return step_; }

 private:
  double first_, last_, top_, step_;
};

void draw_line(Svg& svg, const Canvas& c, const std::vector<double>& sizes,
               const std::vector<double>& tflops, const std::string& style) {
  std::string d;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tflops[i] > 0)
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", c.x(sizes[i]), c.y(tflops[i]));
  }
  svg.path(d, "fill=\"none\" " + style);
}

}  // namespace

void write_svg(const LadderPlot& p, const std::string& path) {
  if (p.sizes.empty()) return;
  using enum Svg::Anchor;
  const Canvas c(p);
  Svg svg(0, 0, kWidth, kHeight, p.title,
          fmt::format("xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
                      "font-family=\"sans-serif\" font-size=\"12\"",
                      kWidth, kHeight));
  svg.rect(0, 0, kWidth, kHeight, "white").text(kLeft, 24, start, p.title, "font-size=\"15\"");
  for (double t = 0; t <= c.top(); t += c.step()) {
    svg.path(fmt::format("M{} {:.1f}H{}", kLeft, c.y(t), kWidth - kRight), "stroke=\"#ddd\"");
    svg.text(kLeft - 8, c.y(t) + 4, end, fmt::format("{}", t));
  }
  for (const double size : p.sizes)
    svg.text(c.x(size), kHeight - kBottom + 18, middle, fmt::format("{}", size));
  svg.text((kLeft + kWidth - kRight) / 2, kHeight - 8, middle, p.size_label);
  svg.text(8, kTop - 12, start, "TFLOP/s", "font-size=\"10\"");
  if (!p.roofline.empty())
    draw_line(svg, c, p.sizes, p.roofline, "stroke=\"#999\" stroke-dasharray=\"6 4\"");

  // Names stand at the right, in the order of the last values, far enough apart to be read.
  struct Label {
    double at;
    std::string name, colour;
  };
  std::vector<Label> labels;
  if (!p.roofline.empty()) labels.push_back({c.y(p.roofline.back()), "roofline", "#777"});
  for (size_t i = 0; i < p.lines.size(); ++i) {
    const bool library = i + 1 == p.lines.size() && !p.roofline.empty();
    const double hue = 270.0 * static_cast<double>(i) / static_cast<double>(p.lines.size());
    const std::string colour = library ? "black" : fmt::format("hsl({:.0f},75%,42%)", hue);
    draw_line(svg, c, p.sizes, p.lines[i].tflops,
              fmt::format("stroke=\"{}\" stroke-width=\"{}\"", colour, library ? 2.5 : 1.8));
    labels.push_back({c.y(p.lines[i].tflops.back()), p.lines[i].name, colour});
  }
  std::sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.at > b.at; });
  double limit = kHeight;
  for (const Label& l : labels) {
    limit = std::min(l.at, limit - 15);
    svg.text(kWidth - kRight + 8, limit + 4, start, l.name, fmt::format("fill=\"{}\"", l.colour));
  }
  write_durable_file(path, svg.str());
}

}  // namespace saturate::apps
