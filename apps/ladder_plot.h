// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace saturate::apps {

struct LadderPlot {
  struct Line {
    std::string name;
    std::vector<double> tflops;  // one a size; 0: not measured
  };
  std::string title, size_label = "m = n = k";
  std::vector<double> sizes;
  std::vector<Line> lines;       // with a roofline the last one is the library's
  std::vector<double> roofline;  // may be empty
};

// One self-contained picture: TFLOP/s over size (logarithmic). Errors: io.
void write_svg(const LadderPlot& plot, const std::string& path);

}  // namespace saturate::apps
