// SPDX-License-Identifier: Apache-2.0
// One line chart as inline SVG.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

struct ChartSeries {
  std::string name;
  std::vector<double> x, y;  // x ascending; y that is not finite leaves a gap
};

struct Chart {
  std::string title;
  std::string unit;                 // after each value: "%", " GiB", or empty
  std::vector<ChartSeries> series;  // one or two: the style sheet has two colours
  std::vector<double> marks;        // x where the run was resumed
  std::string x_name = "step";      // before each x; steps are whole
  double last_x = 0;                // the x axis reaches from 0 at least to here
  bool from_zero = false;           // the y axis starts at 0
};

// A <figure> with its values for the script in data attributes; empty when no value is finite.
std::string render_chart(const Chart& chart);

// Step 1, 2 or 5 times a power of ten, so that about `count` of them cover [low, high].
double tick_step(double low, double high, int count);

}  // namespace saturate
