// SPDX-License-Identifier: Apache-2.0
// Regular expressions as automata of bytes: what a JSON string that matches may be.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::serve {

/// A deterministic automaton; 0 is its start, and from every state some bytes lead to one that accepts.
struct Dfa {
  static constexpr size_t kMostStates = 4096;         // of a string or number within JSON
  static constexpr size_t kMostStatesOfText = 16384;  // of a text that is all of an answer
  struct State {
    std::array<int16_t, 256> next;  // by byte; -1: it may not come
    bool accepts;
    bool within;  // a character: some of its bytes are there
  };
  std::vector<State> states;
};

// What compiling may take: steps of some twenty nanoseconds each, of all patterns and joined parts of a request
// together, since whoever asks decides how many there are.
struct PatternBudget {
  size_t steps = 10'000'000;
};

/// A pattern of ECMA-262 with the flag u, over what stands between the quotes of a JSON string: characters as
/// they are, `"` and `\` with a `\` before them, never control characters. Without ^ and $ the match may lie
/// anywhere within the text. Of so many characters; `most` -1: of any number.
///
/// Taken: characters, `.`, classes, \d \w \s \D \W \S, escapes, groups, |, * + ? {m,n} (lazy ones too, which
/// allow the same texts), ^ at the beginning and $ at the end of an alternative of the whole pattern.
///
/// Errors: invalid_argument for everything else with the place in the pattern, for a pattern that no text
/// meets, for more than 4,096 states, and where `budget` (null: one of its own) is used up. Cost: milliseconds.
Dfa compile_pattern(std::string_view pattern, const std::string& where, int32_t least = 0,
                    int32_t most = -1, PatternBudget* budget = nullptr);

/// A pattern of Python's re with its flag ASCII that the whole of a text matches, as bytes of UTF-8, characters as
/// they are.
///
/// Taken: characters, `.`, classes, \d \w \s \D \W \S, escapes, groups with names and without, remarks, |,
/// * + ? {m,n} {,n} (lazy ones too), a { that counts nothing as the character, ^ $ \A \Z anywhere, (?i) and (?s),
/// (?i:...); of the letters of ASCII.
///
/// Errors: as compile_pattern, for more than 16,384 states. Cost: milliseconds, a fifth of a second at most.
Dfa compile_text_pattern(std::string_view pattern, const std::string& where);

// Of each state whether bytes of those that `may_come` lead from it to an end.
std::vector<bool> states_that_end(const Dfa& dfa, const std::array<bool, 256>& may_come);

// Without the states from which nothing leads to an end; no states at all where the start is one.
Dfa without_dead_ends(const Dfa& dfa);

// The pattern of a "format" of JSON Schema; empty: not known.
std::string format_pattern(std::string_view format);

}  // namespace saturate::serve
