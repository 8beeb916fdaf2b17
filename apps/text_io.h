// SPDX-License-Identifier: Apache-2.0
// Lines in and out of the commands, "-" being standard input and output.
#pragma once
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "data/text_reader.h"

namespace saturate::apps {

// All lines of a text that is to be scored. Warns of a byte order mark, which is no part of the
// text here and a character of it for sacreBLEU. Errors: as data::TextReader.
inline std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  data::TextReader reader(path);
  for (std::string_view line; reader.next(line);) lines.emplace_back(line);
  if (reader.had_byte_order_mark()) {
    log_warning(reader.name() +
                ": the byte order mark at its start is left out; sacreBLEU would count it as a "
                "character of line 1");
  }
  return lines;
}

// A file gets its name when it is whole: until close() the lines are in path + ".part", so that
// what `path` held before (it may be the input) outlives a failure. Devices and pipes are written
// as they are.
class LineWriter {
 public:
  // Errors: io when the file cannot be created.
  explicit LineWriter(const std::string& path)
      : path_(path == "-" ? "standard output" : path), written_(path) {
    if (path == "-") return;
    if (!std::filesystem::exists(path) || std::filesystem::is_regular_file(path))
      written_ += ".part";
    file_ = std::make_unique<std::ofstream>(written_, std::ios::binary);
    if (!*file_) fail("cannot be created");
  }
  ~LineWriter() {
    if (closed_ || written_ == path_ || !file_) return;
    file_->close();
    if (lines_ == 0) {
      std::remove(written_.c_str());
    } else {
      log_warning("what was done before the error is in " + written_);
    }
  }
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Errors: io when a line cannot be written (a full disk).
  void write(std::string_view line) {
    ++lines_;
    if (!(stream() << line << '\n')) fail("cannot be written to its end");
  }
  // A part of a line. Errors: as write().
  void put(std::string_view part) {
    if (!(stream() << part)) fail("cannot be written to its end");
  }
  // What was written is with the system: a reader of the pipe sees it, and no end of this process
  // loses it. Errors: as write().
  void flush() {
    if (!stream().flush()) fail("cannot be written to its end");
  }
  // Where the lines are until close(); empty for what is written as it is.
  std::string part() const { return written_ != path_ && file_ ? written_ : std::string(); }
  // Errors: io when not everything reached the file.
  void close() {
    flush();
    if (file_ && written_ != path_) {
      file_->close();
      sync_file(written_);
      if (std::rename(written_.c_str(), path_.c_str()) != 0) fail("cannot be replaced");
    }
    closed_ = true;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const char* cause = errno != 0 ? std::strerror(errno) : "unknown cause";
    throw Error(
        Errc::io, "output",
        path_ + ' ' + what + ": " + cause + "; check its folder, permissions and free space");
  }
  std::ostream& stream() { return file_ ? *file_ : std::cout; }

  std::string path_, written_;
  std::unique_ptr<std::ofstream> file_;
  int64_t lines_ = 0;
  bool closed_ = false;
};

}  // namespace saturate::apps
