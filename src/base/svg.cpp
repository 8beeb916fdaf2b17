// SPDX-License-Identifier: Apache-2.0
#include "base/svg.h"

#include <fmt/format.h>

#include "base/html.h"

namespace saturate {

Svg::Svg(double left, double top, double width, double height, std::string_view label,
         std::string_view attributes)
    : svg_(fmt::format(R"(<svg viewBox="{} {} {} {}" role="img" aria-label="{}"{}{}>)", left, top,
                       width, height, escape_html(label), attributes.empty() ? "" : " ",
                       attributes)) {}

void Svg::close(std::string_view tag, std::string_view title) {
  svg_ += title.empty() ? "/>" : fmt::format("><title>{}</title></{}>", escape_html(title), tag);
}

Svg& Svg::path(std::string_view d, std::string_view attributes, std::string_view title) {
  svg_ += fmt::format(R"(<path {} d="{}")", attributes, d);
  close("path", title);
  return *this;
}

Svg& Svg::rect(double x, double y, double width, double height, std::string_view fill,
               std::string_view title) {
  if (width <= 0 || height <= 0) return *this;
  svg_ += fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}")", x,
                      y, width, height, fill);
  close("rect", title);
  return *this;
}

Svg& Svg::circle(double x, double y, double radius, std::string_view attributes,
                 std::string_view title) {
  svg_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" {})", x, y, radius, attributes);
  close("circle", title);
  return *this;
}

Svg& Svg::text(double x, double y, Anchor anchor, std::string_view text,
               std::string_view attributes) {
  constexpr const char* kAnchors[] = {"", R"( text-anchor="middle")", R"( text-anchor="end")"};
  svg_ += fmt::format(R"(<text x="{:.1f}" y="{:.1f}"{}{}{}>{}</text>)", x, y,
                      kAnchors[static_cast<int>(anchor)], attributes.empty() ? "" : " ", attributes,
                      escape_html(text));
  return *this;
}

Svg& Svg::raw(std::string_view elements) {
  svg_ += elements;
  return *this;
}

}  // namespace saturate
