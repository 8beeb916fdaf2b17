// SPDX-License-Identifier: Apache-2.0
#include "observe/read/decimal.h"

#include <cmath>
#include <cstdlib>
#include <string>

namespace saturate::observe {

bool parse_microseconds(std::string_view text, int64_t* ns) {
  constexpr int64_t kMost = 4'000'000'000'000'000'000;
  if (text.find_first_of("eE") != std::string_view::npos) {  // rare: through a double
    const std::string copy(text);
    char* end = nullptr;
    const double us = std::strtod(copy.c_str(), &end);
    if (end != copy.c_str() + copy.size() || !(std::fabs(us) < 4e15)) return false;
    *ns = static_cast<int64_t>(std::llround(us * 1000));
    return true;
  }
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  int64_t value = 0;
  int decimals = -1;  // after the point; -1 before it
  size_t digits = 0;
  for (const char c : text) {
    if (c == '.' && decimals < 0) {
      decimals = 0;
      continue;
    }
    if (c < '0' || c > '9') return false;
    ++digits;
    if (decimals >= 3) continue;
    if (value > kMost / 10) return false;
    value = value * 10 + (c - '0');
    if (decimals >= 0) ++decimals;
  }
  if (digits == 0) return false;
  for (int i = decimals < 0 ? 0 : decimals; i < 3; ++i) {
    if (value > kMost / 10) return false;
    value *= 10;
  }
  if (value > kMost) return false;
  *ns = negative ? -value : value;
  return true;
}

}  // namespace saturate::observe
