// SPDX-License-Identifier: Apache-2.0
// One line of a terminal, which never grows over its columns.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "observe/top/plot.h"
#include "observe/top/view.h"

namespace saturate::observe {

// SGR parameters.
constexpr const char *kPlain = "", *kBold = "1", *kDim = "2", *kReversed = "7", *kRed = "31",
                     *kGreen = "32", *kYellow = "33", *kCyan = "36";

class Line {
 public:
  Line(const View& view, int width) : view_(view), width_(width) {}

  // `columns` of text, filled with blanks; -1: as many as it has.
  Line& add(std::string_view text, int columns = -1, const char* style = kPlain) {
    if (columns < 0) columns = columns_of(fit_width(text));
    columns = std::min(columns, width_ - used_);
    if (columns <= 0) return *this;
    const std::string fitted = fit_columns(text, columns, view_.ascii);
    used_ += columns;
    if (!view_.colour || !*style) {
      text_ += fitted;
    } else {
      text_ += std::string("\x1b[") + style + 'm' + fitted + "\x1b[0m";
    }
    return *this;
  }
  int left() const { return width_ - used_; }
  std::string take() { return std::move(text_); }

 private:
  // What add() would print of `text`, in a width no terminal has.
  std::string fit_width(std::string_view text) const {
    std::string fitted = fit_columns(text, 4096, view_.ascii);
    fitted.resize(fitted.find_last_not_of(' ') + 1);
    const size_t blanks = text.size() - std::min(text.size(), text.find_last_not_of(' ') + 1);
    return fitted + std::string(blanks, ' ');
  }

  const View& view_;
  int width_, used_ = 0;
  std::string text_;
};

}  // namespace saturate::observe
