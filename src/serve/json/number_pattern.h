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
struct NumberRange {
  std::optional<NumberBound> least, most;
  bool whole = false;    // without a point
  int64_t multiple = 1;  // of so many; above 1 for whole ones alone
};

/// The numbers of a range as JSON has them, without exponents; whole ones without "-0".  The smallest automaton of
/// its kind.
///
/// Errors: invalid_argument where none lies in it, or it takes more than 4,096 states or what is left of `budget`.
Dfa number_pattern(const NumberRange& range, const std::string& where, PatternBudget& budget);

}  // namespace saturate::serve
