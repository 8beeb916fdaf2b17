// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "observe/system/snapshot.h"
#include "observe/top/view.h"

namespace saturate::observe {

// Exactly `height` lines of at most `width` columns, with colours as escape sequences when the view
// has colour. What is less important goes first when the terminal is small; the history of a GPU
// may be missing.
std::vector<std::string> draw_screen(const Snapshot& s, const std::vector<GpuHistory>& history,
                                     const View& view, int width, int height);

// The same content without a terminal: no history, every process, no limit of height.
std::string draw_once(const Snapshot& s, const View& view, int width);

}  // namespace saturate::observe
