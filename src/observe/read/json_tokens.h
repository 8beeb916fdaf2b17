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
  explicit JsonTokens(Input& input) : input_(&input), name_(input.name()), buffer_(kBuffer) {
    data_ = buffer_.data();
  }
  // Of `bytes`, which must outlive the tokens and lie `offset` bytes into the file `name`.
  JsonTokens(std::string_view bytes, int64_t offset, std::string_view name)
      : name_(name), data_(bytes.data()), size_(bytes.size()), buffer_offset_(offset) {}

  JsonToken next();
  // Of the last key, string, number or literal; valid until the next call.
  std::string_view text() const { return text_; }
  // Passes over the rest of a value whose first token was `first`.
  void skip(JsonToken first);
  // Where the last token began, in decompressed bytes.
  int64_t offset() const { return token_offset_; }
  // Just behind the last token, in decompressed bytes.
  int64_t end_offset() const { return buffer_offset_ + static_cast<int64_t>(at_); }
  // More bytes were asked for than there are.
  bool ran_out() const { return ran_out_; }
  [[noreturn]] void fail(std::string_view problem) const;

  // For somebody else to read the values of the array that was just begun, up to and with its
  // bracket: the bytes that were read from the input already. leave_array() goes on behind the
  // array, `offset` bytes into the file, with `unread` before what the input still holds.
  std::string_view unread() const { return {data_ + at_, size_ - at_}; }
  void leave_array(std::string_view unread, int64_t offset);

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

  Input* input_ = nullptr;  // null: all there is lies in data_
  std::string name_;
  std::vector<char> buffer_;
  const char* data_ = nullptr;
  size_t at_ = 0, size_ = 0;
  int64_t buffer_offset_ = 0, token_offset_ = 0;
  bool ran_out_ = false;
  std::string scratch_;
  std::string_view text_;
  std::string open_;  // brackets
  Expect expect_ = Expect::value;
};

}  // namespace saturate::observe
