// SPDX-License-Identifier: Apache-2.0
// Numbers within bounds, and multiples, as automata of their digits.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "serve/json/pattern.h"

namespace saturate::serve {

// Digits of one number, before and behind the point together, leading zeros not counted: so many decimals are all
// different as doubles, so that a reader finds a number on the same side of a bound as its digits say.
constexpr int kMostNumberDigits = 15;

struct NumberBound {
  double value;
  bool exclusive;
};
// The number of these digits with so many of them behind the point.
struct NumberMultiple {
  int64_t digits = 1;
  int decimals = 0;
};
struct NumberRange {
  std::optional<NumberBound> least, most;
  bool whole = false;  // without a point
  // Multiples of it, with as many digits behind the point as it has and no more; without any for whole ones alone.
  std::optional<NumberMultiple> multiple = {};
};

constexpr int64_t kMostMultiple = 1'000'000;
// A positive number as one, with the fewest digits; none for more digits than kMostMultiple has, or more than 15
// behind the point.
std::optional<NumberMultiple> number_multiple(double value);

/// The numbers of a range as JSON has them, without exponents; whole ones without "-0".  The smallest automaton of
/// its kind.
///
/// Errors: invalid_argument where none lies in it, or it takes more than 4,096 states or what is left of `budget`.
Dfa number_pattern(const NumberRange& range, const std::string& where, PatternBudget& budget);

}  // namespace saturate::serve
