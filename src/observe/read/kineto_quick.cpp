// SPDX-License-Identifier: Apache-2.0
// KinetoQuick: one pass over bytes in memory, nothing kept of what does not count. Whatever it is
// not sure of it leaves to the careful reader.
#include <bit>
#include <charconv>
#include <cstring>

#include "observe/read/decimal.h"
#include "observe/read/kineto_event.h"

namespace saturate::observe {
namespace {

constexpr int kMaxDepth = 32;  // below that of the careful reader
constexpr size_t kMaxBare = 512;

static_assert(std::endian::native == std::endian::little, "the first byte is the lowest");
constexpr uint64_t kOnes = 0x0101010101010101u;

uint64_t word_at(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// Whether eight bytes are digits: both nibbles' sums stay in place then, so no byte has its highest
// bits but those of '0'.
bool are_digits(uint64_t word) {
  return ((word & (kOnes * 0xF0)) | (((word + kOnes * 6) & (kOnes * 0xF0)) >> 4)) == kOnes * 0x33;
}
// Their value: pairs, then fours, then all, each by one multiplication.
int64_t value_of_digits(uint64_t word) {
  word -= kOnes * '0';
  word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FFu;
  word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFFu;
  return static_cast<int64_t>((word * 10'000 + (word >> 32)) & 0xFFFFFFFFu);
}

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_bare(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' ||
         c == '.';
}

bool same_bytes(const char* a, const char* b, size_t n) {
  if (n < 8) return std::memcmp(a, b, n) == 0;
  for (size_t i = 0; i + 8 < n; i += 8)
    if (word_at(a + i) != word_at(b + i)) return false;
  return word_at(a + n - 8) == word_at(b + n - 8);
}

// All members: false, with at_ anywhere, when the careful reader has to decide.
class QuickReader {
 public:
  // `learnt`: where what the event is laid out like goes, or null.
  QuickReader(const char* at, const char* end, KinetoEvent& event, KinetoLayout* learnt)
      : at_(at), end_(end), reach_(at), event_(event), learnt_(learnt) {}

  const char* read() {
    if (!open('{')) return nullptr;
    if (next('}')) return ended();
    do {
      std::string_view key;
      if (!read_key(key) || !read_field(key)) return nullptr;
    } while (next(','));
    return next('}') ? ended() : nullptr;
  }

  // An event that is laid out like that. The bytes between its values are those of an event that
  // was read, so nothing of them needs a second check.
  const char* read(const KinetoLayout& like) {
    const char* bytes = like.bytes.data();
    for (const KinetoLayout::Value& v : like.values) {
      if (!take(bytes, v.bytes_before) || at_ == end_ || !read_value(v)) return nullptr;
      bytes += v.bytes_before;
    }
    if (!take(bytes, like.bytes_after)) return nullptr;
    return escaped_ && event_.counts() ? nullptr : at_;
  }

 private:
  // Mostly a line's end and a run of spaces.
  void skip_blanks() {
    while (at_ != end_ && is_blank(*at_)) {
      ++at_;
      if (end_ - at_ < 8) continue;
      const uint64_t others = word_at(at_) ^ (kOnes * ' ');
      at_ += others == 0 ? 8 : std::countr_zero(others) >> 3;
    }
  }
  bool take(const char* bytes, size_t n) {
    if (static_cast<size_t>(end_ - at_) < n || !same_bytes(at_, bytes, n)) return false;
    at_ += n;
    return true;
  }
  const char* ended() {
    if (learnt_ != nullptr) {
      learnt_->bytes.append(reach_, at_);
      learnt_->bytes_after = static_cast<size_t>(at_ - reach_);
    }
    return escaped_ && event_.counts() ? nullptr : at_;
  }

  // Reads the value that `at_` is at, and learns where it lies.
  bool read_and_learn(KinetoLayout::Value v) {
    const char* from = at_;
    if (!read_value(v)) return false;
    if (learnt_ == nullptr) return true;
    v.bytes_before = static_cast<size_t>(from - reach_);
    learnt_->bytes.append(reach_, from);
    learnt_->values.push_back(v);
    reach_ = at_;
    return true;
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

  // The first quote or backslash, eight bytes at a time: a byte of `quote` or `slash` is zero where
  // one is, and subtracting 1 borrows into its highest bit; the lowest such bit is true.
  const char* find_quote(const char* p) const {
    for (; end_ - p >= 8; p += 8) {
      const uint64_t word = word_at(p);
      const uint64_t quote = word ^ (kOnes * '"'), slash = word ^ (kOnes * '\\');
      const uint64_t found =
          (((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash)) & (kOnes << 7);
      if (found != 0) return p + (std::countr_zero(found) >> 3);
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
    if (!text.empty() && text.size() <= 18) {
      size_t i = 0;
      while (i < text.size() && is_digit(text[i])) n = n * 10 + (text[i++] - '0');
      if (i == text.size()) return n;
      n = 0;
    }
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
    if (end_ - p > 16 && are_digits(word_at(p))) {
      value = value_of_digits(word_at(p));
      p += 8;
      if (are_digits(word_at(p))) {
        value = value * 100'000'000 + value_of_digits(word_at(p));
        p += 8;
      }
    }
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
      const char* from = at_;
      int64_t factor = 0;
      while (at_ != end_ && is_digit(*at_) && at_ - from < 10)
        factor = factor * 10 + (*at_++ - '0');
      const bool plain =
          at_ != from && at_ != end_ && !is_bare(*at_) && (*from != '0' || at_ - from == 1);
      std::string_view text;
      if (!plain) {
        at_ = from;
        if (!read_number(text)) return false;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
        if (error != std::errc{} || end != text.data() + text.size()) return false;
      }
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
      KinetoLayout::Value v{.use = KinetoUse::skipped, .depth = 2};
      if (int64_t* number = kineto_argument(event_, key, &product); number != nullptr) {
        v.use = product ? KinetoUse::product : KinetoUse::integer;
        v.target = offset_of(number);
      } else if (std::string_view* raw = kineto_raw_argument(event_, key); raw != nullptr) {
        v.use = KinetoUse::raw;
        v.target = offset_of(raw);
      }
      if (!read_and_learn(v)) return false;
    } while (next(','));
    return next('}');
  }

  bool read_field(std::string_view key) {
    const KinetoField field = kineto_field(key);
    if (field == KinetoField::args && *at_ == '{') return read_arguments();
    return read_and_learn({.use = KinetoUse::field, .field = field, .depth = 1});
  }

  std::ptrdiff_t offset_of(const void* member) const {
    return static_cast<const char*>(member) -
           reinterpret_cast<const char*>(static_cast<const KinetoFields*>(&event_));
  }
  template <class T>
  T& member(std::ptrdiff_t offset) const {
    return *reinterpret_cast<T*>(reinterpret_cast<char*>(static_cast<KinetoFields*>(&event_)) +
                                 offset);
  }

  bool read_value(const KinetoLayout::Value& v) {
    switch (v.use) {
      case KinetoUse::field:
        return read_field_value(v.field);
      case KinetoUse::skipped:
        return skip_value(v.depth);
      case KinetoUse::product:
        if (*at_ != '[') return skip_value(v.depth);
        return read_product(member<int64_t>(v.target));
      case KinetoUse::integer: {
        if (*at_ != '"' && *at_ != '-' && !is_digit(*at_)) return skip_value(v.depth);
        std::string_view text;
        if (!read_text(text)) return false;
        member<int64_t>(v.target) = integer(text);
        return true;
      }
      case KinetoUse::raw: {
        const char* from = at_;
        if (!skip_value(v.depth)) return false;
        member<std::string_view>(v.target) =
            std::string_view(from, static_cast<size_t>(at_ - from));
        return true;
      }
    }
    return false;
  }

  bool read_field_value(KinetoField field) {
    std::string_view text;
    bool escapes = false;
    const bool quoted = *at_ == '"', number = is_digit(*at_) || *at_ == '-';
    switch (field) {
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
        return *at_ != '{' && skip_value(1);
      case KinetoField::other:
        return skip_value(1);
    }
    return false;
  }

  const char *at_, *end_;
  const char* reach_;  // of the layout that is learnt
  KinetoEvent& event_;
  KinetoLayout* learnt_;
  bool escaped_ = false;  // in the name
};

}  // namespace

const char* KinetoQuick::read(const char* at, const char* end, KinetoEvent& event) {
  for (const uint8_t guess : next_[last_]) {
    if (guess == kNoLayout) break;
    event.clear();
    if (const char* after = QuickReader(at, end, event, nullptr).read(layouts_[guess])) {
      last_is(guess);
      return after;
    }
  }
  event.clear();
  learnt_.bytes.clear();
  learnt_.values.clear();
  const char* after = QuickReader(at, end, event, &learnt_).read();
  if (after == nullptr || learnt_.bytes.size() > kMostBytes) return after;
  for (uint8_t i = 0; i < layouts_.size(); ++i) {
    if (layouts_[i] != learnt_) continue;
    last_is(i);
    return after;
  }
  if (layouts_.size() < kMostLayouts) {
    layouts_.push_back(learnt_);
    next_.emplace_back().fill(kNoLayout);
    last_is(static_cast<uint8_t>(layouts_.size() - 1));
  }
  return after;
}

// The two that came after an event of the same layout last, the latest first.
void KinetoQuick::last_is(uint8_t layout) {
  auto& next = next_[last_];
  if (next[0] != layout) {
    next[1] = next[0];
    next[0] = layout;
  }
  last_ = static_cast<uint8_t>(layout + 1);
}

}  // namespace saturate::observe
