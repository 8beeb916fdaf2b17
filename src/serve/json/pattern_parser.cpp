// SPDX-License-Identifier: Apache-2.0
#include "serve/json/pattern_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/utf8.h"

namespace saturate::serve {
namespace {

constexpr int kMostDepth = 100;         // of groups: what a stack holds
constexpr int32_t kMostRepeats = 4096;  // more would have more states
constexpr std::string_view kEndOnly =
    "\"$\" is taken at the end of an alternative of the whole pattern only";
constexpr std::string_view kNothing =
    "there is nothing to repeat; write \\ before the character itself";
constexpr std::string_view kReference = "references to groups are not supported";

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
}

using Set = CharacterSet;
using Part = PatternPart;

Set sorted(Set set) {
  std::ranges::sort(set);
  Set out;
  for (const auto& [low, high] : set) {
    if (!out.empty() && low <= out.back().second + 1)
      out.back().second = std::max(out.back().second, high);
    else
      out.emplace_back(low, high);
  }
  return out;
}

Set others(const Set& set) {
  Set out;
  char32_t from = 0;
  for (const auto& [low, high] : sorted(set)) {
    if (low > from) out.emplace_back(from, low - 1);
    from = high + 1;
  }
  if (from <= kLastCharacter) out.emplace_back(from, kLastCharacter);
  return out;
}

// With the other case of the letters of ASCII.
Set both_cases(Set set) {
  for (size_t i = 0, n = set.size(); i < n; ++i) {
    const auto [low, high] = set[i];
    for (const auto& [first, last, to] : {std::tuple{U'A', U'Z', 32}, {U'a', U'z', -32}}) {
      const char32_t from = std::max(low, first), until = std::min(high, last);
      if (from <= until)
        set.emplace_back(static_cast<char32_t>(static_cast<int32_t>(from) + to),
                         static_cast<char32_t>(static_cast<int32_t>(until) + to));
    }
  }
  return set;
}

// Of \d and its kin.
std::optional<Set> named_set(char32_t letter, PatternSyntax syntax) {
  static const Set digits = {{'0', '9'}};
  static const Set word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  static const Set space = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                            {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                            {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  static const Set ascii_space = {{'\t', '\r'}, {' ', ' '}};
  switch (letter) {
    case 'd':
      return digits;
    case 'w':
      return word;
    case 's':
      return syntax == PatternSyntax::python ? ascii_space : space;
    case 'D':
      return others(digits);
    case 'W':
      return others(word);
    case 'S':
      return others(syntax == PatternSyntax::python ? ascii_space : space);
    default:
      return std::nullopt;
  }
}

class Parser {
 public:
  Parser(std::string_view pattern, PatternSyntax syntax, const std::string& where)
      : text_(decode_utf8(pattern)), python_(syntax == PatternSyntax::python), where_(where) {}

  Part whole() {
    Part out = python_ ? choice(0) : anywhere();
    if (at_ < text_.size()) refuse_here("a \")\" without its \"(\"");
    return out;
  }

 private:
  // Each alternative with what may stand around it.
  Part anywhere() {
    Part out{.kind = Part::Kind::choice};
    do {
      Part one;
      bool begins = false;
      while (take('^')) begins = true;
      if (!begins) one.parts.push_back(anything());
      one.parts.push_back(sequence(0));
      const size_t end = at_;
      while (take('$')) {
      }
      if (at_ == end) {
        one.parts.push_back(anything());
        one.parts.back().rest = true;
      } else if (at_ < text_.size() && peek() != '|' && peek() != ')') {
        refuse_at(end, kEndOnly);
      }
      out.parts.push_back(std::move(one));
    } while (take('|'));
    return out;
  }

  static Part anything() {
    Part any{.kind = Part::Kind::repeat};
    any.parts.push_back({.kind = Part::Kind::set, .set = {{0, kLastCharacter}}});
    return any;
  }

  [[noreturn]] void refuse_at(size_t at, std::string_view what) const {
    const std::string rest = encode_utf8(std::u32string_view(text_).substr(at, 8));
    refuse(where_, rest.empty() ? fmt::format("at its end: {}", what)
                                : fmt::format("at character {}, \"{}\": {}", at + 1, rest, what));
  }
  [[noreturn]] void refuse_here(std::string_view what) const { refuse_at(at_, what); }

  char32_t peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kIllFormed;
  }
  bool take(char32_t c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  Part choice(int depth) {
    Part out{.kind = Part::Kind::choice};
    do out.parts.push_back(sequence(depth));
    while (take('|'));
    return out;
  }

  Part sequence(int depth) {
    Part out;
    for (;;) {
      const char32_t c = peek();
      if (c == kIllFormed || c == '|' || c == ')' || (c == '$' && depth == 0 && !python_))
        return out;
      const size_t begin = at_;
      out.parts.push_back(repeated(atom(depth), begin));
    }
  }

  Part atom(int depth) {
    const char32_t c = peek();
    switch (c) {
      case '(': {
        if (depth >= kMostDepth) refuse_here("groups lie deeper than 100; make it flatter");
        const size_t begin = at_++;
        const Flags around = flags_;
        if (take('?') && !group_kind(begin)) return {};
        Part inner = choice(depth + 1);
        if (!take(')')) refuse_at(at_ < text_.size() ? at_ : begin, group_end());
        flags_ = around;
        return inner;
      }
      case '[':
        return {.kind = Part::Kind::set, .set = in_brackets()};
      case '.':
        ++at_;
        return {.kind = Part::Kind::set, .set = any_character()};
      case '\\':
        if (python_ && (peek(1) == 'A' || peek(1) == 'Z' || peek(1) == 'z')) {
          at_ += 2;
          return {.kind = text_[at_ - 1] == 'A' ? Part::Kind::begin : Part::Kind::end};
        }
        return {.kind = Part::Kind::set, .set = cased(escape(false))};
      case '^':
        if (!python_)
          refuse_here(
              "\"^\" is taken at the beginning of an alternative of the whole pattern only");
        ++at_;
        return {.kind = Part::Kind::begin};
      case '$':
        if (!python_) refuse_here(kEndOnly);
        ++at_;
        return {.kind = Part::Kind::end};
      case '{':
        if (python_ && !counts_here()) break;
        [[fallthrough]];
      case '*':
      case '+':
      case '?':
        refuse_here(kNothing);
      default:
        break;
    }
    ++at_;
    return {.kind = Part::Kind::set, .set = cased({{c, c}})};
  }

  Set any_character() const {
    if (flags_.dot_all) return {{0, kLastCharacter}};
    if (python_) return others({{'\n', '\n'}});
    return others({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  }
  Set cased(Set set) const {
    return flags_.ignore_case ? sorted(both_cases(std::move(set))) : std::move(set);
  }

  std::string_view group_end() const {
    return at_ < text_.size() ? "the group is not closed here" : "the group has no \")\"";
  }

  // Behind "(?". Whether a group begins; else it was a remark, or flags for what comes.
  bool group_kind(size_t begin) {
    if (take(':')) return true;
    if (peek() == '=' || peek() == '!')
      refuse_at(begin, "look-ahead is not supported; write what may come instead");
    if (peek() == '<' && (peek(1) == '=' || peek(1) == '!'))
      refuse_at(begin, "look-behind is not supported; write what may come instead");
    if (python_ && take('#')) {
      while (peek() != ')' && peek() != kIllFormed) ++at_;
      if (!take(')')) refuse_at(begin, "the remark has no \")\"");
      return false;
    }
    if (python_ && peek() != 'P' && peek() != '<') return flags(begin);
    if (python_ && take('P') && peek() == '=') refuse_at(begin, kReference);
    if (!take('<')) refuse_at(begin, "this kind of group is not supported; write (?:...)");
    const size_t name = at_;
    while (peek() != '>' && peek() != kIllFormed) ++at_;
    if (at_ == name || !take('>')) refuse_at(begin, "a group's name ends with \">\"");
    return true;
  }

  // "i)", "s-i:". Whether a group begins with it.
  bool flags(size_t begin) {
    Flags now = flags_;
    for (bool on = true;; ++at_) {
      switch (peek()) {
        case 'i':
          now.ignore_case = on;
          break;
        case 's':
          now.dot_all = on;
          break;
        case 'a':
        case 'u':
          break;
        case '-':
          on = false;
          break;
        case ':':
        case ')':
          flags_ = now;
          return text_[at_++] == ':';
        default:
          refuse_at(begin, "this kind of group is not supported; write (?:...), (?i) or (?s)");
      }
    }
  }

  Part repeated(Part inner, size_t begin) {
    int32_t least = 0, most = -1;
    const size_t mark = at_;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (peek() == '{') {
      const auto counts = counts_here();
      if (!counts && python_) return inner;  // the character itself
      if (!counts) refuse_at(mark, "a count is {m}, {m,} or {m,n}; write \\{ for the character");
      std::tie(least, most, at_) = *counts;
      if (most >= 0 && least > most) refuse_at(mark, "its numbers are in the wrong order");
      if (std::max(least, most) > kMostRepeats) refuse_at(mark, "a count above 4096");
    } else {
      return inner;
    }
    if (inner.kind == Part::Kind::begin || inner.kind == Part::Kind::end) refuse_at(mark, kNothing);
    take('?');  // lazy: which match is found first does not matter
    if (peek() == '*' || peek() == '+' || peek() == '?' ||
        (peek() == '{' && (!python_ || counts_here())))
      refuse_at(begin, "it is repeated twice; put it into a group");
    Part out{.kind = Part::Kind::repeat, .least = least, .most = most};
    out.parts.push_back(std::move(inner));
    return out;
  }

  // What a "{" here counts and where it ends; none where it counts nothing. Nothing is read.
  std::optional<std::tuple<int32_t, int32_t, size_t>> counts_here() {
    const size_t brace = at_++;
    const std::optional<int32_t> first = count();
    const bool comma = take(',');
    const std::optional<int32_t> last = comma ? count() : first;
    const bool counts = take('}') && (first || (python_ && comma));
    const size_t end = std::exchange(at_, brace);
    if (!counts) return std::nullopt;
    return std::tuple(first.value_or(0), last.value_or(-1), end);
  }

  std::optional<int32_t> count() {
    std::optional<int32_t> n;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      n = std::min(n.value_or(0) * 10 + static_cast<int32_t>(peek() - '0'), kMostRepeats + 1);
    return n;
  }

  Set in_brackets() {
    const size_t begin = at_++;
    const bool negated = take('^');
    Set out;
    for (bool first = true; (first && python_) || !take(']'); first = false) {
      if (peek() == kIllFormed) refuse_at(begin, "the class has no \"]\"");
      const size_t from = at_;
      const Set low = class_atom();
      const bool range = peek() == '-' && peek(1) != ']' && peek(1) != kIllFormed;
      if (range && low.size() == 1 && low[0].first == low[0].second) {
        ++at_;
        const Set high = class_atom();
        if (high.size() != 1 || high[0].first != high[0].second)
          refuse_at(from, "a range ends with one character; write \\- for the character");
        if (high[0].first < low[0].first) refuse_at(from, "its ends are in the wrong order");
        out.emplace_back(low[0].first, high[0].first);
      } else {
        out.insert(out.end(), low.begin(), low.end());
      }
    }
    if (flags_.ignore_case) out = both_cases(std::move(out));
    return negated ? others(out) : sorted(out);
  }

  Set class_atom() {
    if (peek() == '\\') return escape(true);
    const char32_t c = text_[at_++];
    return {{c, c}};
  }

  char32_t hex(size_t begin, int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char32_t c = peek(), letter = c | 32;
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if (letter >= 'a' && letter <= 'f')
        value = value * 16 + (letter - 'a' + 10);
      else
        refuse_at(begin, "it needs hexadecimal digits: \\xHH, \\uHHHH or \\u{H}");
    }
    return value;
  }

  // Behind "\u".
  char32_t code_point(size_t begin) {
    if (take('{')) {
      char32_t value = 0;
      do value = value * 16 + hex(begin, 1);
      while (peek() != '}' && value <= kLastCharacter);
      if (!take('}') || value > kLastCharacter) refuse_at(begin, "no character has this number");
      return value;
    }
    const char32_t high = hex(begin, 4);
    if (high < 0xD800 || high > 0xDBFF || peek() != '\\' || peek(1) != 'u') return high;
    const size_t back = at_;
    at_ += 2;
    const char32_t low = hex(begin, 4);
    if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    at_ = back;
    return high;
  }

  Set escape(bool in_class) {
    const size_t begin = at_++;
    const char32_t c = peek();
    if (c == kIllFormed) refuse_at(begin, "there is nothing behind \"\\\"");
    ++at_;
    const auto syntax = python_ ? PatternSyntax::python : PatternSyntax::ecma;
    if (std::optional<Set> set = named_set(c, syntax)) return *set;
    if (const std::optional<char32_t> one = character_escape(c, begin, in_class))
      return {{*one, *one}};
    switch (c) {
      case 'p':
      case 'P':
        refuse_at(begin, "properties of characters are not supported; write their ranges");
      case 'b':
      case 'B':
        refuse_at(begin, "boundaries of words are not supported; write what may come instead");
      case 'k':
        refuse_at(begin, kReference);
      default:
        break;
    }
    if (c >= '1' && c <= '9' && !in_class) refuse_at(begin, kReference);
    const bool letter = ((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9');
    if (letter || (!python_ && (c < 0x20 || c >= 0x7F)))
      refuse_at(begin, "this escape is not known");
    return {{c, c}};
  }

  // Of a letter or digit `c` behind "\" that stands for one character; none: it does not.
  std::optional<char32_t> character_escape(char32_t c, size_t begin, bool in_class) {
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'v':
        return '\v';
      case 'f':
        return '\f';
      case 'r':
        return '\r';
      case 'b':
        if (in_class) return '\b';
        break;
      case 'a':
        if (python_) return '\a';
        break;
      case 'e':  // of others than Python, as \cJ
        if (python_) return U'\x1B';
        break;
      case 'x':
        if (python_ && peek() == '{') return code_point(begin);
        return hex(begin, 2);
      case 'u':
        return code_point(begin);
      case 'U':
        if (!python_) break;
        if (const char32_t value = hex(begin, 8); value <= kLastCharacter) return value;
        refuse_at(begin, "no character has this number");
      case 'c':
        if ((peek() | 32) < 'a' || (peek() | 32) > 'z') break;
        return text_[at_++] % 32;
      default:
        break;
    }
    if (c < '0' || c > '9') return std::nullopt;
    const auto octal = [this](size_t ahead) { return peek(ahead) >= '0' && peek(ahead) <= '7'; };
    if (!python_) {
      if (c == '0' && (peek() < '0' || peek() > '9')) return 0;
      return std::nullopt;
    }
    // \0, \01 and \012, and of others those of three digits.
    if (c != '0' && !(c <= '3' && octal(0) && octal(1))) return std::nullopt;
    char32_t value = c - '0';
    for (int i = 0; i < 2 && octal(0); ++i) value = value * 8 + (text_[at_++] - '0');
    return value;
  }

  struct Flags {
    bool ignore_case = false, dot_all = false;
  };

  const std::u32string text_;
  const bool python_;
  const std::string& where_;
  Flags flags_;
  size_t at_ = 0;
};

}  // namespace

PatternPart parse_pattern(std::string_view pattern, PatternSyntax syntax,
                          const std::string& where) {
  return Parser(pattern, syntax, where).whole();
}

}  // namespace saturate::serve
