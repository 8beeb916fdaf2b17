// SPDX-License-Identifier: Apache-2.0
// read_event_quickly: one pass over bytes in memory, no allocation, nothing kept of what does not
// count. Whatever it is not sure of it leaves to the careful reader.
#include <charconv>
#include <cstring>

#include "observe/read/decimal.h"
#include "observe/read/kineto_event.h"

namespace saturate::observe {
namespace {

constexpr int kMaxDepth = 32;  // below that of the careful reader
constexpr size_t kMaxBare = 512;

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_bare(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' ||
         c == '.';
}

// All members: false, with at_ anywhere, when the careful reader has to look.
class QuickReader {
 public:
  QuickReader(const char* at, const char* end, KinetoEvent& event)
      : at_(at), end_(end), event_(event) {}

  const char* read() {
    if (!open('{')) return nullptr;
    if (next('}')) return at_;
    do {
      std::string_view key;
      if (!read_key(key) || !read_field(key)) return nullptr;
    } while (next(','));
    if (!next('}')) return nullptr;
    return escaped_ && event_.counts() ? nullptr : at_;
  }

 private:
  void skip_blanks() {
    while (at_ != end_ && is_blank(*at_)) ++at_;
  }
  bool open(char bracket) {
    if (at_ == end_ || *at_ != bracket) return false;
    ++at_;
    return true;
  }
  bool next(char c) {
    skip_blanks();
    return open(c);
  }

  // The bytes between quotes; `*escapes` when there are any, whose grammar is then checked.
  bool read_string(std::string_view& text, bool* escapes) {
    if (!open('"')) return false;
    const char* from = at_;
    for (;;) {
      at_ = find_quote(at_);
      if (at_ == end_) return false;
      if (*at_ == '"') break;
      *escapes = true;
      if (end_ - at_ < 6) return false;
      const char c = at_[1];
      if (c == 'u') {
        for (int i = 2; i < 6; ++i)
          if (!is_hex(at_[i])) return false;
        at_ += 6;
      } else {
        if (c == '\0' || std::strchr("\"\\/bfnrt", c) == nullptr) return false;
        at_ += 2;
      }
    }
    text = std::string_view(from, static_cast<size_t>(at_ - from)).substr(0, kKinetoText);
    ++at_;
    return true;
  }

  // The first quote or backslash, eight bytes at a time: a byte of `x` is zero where one is, and
  // subtracting 1 borrows into its highest bit.
  const char* find_quote(const char* p) const {
    constexpr uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
    for (; end_ - p >= 8; p += 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      const uint64_t quote = word ^ (kOnes * '"'), slash = word ^ (kOnes * '\\');
      if ((((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash)) & kHigh) break;
    }
    while (p != end_ && *p != '"' && *p != '\\') ++p;
    return p;
  }

  bool read_key(std::string_view& key) {
    skip_blanks();
    bool escapes = false;
    if (!read_string(key, &escapes) || escapes || !next(':')) return false;
    skip_blanks();
    return at_ != end_;
  }

  // A number in the grammar of JSON; NaN and Infinity are left to the careful reader.
  bool read_number(std::string_view& text) {
    const char* from = at_;
    const auto digits = [&] {
      const char* first = at_;
      while (at_ != end_ && is_digit(*at_)) ++at_;
      return at_ - first;
    };
    if (at_ != end_ && *at_ == '-') ++at_;
    const char* whole = at_;
    const auto n = digits();
    if (n == 0 || (n > 1 && *whole == '0')) return false;
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      if (digits() == 0) return false;
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != end_ && (*at_ == '-' || *at_ == '+')) ++at_;
      if (digits() == 0) return false;
    }
    text = std::string_view(from, static_cast<size_t>(at_ - from));
    return at_ != end_ && !is_bare(*at_) && text.size() <= kMaxBare;
  }

  bool read_word() {
    for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (static_cast<size_t>(end_ - at_) > word.size() &&
          std::memcmp(at_, word.data(), word.size()) == 0) {
        at_ += word.size();
        return !is_bare(*at_);
      }
    }
    return false;
  }

  bool skip_value(int depth) {
    skip_blanks();
    if (at_ == end_ || depth > kMaxDepth) return false;
    std::string_view text;
    bool escapes = false;
    switch (*at_) {
      case '"':
        return read_string(text, &escapes);
      case '{':
        ++at_;
        if (next('}')) return true;
        do {
          skip_blanks();
          if (!read_string(text, &escapes) || !next(':') || !skip_value(depth + 1)) return false;
        } while (next(','));
        return next('}');
      case '[':
        ++at_;
        if (next(']')) return true;
        do {
          if (!skip_value(depth + 1)) return false;
        } while (next(','));
        return next(']');
      default:
        if (is_digit(*at_) || (*at_ == '-' && at_ + 1 != end_ && is_digit(at_[1])))
          return read_number(text);
        return read_word();
    }
  }

  static int64_t integer(std::string_view text) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    return error == std::errc{} && end == text.data() + text.size() ? n : 0;
  }

  // A string without escapes or a number.
  bool read_text(std::string_view& text) {
    if (*at_ != '"') return read_number(text);
    bool escapes = false;
    return read_string(text, &escapes) && !escapes;
  }

  // "1680000000123456.789" to nanoseconds; others as parse_microseconds has them.
  bool read_time(int64_t& ns) {
    const char *from = at_, *p = at_;
    int64_t value = 0;
    while (p != end_ && is_digit(*p) && p - from < 17) value = value * 10 + (*p++ - '0');
    if (p != from && p - from <= 16 && (*from != '0' || p - from == 1) && end_ - p > 4 &&
        *p == '.' && is_digit(p[1]) && is_digit(p[2]) && is_digit(p[3]) && !is_bare(p[4])) {
      ns = value * 1000 + (p[1] - '0') * 100 + (p[2] - '0') * 10 + (p[3] - '0');
      at_ = p + 4;
      return value < 4'000'000'000'000'000;
    }
    std::string_view text;
    return *at_ != '"' && read_number(text) && parse_microseconds(text, &ns);
  }

  bool read_product(int64_t& product) {
    ++at_;
    product = 1;
    if (next(']')) return true;
    do {
      skip_blanks();
      std::string_view text;
      int64_t factor = 0;
      if (!read_number(text)) return false;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
      if (error != std::errc{} || end != text.data() + text.size()) return false;
      product = saturating_product(product, factor);
    } while (next(','));
    return next(']');
  }

  bool read_arguments() {
    ++at_;
    if (next('}')) return true;
    do {
      std::string_view key;
      if (!read_key(key)) return false;
      bool product = false;
      if (int64_t* target = kineto_argument(event_, key, &product); target != nullptr) {
        std::string_view text;
        if (product && *at_ == '[') {
          if (!read_product(*target)) return false;
        } else if (!product && (*at_ == '"' || *at_ == '-' || is_digit(*at_))) {
          if (!read_text(text)) return false;
          *target = integer(text);
        } else if (!skip_value(2)) {
          return false;
        }
        continue;
      }
      const char* from = at_;
      if (!skip_value(2)) return false;
      if (std::string_view* raw = kineto_raw_argument(event_, key); raw != nullptr)
        *raw = std::string_view(from, static_cast<size_t>(at_ - from));
    } while (next(','));
    return next('}');
  }

  bool read_field(std::string_view key) {
    std::string_view text;
    bool escapes = false;
    const bool quoted = *at_ == '"', number = is_digit(*at_) || *at_ == '-';
    switch (kineto_field(key)) {
      case KinetoField::ph:
        if (!quoted || !read_string(text, &escapes) || escapes) return false;
        event_.complete = text == "X";
        event_.instant = text == "i";
        return true;
      case KinetoField::cat:
        if (!quoted || !read_string(text, &escapes) || escapes) return false;
        event_.category = kineto_category(text);
        return true;
      case KinetoField::name:
        if (!quoted || !read_string(event_.name, &escapes)) return false;
        escaped_ = escaped_ || escapes;
        return true;
      case KinetoField::ts:
        event_.has_start = true;
        return read_time(event_.start_ns);
      case KinetoField::dur:
        return read_time(event_.duration_ns);
      case KinetoField::pid:
        if ((!quoted && !number) || !read_text(text)) return false;
        event_.pid = integer(text);
        return true;
      case KinetoField::tid:
        return (quoted || number) && read_text(event_.tid);
      case KinetoField::args:
        return *at_ == '{' ? read_arguments() : skip_value(1);
      case KinetoField::other:
        return skip_value(1);
    }
    return false;
  }

  const char *at_, *end_;
  KinetoEvent& event_;
  bool escaped_ = false;  // in the name
};

}  // namespace

const char* read_event_quickly(const char* at, const char* end, KinetoEvent& event) {
  event.clear();
  return QuickReader(at, end, event).read();
}

}  // namespace saturate::observe
