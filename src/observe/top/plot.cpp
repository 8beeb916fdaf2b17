// SPDX-License-Identifier: Apache-2.0
#include "observe/top/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cwchar>
#include <string_view>

#include "base/printable.h"
#include "base/utf8.h"

namespace saturate::observe {
namespace {

// East Asian wide and emoji blocks (Unicode 15, EastAsianWidth.txt W and F, in coarse ranges), and
// combining marks: what process names hold in practice.
int width_of(char32_t c) {
  if ((c >= 0x300 && c < 0x370) || (c >= 0x200B && c <= 0x200F) || (c >= 0xFE00 && c <= 0xFE0F))
    return 0;
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0xFFE0 && c <= 0xFFE6) || (c >= 0x1F300 && c <= 0x1FAFF) ||
                    (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace

int columns_of(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) columns += width_of(next_utf8(text, at));
  return columns;
}

std::string fit_columns(std::string_view text, int width, bool ascii) {
  const std::string clean = printable(text);
  std::string out;
  int columns = 0;
  for (size_t at = 0; at < clean.size();) {
    const size_t from = at;
    const char32_t c = next_utf8(clean, at);
    const bool replace = ascii && c >= 0x80;
    const int w = replace ? 1 : width_of(c);
    if (columns + w > width) break;
    columns += w;
    if (replace) {
      out += '?';
    } else {
      out.append(clean, from, at - from);
    }
  }
  out.append(static_cast<size_t>(std::max(width - columns, 0)), ' ');
  return out;
}

std::string draw_bar(std::optional<double> share, int width, bool ascii) {
  std::string text;
  if (width <= 0) return text;
  if (!share) return std::string(static_cast<size_t>(width), '-');
  const double filled = std::clamp(*share, 0.0, 1.0) * width;
  if (ascii) {
    const auto full = static_cast<size_t>(filled + 0.5);
    return std::string(full, '#') + std::string(static_cast<size_t>(width) - full, ' ');
  }
  const int eighths = static_cast<int>(filled * 8 + 0.5);
  for (int i = 0; i < width; ++i) {
    const int part = std::clamp(eighths - 8 * i, 0, 8);
    if (part == 0) {
      text += ' ';
    } else {
      append_utf8(text, 0x2590u - static_cast<uint32_t>(part));  // 0x2588 full .. 0x258F an eighth
    }
  }
  return text;
}

std::vector<std::string> draw_history(const std::vector<std::optional<double>>& values, int width,
                                      int height, bool ascii) {
  std::vector<std::string> rows(static_cast<size_t>(std::max(height, 0)));
  if (width <= 0 || height <= 0) return rows;
  const int per_column = ascii ? 1 : 2, per_row = ascii ? 2 : 4;
  const int slots = width * per_column;
  // Steps of each slot, 0 to height * per_row; -1 where nothing is known. What is known and above
  // nothing at all gets at least one step.
  std::vector<int> steps(static_cast<size_t>(slots), -1);
  for (int i = 0; i < slots; ++i) {
    const int64_t at = static_cast<int64_t>(values.size()) - slots + i;
    if (at < 0 || !values[static_cast<size_t>(at)]) continue;
    const double v = std::clamp(*values[static_cast<size_t>(at)], 0.0, 1.0);
    steps[static_cast<size_t>(i)] = static_cast<int>(std::ceil(v * height * per_row - 1e-9));
  }
  // Dots of a braille cell from below, of its left and its right column.
  static constexpr uint32_t kLeft[] = {0x40, 0x04, 0x02, 0x01}, kRight[] = {0x80, 0x20, 0x10, 0x08};
  for (int row = 0; row < height; ++row) {
    const int below = (height - 1 - row) * per_row;
    std::string& text = rows[static_cast<size_t>(row)];
    for (int column = 0; column < width; ++column) {
      if (ascii) {
        const int filled = std::clamp(steps[static_cast<size_t>(column)] - below, 0, 2);
        text += " .:"[filled];
        continue;
      }
      uint32_t dots = 0;
      for (int d = 0; d < 4; ++d) {
        if (steps[static_cast<size_t>(2 * column)] > below + d) dots |= kLeft[d];
        if (steps[static_cast<size_t>(2 * column) + 1] > below + d) dots |= kRight[d];
      }
      if (dots == 0) {
        text += ' ';
      } else {
        append_utf8(text, 0x2800u + dots);
      }
    }
  }
  return rows;
}

}  // namespace saturate::observe
