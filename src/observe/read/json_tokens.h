// SPDX-License-Identifier: Apache-2.0
// JSON one token at a time from a stream, in constant memory: traces reach gigabytes, and their
// times need more digits than a double has, so numbers stay text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/read/input.h"

namespace saturate::observe {

enum class JsonToken : uint8_t {
  begin_object,
  end_object,
  begin_array,
  end_array,
  key,
  string,
  number,
  literal,  // true, false, null
  end,
};

// Checks the grammar as it goes (RFC 8259, plus NaN and Infinity, which profilers do write).
// Strings are not checked to be UTF-8, and are cut after 4096 bytes. At most 64 levels deep.
// Errors     Error{invalid_argument} with file and byte offset; whatever Input throws.
class JsonTokens {
 public:
  explicit JsonTokens(Input& input) : input_(input) { buffer_.resize(kBuffer); }

  JsonToken next();
  // Of the last key, string, number or literal; valid until the next call.
  std::string_view text() const { return text_; }
  // Passes over the rest of a value whose first token was `first`.
  void skip(JsonToken first);
  // Where the last token began, in decompressed bytes.
  int64_t offset() const { return token_offset_; }
  [[noreturn]] void fail(std::string_view problem) const;

 private:
  enum class Expect : uint8_t {
    value,
    value_or_end,
    key,
    key_or_end,
    colon,
    comma_or_end,
    nothing
  };
  static constexpr size_t kBuffer = size_t{1} << 18;
  static constexpr size_t kMaxText = 4096;
  static constexpr size_t kMaxBare = 512;
  static constexpr size_t kMaxDepth = 64;

  int peek();  // -1 at the end
  int get();
  bool refill();
  int skip_blanks();
  void read_string();
  void read_escape();
  unsigned read_hex4();
  void read_bare(bool number);
  JsonToken close(char bracket);
  JsonToken value_done(JsonToken token);
  void append(const char* from, size_t bytes);

  Input& input_;
  std::vector<char> buffer_;
  size_t at_ = 0, size_ = 0;
  int64_t buffer_offset_ = 0, token_offset_ = 0;
  std::string scratch_;
  std::string_view text_;
  std::string open_;  // brackets
  Expect expect_ = Expect::value;
};

}  // namespace saturate::observe
