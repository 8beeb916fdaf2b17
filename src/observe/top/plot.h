// SPDX-License-Identifier: Apache-2.0
// Bars and history plots of characters.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::observe {

// `share` in [0, 1] of `width` columns, as "████▌   " or "####    "; '-' all along when it is
// empty.
std::string draw_bar(std::optional<double> share, int width, bool ascii);

// The newest values at the right, one text a row, the top row first. Braille cells hold two values
// in width and four steps in height; ASCII holds one value a column and two steps a row
// (' ', '.', ':'). Values in [0, 1]; an empty one leaves its place blank.
std::vector<std::string> draw_history(const std::vector<std::optional<double>>& values, int width,
                                      int height, bool ascii);

// Columns that UTF-8 text takes on a terminal: wide East Asian letters two, joining marks none.
int columns_of(std::string_view text);
// `text` cut or filled with blanks to exactly `width` columns. Bytes that are not UTF-8 and control
// characters become '?', so that a process name cannot drive the terminal. With `ascii` everything
// outside ASCII becomes '?'.
std::string fit_columns(std::string_view text, int width, bool ascii);

}  // namespace saturate::observe
