// SPDX-License-Identifier: Apache-2.0
// Regular expressions as trees of what may be written; pattern.h makes automata of them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate::serve {

inline constexpr char32_t kLastCharacter = 0x10FFFF;

// Characters, as ranges.
using CharacterSet = std::vector<std::pair<char32_t, char32_t>>;

struct PatternPart {
  enum class Kind : uint8_t { set, sequence, choice, repeat, begin, end };
  Kind kind = Kind::sequence;
  CharacterSet set = {};
  std::vector<PatternPart> parts = {};
  int32_t least = 0, most = -1;  // repeat
  bool rest = false;             // repeat: any text, behind which nothing comes
};

enum class PatternSyntax : uint8_t {
  ecma,   // of ECMA-262 with the flag u; the match may lie anywhere unless ^ and $ hold it
  python  // of Python's re with its flag ASCII; the whole of the text is the match
};

// Errors: invalid_argument for what is not taken (pattern.h), with the place in the pattern.
PatternPart parse_pattern(std::string_view pattern, PatternSyntax syntax, const std::string& where);

}  // namespace saturate::serve
