// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace saturate {

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: two back for swaps, one back, and the current one.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitute = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitute});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  // A name of hostile length is no slip of the hand, and the table is quadratic.
  constexpr size_t kLongestName = 64;
  if (name.empty() || name.size() > kLongestName) return "";
  std::string_view best;
  int best_distance = static_cast<int>(std::max<size_t>(1, name.size() / 3)) + 1;
  const auto consider = [&](std::string_view text, std::string_view candidate) {
    const int distance = edit_distance(name, text);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  };
  for (const std::string_view candidate : candidates) {
    consider(candidate, candidate);
    const size_t dot = candidate.rfind('.');
    if (dot != std::string_view::npos) consider(candidate.substr(dot + 1), candidate);
  }
  return std::string(best);
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return "?";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || std::abs(bytes) >= 99.95 ? 0 : 1;
  return fmt::format("{:.{}f} {}", bytes, decimals, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "?";
  const auto s = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  const int64_t hours = s / 3600, minutes = s / 60 % 60;
  if (hours >= 24) return fmt::format("{}d {:02}:{:02}", hours / 24, hours % 24, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, s % 60);
  return fmt::format("{}:{:02}", minutes, s % 60);
}

std::string format_count(double value) {
  if (!std::isfinite(value)) return "?";
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  const double size = std::abs(value);
  const int decimals = unit == 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  text = trim(text);
  double value = 0;
  const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  std::string unit(trim(std::string_view(rest, text.data() + text.size() - rest)));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(c | 0x20); });
  constexpr std::string_view kPrefixes = "kmgt";
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string_view tail = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (tail != "" && tail != "b" && tail != "ib"))
      return std::nullopt;
    factor = std::pow(tail == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = value * factor;
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string_view trim(std::string_view text) noexcept {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace saturate
