// SPDX-License-Identifier: Apache-2.0
#include "apps/ladder_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/durable_file.h"

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

std::string polyline(const Canvas& c, const std::vector<double>& sizes,
                     const std::vector<double>& tflops, const std::string& style) {
  std::string points;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tflops[i] > 0) points += fmt::format("{:.1f},{:.1f} ", c.x(sizes[i]), c.y(tflops[i]));
  }
  return fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", style, points);
}

}  // namespace

void write_svg(const LadderPlot& p, const std::string& path) {
  if (p.sizes.empty()) return;
  const Canvas c(p);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"15\">{3}</text>\n",
      kWidth, kHeight, kLeft, p.title);
  for (double t = 0; t <= c.top(); t += c.step()) {
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - kRight, c.y(t), kLeft - 8, c.y(t) + 4, t);
  }
  for (const double size : p.sizes) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", c.x(size),
                       kHeight - kBottom + 18, size);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 8, p.size_label);
  svg += fmt::format("<text x=\"8\" y=\"{}\" font-size=\"10\">TFLOP/s</text>\n", kTop - 12);
  if (!p.roofline.empty())
    svg += polyline(c, p.sizes, p.roofline, "stroke=\"#999\" stroke-dasharray=\"6 4\"");

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
    svg += polyline(c, p.sizes, p.lines[i].tflops,
                    fmt::format("stroke=\"{}\" stroke-width=\"{}\"", colour, library ? 2.5 : 1.8));
    labels.push_back({c.y(p.lines[i].tflops.back()), p.lines[i].name, colour});
  }
  std::sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.at > b.at; });
  double limit = kHeight;
  for (const Label& l : labels) {
    limit = std::min(l.at, limit - 15);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", kWidth - kRight + 8,
                       limit + 4, l.colour, l.name);
  }
  svg += "</svg>\n";
  write_durable_file(path, svg);
}

}  // namespace saturate::apps
