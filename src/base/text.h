// SPDX-License-Identifier: Apache-2.0
// Text for people: nearest names, sizes, durations, counts.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace saturate {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
// Source: Damerau 1964, restricted to one edit per substring (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `name`, or "" when none is near enough to be a likely slip of the hand:
// more than a third of the letters differ. Dotted names also match by their last part ("lr" finds
// "optimizer.lr"). Ties go to the earlier candidate.
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

// "; did you mean 'x'?" or "".
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

// For people; "?" when not finite.
std::string format_bytes(double bytes);       // 512 B, 1.5 KiB, 640 MiB, 12.3 GiB
std::string format_duration(double seconds);  // 0:42, 3:07:12, 2d 03:10
std::string format_count(double value);       // 940, 7.28k, 728k, 1.21M

// "4GiB", "512 MB", "1.5g", "1048576". KB/MB/GB/TB are powers of 1000, K/M/G/T and KiB.. of 1024.
// Empty when `text` is no such size, is negative or does not fit 63 bits.
std::optional<int64_t> parse_bytes(std::string_view text);

std::string_view trim(
    std::string_view text) noexcept;  // without blanks, tabs and line ends at both ends

}  // namespace saturate
