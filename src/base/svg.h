// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace saturate {

// A drawing as inline SVG, element by element, in units of its view box; texts are escaped, attributes and paths are not.
class Svg {
 public:
  // `label` is what a screen reader says.
  Svg(double left, double top, double width, double height, std::string_view label,
      std::string_view attributes = {});
  Svg& path(std::string_view d, std::string_view attributes, std::string_view title = {});
  // Nothing when it is empty.
  Svg& rect(double x, double y, double width, double height, std::string_view fill,
            std::string_view title = {});
  Svg& circle(double x, double y, double radius, std::string_view attributes,
              std::string_view title);
  enum class Anchor { start, middle, end };
  Svg& text(double x, double y, Anchor anchor, std::string_view text,
            std::string_view attributes = {});
  Svg& raw(std::string_view elements);
  std::string str() const { return svg_ + "</svg>\n"; }

 private:
  void close(std::string_view tag, std::string_view title);
  std::string svg_;
};

}  // namespace saturate
