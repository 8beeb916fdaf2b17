// SPDX-License-Identifier: Apache-2.0
#include "observe/read/json_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"

namespace saturate::observe {
namespace {

bool is_bare(int c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

// -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
bool is_number(std::string_view t) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t from = i;
    while (i < t.size() && t[i] >= '0' && t[i] <= '9') ++i;
    return i - from;
  };
  if (i < t.size() && t[i] == '-') ++i;
  const size_t first = i, whole = digits();
  if (whole == 0 || (whole > 1 && t[first] == '0')) return false;
  if (i < t.size() && t[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < t.size() && (t[i] == 'e' || t[i] == 'E')) {
    ++i;
    if (i < t.size() && (t[i] == '-' || t[i] == '+')) ++i;
    if (digits() == 0) return false;
  }
  return i == t.size();
}

}  // namespace

void JsonTokens::fail(std::string_view problem) const {
  throw Error(
      Errc::invalid_argument, "doctor",
      fmt::format("{}: at byte {} (decompressed): {}; the file is no complete trace, record or "
                  "copy it again",
                  name_, token_offset_, problem));
}

bool JsonTokens::refill() {
  if (input_ == nullptr) {
    ran_out_ = true;
    return false;
  }
  buffer_offset_ += static_cast<int64_t>(size_);
  at_ = 0;
  size_ = input_->read(buffer_.data(), buffer_.size());
  ran_out_ = size_ == 0;
  return size_ > 0;
}

void JsonTokens::leave_array(std::string_view unread, int64_t offset) {
  std::vector<char> rest(unread.begin(), unread.end());
  size_ = rest.size();
  rest.resize(std::max(rest.size(), kBuffer));
  buffer_ = std::move(rest);
  data_ = buffer_.data();
  at_ = 0;
  buffer_offset_ = offset;
  close('[');
}

int JsonTokens::peek() {
  if (at_ == size_ && !refill()) return -1;
  return static_cast<unsigned char>(data_[at_]);
}

int JsonTokens::get() {
  const int c = peek();
  if (c >= 0) ++at_;
  return c;
}

int JsonTokens::skip_blanks() {
  for (;;) {
    const int c = peek();
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    ++at_;
  }
}

void JsonTokens::append(const char* from, size_t bytes) {
  const size_t room = kMaxText - std::min(kMaxText, scratch_.size());
  scratch_.append(from, std::min(bytes, room));
}

unsigned JsonTokens::read_hex4() {
  unsigned value = 0;
  for (int i = 0; i < 4; ++i) {
    const int c = get();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail("a \\u in a string is not followed by four hex digits");
    value = value * 16 + static_cast<unsigned>(digit);
  }
  return value;
}

// Half pairs of UTF-16 become '?': texts are for people only.
void JsonTokens::read_escape() {
  const int c = get();
  constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  if (c >= 0 && c != 'u') {
    const size_t i = kFrom.find(static_cast<char>(c));
    if (i == std::string_view::npos) fail("unknown escape in a string");
    append(&kTo[i], 1);
    return;
  }
  if (c < 0) fail("the file ends inside a string");
  const unsigned u = read_hex4();
  if (u >= 0xD800 && u < 0xE000) return append("?", 1);
  std::string utf8;
  append_utf8(utf8, u);
  append(utf8.data(), utf8.size());
}

// After the opening quote.
void JsonTokens::read_string() {
  scratch_.clear();
  bool in_scratch = false;
  for (;;) {
    if (at_ == size_ && !refill()) fail("the file ends inside a string");
    const char* from = data_ + at_;
    const char* to = data_ + size_;
    const char* p = from;
    while (p != to && *p != '"' && *p != '\\') ++p;
    const auto run = static_cast<size_t>(p - from);
    at_ += run;
    if (p != to && *p == '"' && !in_scratch) {
      ++at_;
      text_ = std::string_view(from, std::min(run, kMaxText));
      return;
    }
    append(from, run);
    in_scratch = true;
    if (p == to) continue;
    ++at_;
    if (*p == '"') break;
    read_escape();
  }
  text_ = scratch_;
}

void JsonTokens::read_bare(bool number) {
  const char *from = data_ + at_, *end = data_ + size_, *p = from;
  while (p != end && is_bare(static_cast<unsigned char>(*p))) ++p;
  text_ = std::string_view(from, static_cast<size_t>(p - from));
  at_ += text_.size();
  if (p == end) {  // may go on in the next buffer
    scratch_.assign(text_.substr(0, kMaxBare + 1));
    while (is_bare(peek()) && scratch_.size() <= kMaxBare) scratch_ += data_[at_++];
    text_ = scratch_;
  }
  if (text_.size() > kMaxBare) fail("a number or word longer than 512 characters");
  const bool odd = text_ == "NaN" || text_ == "Infinity" || text_ == "-Infinity";
  if (odd || (number && is_number(text_))) return;
  if (!number && (text_ == "true" || text_ == "false" || text_ == "null")) return;
  fail(number ? "not a number" : "a value was expected");
}

JsonToken JsonTokens::value_done(JsonToken token) {
  expect_ = open_.empty() ? Expect::nothing : Expect::comma_or_end;
  return token;
}

JsonToken JsonTokens::close(char bracket) {
  if (open_.empty() || open_.back() != bracket) fail("a closing bracket that nothing opened");
  open_.pop_back();
  return value_done(bracket == '{' ? JsonToken::end_object : JsonToken::end_array);
}

JsonToken JsonTokens::next() {
  int c = skip_blanks();
  token_offset_ = buffer_offset_ + static_cast<int64_t>(at_);
  if (expect_ == Expect::nothing) {
    if (c >= 0) fail("text after the end of the JSON value");
    return JsonToken::end;
  }
  if (c < 0) fail("the file ends before the JSON value does");
  if (expect_ == Expect::comma_or_end) {
    if (c == '}' || c == ']') {
      ++at_;
      return close(c == '}' ? '{' : '[');
    }
    if (c != ',') fail("',' or a closing bracket was expected");
    ++at_;
    c = skip_blanks();
    token_offset_ = buffer_offset_ + static_cast<int64_t>(at_);
    expect_ = open_.back() == '{' ? Expect::key : Expect::value;
    if (c < 0) fail("the file ends before the JSON value does");
  }
  if (expect_ == Expect::key || expect_ == Expect::key_or_end) {
    if (c == '}' && expect_ == Expect::key_or_end) {
      ++at_;
      return close('{');
    }
    if (c != '"') fail("a key in quotes was expected");
    ++at_;
    read_string();
    // The colon may lie in the next buffer: keep the key's text.
    if (text_.data() != scratch_.data()) {
      scratch_.assign(text_);
      text_ = scratch_;
    }
    if (skip_blanks() != ':') fail("':' was expected after a key");
    ++at_;
    expect_ = Expect::value;
    return JsonToken::key;
  }
  if (c == ']' && expect_ == Expect::value_or_end) {
    ++at_;
    return close('[');
  }
  if (c == '{' || c == '[') {
    if (open_.size() >= kMaxDepth) fail("more than 64 levels of brackets");
    ++at_;
    open_ += static_cast<char>(c);
    expect_ = c == '{' ? Expect::key_or_end : Expect::value_or_end;
    return c == '{' ? JsonToken::begin_object : JsonToken::begin_array;
  }
  if (c == '"') {
    ++at_;
    read_string();
    return value_done(JsonToken::string);
  }
  const bool number = c == '-' || (c >= '0' && c <= '9');
  read_bare(number);
  return value_done(number || text_ == "NaN" || text_ == "Infinity" ? JsonToken::number
                                                                    : JsonToken::literal);
}

void JsonTokens::skip(JsonToken first) {
  int depth = first == JsonToken::begin_object || first == JsonToken::begin_array ? 1 : 0;
  while (depth > 0) {
    const JsonToken t = next();
    if (t == JsonToken::begin_object || t == JsonToken::begin_array) ++depth;
    if (t == JsonToken::end_object || t == JsonToken::end_array) --depth;
  }
}

}  // namespace saturate::observe
