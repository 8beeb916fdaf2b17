// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/byte_source.h"

namespace saturate::data {

constexpr int64_t kMaxLineBytes = int64_t{1} << 20;

// A line that cannot be used, in a file that can be read on.
struct BadLine : Error {
  using Error::Error;
};

// Whether a text without a line is an error: it is where something is to be learned from it.
enum class EmptyText : uint8_t { refused, allowed };

// Lines of a text file: plain, gzip or zstd, or standard input for "-". Memory is bounded by
// max_line_bytes. A carriage return before the line feed and a byte order mark at the start are
// dropped. A line is given as soon as it can be read; who waits for one can be asked to `stop`, as
// at the end. Errors: Error{io | invalid_argument} naming file:line and the remedy, for a file that
// is missing, empty, a directory, truncated, binary, not UTF-8, or has a longer line than allowed.
// The last three are a BadLine: the next call gives the line after it.
class TextReader {
 public:
  explicit TextReader(const std::string& path, int64_t max_line_bytes = kMaxLineBytes,
                      EmptyText empty = EmptyText::refused, std::stop_token stop = {});
  // A sample of the file, when sample.bytes > 0: it may have no line, and its line numbers mean
  // nothing.
  TextReader(const std::string& path, int64_t max_line_bytes, const Sample& sample);

  // False at the end of the file. `line` is valid until the next call.
  bool next(std::string_view& line);

  bool had_byte_order_mark() const noexcept { return marked_; }  // known after the first line
  int64_t line_number() const noexcept { return line_; }         // of the last line given, from 1
  const std::string& name() const noexcept { return name_; }
  // Throws BadLine, "file:line: problem; remedy" for the last line given.
  [[noreturn]] void fail(const std::string& problem_and_remedy) const;

 private:
  void refill();
  void check(std::string_view line) const;

  std::string name_;
  int64_t max_line_bytes_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, scanned_ = 0, end_ = 0;  // the line starts at begin_; no '\n' before scanned_
  int64_t line_ = 0;
  bool at_end_ = false, marked_ = false;
  bool skipping_ = false;  // the rest of a line that was too long
};

}  // namespace saturate::data
