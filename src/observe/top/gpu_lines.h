// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "observe/system/snapshot.h"
#include "observe/top/view.h"

namespace saturate::observe {

constexpr int kGpuFullLines = 3, kPlotLines = 4;

std::string gpu_compact_line(const GpuView& g, const View& view, int width);
std::vector<std::string> gpu_full_lines(const GpuView& g, const View& view, int width);
// Utilisation at the left, memory at the right, kPlotLines high.
std::vector<std::string> gpu_plot(const GpuHistory& h, const View& view, int width);

}  // namespace saturate::observe
