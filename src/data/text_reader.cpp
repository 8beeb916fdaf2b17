// SPDX-License-Identifier: Apache-2.0
#include "data/text_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "data/sampled_source.h"

namespace saturate::data {

namespace {

// Which encodings of one byte a letter a line may be in. They give every byte a letter, so only the
// reader can see which one is right; bytes from 0x80 to 0x9F are letters in those of Windows alone.
const char* old_encodings(std::string_view line) {
  const bool windows = std::ranges::any_of(line, [](char c) {
    return static_cast<unsigned char>(c) >= 0x80 && static_cast<unsigned char>(c) < 0xA0;
  });
  return windows ? "iconv -f WINDOWS-1250 -t UTF-8 for Central European, WINDOWS-1251 Cyrillic, "
                   "WINDOWS-1252 Western text"
                 : "iconv -f ISO-8859-2 -t UTF-8 for Central European, ISO-8859-1 Western, "
                   "ISO-8859-5 or KOI8-R Cyrillic text";
}

}  // namespace

constexpr size_t kReadBytes = size_t{1} << 17;

TextReader::TextReader(const std::string& path, int64_t max_line_bytes, EmptyText empty,
                       std::stop_token stop)
    : name_(display_name(path)),
      max_line_bytes_(max_line_bytes),
      source_(open_byte_source(path, std::move(stop))) {
  refill();
  if (at_end_ && empty == EmptyText::refused)
    throw Error(Errc::invalid_argument, "corpus",
                name_ + ": is empty; give a file with at least one line of text");
}

TextReader::TextReader(const std::string& path, int64_t max_line_bytes, const Sample& sample)
    : name_(display_name(path)),
      max_line_bytes_(max_line_bytes),
      source_(open_sampled_source(path, sample.bytes, sample.seed)) {
  refill();
}

void TextReader::fail(const std::string& problem_and_remedy) const {
  throw BadLine(Errc::invalid_argument, "corpus",
                fmt::format("{}:{}: {}", name_, line_, problem_and_remedy));
}

void TextReader::refill() {
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  scanned_ -= begin_;
  begin_ = 0;
  if (buffer_.size() < end_ + kReadBytes) buffer_.resize(end_ + kReadBytes);
  try {
    const size_t n = source_->read(buffer_.data() + end_, buffer_.size() - end_);
    at_end_ = n == 0;
    end_ += n;
  } catch (const StreamFailure& e) {
    throw Error(Errc::io, "corpus", fmt::format("{}:{}: {}", name_, line_ + 1, e.what()));
  }
}

void TextReader::check(std::string_view line) const {
  if (static_cast<int64_t>(line.size()) > max_line_bytes_)
    fail(fmt::format(
        "the line is longer than {} bytes; give text with one sentence or paragraph a line: split "
        "this one or remove it",
        max_line_bytes_));
  if (!line.empty() && std::memchr(line.data(), 0, line.size()) != nullptr)
    fail(
        "the line has a NUL byte, so this is binary data or UTF-16; give UTF-8 text (iconv -f "
        "UTF-16 "
        "-t UTF-8 converts)");
  if (const size_t at = find_invalid_utf8(line); at != std::string_view::npos) {
    const bool utf16 = line_ == 1 && (line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF"));
    fail(fmt::format("byte {} of the line (0x{:02X}) is not valid UTF-8{}", at + 1,
                     static_cast<unsigned char>(line[at]),
                     utf16 ? ": the file begins like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"
                           : fmt::format("; if the whole file is in another encoding, convert it "
                                         "from that one ({}), else mend or remove the line",
                                         old_encodings(line))));
  }
}

bool TextReader::next(std::string_view& line) {
  for (;;) {
    const char* data = buffer_.data();
    const char* from = data + scanned_;
    const auto* feed = static_cast<const char*>(std::memchr(from, '\n', end_ - scanned_));
    if (feed != nullptr || at_end_) {
      if (feed == nullptr && begin_ == end_) return false;
      const size_t stop = feed != nullptr ? static_cast<size_t>(feed - data) : end_;
      line = {data + begin_, stop - begin_};
      begin_ = scanned_ = feed != nullptr ? stop + 1 : stop;
      if (!std::exchange(skipping_, false)) break;
      continue;
    }
    scanned_ = end_;
    if (skipping_) begin_ = end_;
    if (static_cast<int64_t>(end_ - begin_) > max_line_bytes_ + 4) {  // 4: mark and carriage return
      ++line_;
      skipping_ = true;
      check({data + begin_, end_ - begin_});
    }
    refill();
  }
  ++line_;
  if (line_ == 1 && line.starts_with("\xEF\xBB\xBF")) {
    marked_ = true;
    line.remove_prefix(3);
  }
  if (line.ends_with('\r')) line.remove_suffix(1);
  check(line);
  return true;
}

}  // namespace saturate::data
