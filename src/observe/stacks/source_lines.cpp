// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/source_lines.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

namespace saturate::observe {

const std::vector<std::string>& SourceLines::lines(const std::string& path) {
  const auto [at, fresh] = files_.try_emplace(path);
  struct stat info {};
  if (!fresh || ::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return at->second;
  const auto size = static_cast<size_t>(info.st_size);
  if (size > kMostBytes || bytes_ + size > 16 * kMostBytes) return at->second;
  bytes_ += size;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) at->second.push_back(line);
  return at->second;
}

std::string SourceLines::at(const std::string& file, const SourcePlace& place,
                            const std::string& folder) {
  if (place.line <= 0 || file.empty() || file[0] == '<') return "";
  const std::vector<std::string>& all = lines(file[0] == '/' ? file : folder + "/" + file);
  if (static_cast<size_t>(place.line) > all.size()) return "";
  std::string text = all[static_cast<size_t>(place.line) - 1];
  if (place.column >= 0 && static_cast<size_t>(place.column) < text.size()) {
    const bool one_line = place.end_line == place.line && place.end_column > place.column;
    text = one_line ? text.substr(static_cast<size_t>(place.column),
                                  static_cast<size_t>(place.end_column - place.column))
                    : text.substr(static_cast<size_t>(place.column));
  }
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  text = text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
  if (text.size() <= kMostText) return text;
  size_t end = kMostText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // not inside a character
  return text.substr(0, end) + "...";
}

}  // namespace saturate::observe
