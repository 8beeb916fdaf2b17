// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/stacks/line_table.h"

namespace saturate::observe {

// What stands in source files at a place, for a reader who knows the program by its code. Files are
// read once, at most kMostBytes of each and 16 times that in all.
class SourceLines {
 public:
  static constexpr size_t kMostBytes = 4 << 20, kMostText = 72;  // bytes

  // The expression where columns are known, else the line, on one line; cut after kMostText. Empty
  // when the file cannot be read. `folder`: what a relative name is relative to.
  std::string at(const std::string& file, const SourcePlace& place, const std::string& folder);

 private:
  const std::vector<std::string>& lines(const std::string& path);
  std::unordered_map<std::string, std::vector<std::string>> files_;
  size_t bytes_ = 0;
};

}  // namespace saturate::observe
