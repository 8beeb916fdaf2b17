// SPDX-License-Identifier: Apache-2.0
// Lines in and out of the commands, "-" being standard input and output.
#pragma once
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/text_reader.h"

namespace saturate::apps {

class LineReader {
 public:
  explicit LineReader(const std::string& path) : reader_(path) {}
  // Up to `most` lines into `lines`; false when there is none left. Errors: as data::TextReader.
  bool read(size_t most, std::vector<std::string>& lines) {
    lines.clear();
    std::string_view line;
    while (lines.size() < most && reader_.next(line)) lines.emplace_back(line);
    return !lines.empty();
  }

 private:
  data::TextReader reader_;
};

// All lines of a file. Errors: as data::TextReader.
inline std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines, block;
  LineReader in(path);
  while (in.read(4096, block)) lines.insert(lines.end(), block.begin(), block.end());
  return lines;
}

class LineWriter {
 public:
  explicit LineWriter(const std::string& path) : path_(path) {
    if (path == "-") return;
    file_ = std::make_unique<std::ofstream>(path, std::ios::binary);
    if (!*file_)
      throw Error(Errc::io, "output", path + " cannot be written; does its folder exist?");
  }
  void write(std::string_view line) { stream() << line << '\n'; }
  // Errors: io when not everything reached the file (a full disk).
  void close() {
    if (!stream().flush())
      throw Error(Errc::io, "output", path_ + " could not be written to its end");
  }

 private:
  std::ostream& stream() { return file_ ? *file_ : std::cout; }
  std::string path_;
  std::unique_ptr<std::ofstream> file_;
};

}  // namespace saturate::apps
