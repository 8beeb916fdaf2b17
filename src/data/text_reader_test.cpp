// SPDX-License-Identifier: Apache-2.0
#include "data/text_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>

#include "base/philox.h"
#include "base/utf8.h"
#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

std::string gzip(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::vector<std::string> read_all(const std::string& path, int64_t limit = kMaxLineBytes) {
  TextReader reader(path, limit);
  std::vector<std::string> lines;
  std::string_view line;
  while (reader.next(line)) lines.emplace_back(line);
  return lines;
}

using Lines = std::vector<std::string>;

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8("Gr\xC3\xBC\xC3\x9F Gott \xE2\x82\xAC \xF0\x9F\x98\x80"),
            std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("abcdefghij\xFF"), 10u);
  for (const char* bad :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3", "\xE2\x82", "\x80"})
    EXPECT_EQ(find_invalid_utf8(bad), 0u) << bad;
  EXPECT_EQ(utf8_prefix("a\xE2\x82\xAC", 3), "a");
}

TEST(TextReader, ReadsPlainGzipAndZstdTheSame) {
  const SampleFolder dir;
  std::string text;
  Lines lines;
  for (uint64_t i = 0; i < 20000; ++i) {
    lines.push_back(std::string(philox4x32(1, i, 0).x[0] % 90, 'a') + std::to_string(i));
    text += lines.back() + "\n";
  }
  EXPECT_EQ(read_all(dir.write("a", text)), lines);
  EXPECT_EQ(read_all(dir.write("a.gz", gzip(text))), lines);
  EXPECT_EQ(read_all(dir.write("any name", zstd(text))), lines);
  const size_t half = text.size() / 2;
  EXPECT_EQ(read_all(dir.write("two.gz", gzip(text.substr(0, half)) + gzip(text.substr(half)))),
            lines);
  EXPECT_EQ(read_all(dir.write("two.zst", zstd(text.substr(0, half)) + zstd(text.substr(half)))),
            lines);
}

TEST(TextReader, DropsCarriageReturnAndByteOrderMark) {
  const SampleFolder dir;
  EXPECT_EQ(read_all(dir.write("a", "\xEF\xBB\xBFone\r\n\r\n three")),
            (Lines{"one", "", " three"}));
  EXPECT_EQ(read_all(dir.write("b", "x")), (Lines{"x"}));
  EXPECT_EQ(read_all(dir.write("c", "\n")), (Lines{""}));
}

TEST(TextReader, TellsOfAByteOrderMark) {
  const SampleFolder dir;
  std::string_view line;
  for (const bool marked : {true, false}) {
    TextReader reader(dir.write("a", marked ? "\xEF\xBB\xBFone\n" : "one\n\xEF\xBB\xBFtwo\n"));
    while (reader.next(line)) {
    }
    EXPECT_EQ(reader.had_byte_order_mark(), marked);
  }
}

TEST(TextReader, AllowsAnEmptyTextWhereAsked) {
  const SampleFolder dir;
  TextReader reader(dir.write("a", ""), kMaxLineBytes, EmptyText::allowed);
  std::string_view line;
  EXPECT_FALSE(reader.next(line));
}

// What was typed is there before more comes, whatever compressed data begins with.
TEST(TextReader, GivesALineBeforeTheNextIsWritten) {
  const SampleFolder dir;
  const std::string pipe = dir.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int fd = open(pipe.c_str(), O_RDWR | O_CLOEXEC);  // a writer that never closes
  ASSERT_GE(fd, 0);
  for (const char* text : {"a\n", "(\n", "\n"}) {
    alarm(10);  // a reader that waits for more would wait for ever
    ASSERT_EQ(write(fd, text, std::strlen(text)), static_cast<ssize_t>(std::strlen(text)));
    TextReader reader(pipe);
    std::string_view line;
    EXPECT_TRUE(reader.next(line));
    EXPECT_EQ(std::string(line) + "\n", text);
    alarm(0);
  }
  close(fd);
}

TEST(TextReader, NamesFileLineAndRemedy) {
  const SampleFolder dir;
  const auto message = [&](const std::string& bytes) {
    const std::string path = dir.write("in", bytes);
    return error_of([&] { read_all(path, 100); });
  };
  EXPECT_NE(message("").find("in: is empty; give a file"), std::string::npos);
  EXPECT_NE(message("ok\nbad \xFF\n").find("in:2: byte 5 of the line (0xFF) is not valid UTF-8"),
            std::string::npos);
  EXPECT_NE(message(std::string("a\nb\nc\0d\n", 8)).find("in:3: the line has a NUL byte"),
            std::string::npos);
  EXPECT_NE(message("ok\n" + std::string(101, 'x')).find("in:2: the line is longer than 100 bytes"),
            std::string::npos);
  EXPECT_NE(message(std::string(10'000'000, 'x')).find("in:1: the line is longer"),
            std::string::npos);
  EXPECT_EQ(message(std::string(100, 'x') + "\r\n"), "");
  EXPECT_NE(error_of([&] { read_all(dir.file("none")); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { read_all(dir.file("")); }).find("is a directory"), std::string::npos);
}

TEST(TextReader, SeesTruncatedAndCorruptStreams) {
  const SampleFolder dir;
  const std::string text(5000, 'x');
  for (const std::string& packed : {gzip(text + "\n"), zstd(text + "\n")}) {
    for (size_t n = 4; n < packed.size(); ++n) {
      const std::string path = dir.write("cut", packed.substr(0, n));
      EXPECT_NE(error_of([&] { read_all(path); }).find("truncated"), std::string::npos) << n;
    }
    for (uint64_t i = 0; i < 300; ++i) {  // any damage gives lines or an Error
      std::string bytes = packed;
      const Random4 r = philox4x32(7, i, 0);
      bytes[r.x[0] % bytes.size()] = static_cast<char>(r.x[1]);
      const std::string path = dir.write("damaged", bytes);
      error_of([&] { read_all(path); });
    }
  }
}

TEST(TextReader, ReadsStandardInput) {
  const SampleFolder dir;
  const std::string packed = gzip("one\ntwo\n");
  const int saved = ::dup(STDIN_FILENO);
  const auto give = [&] {
    const int fd = ::open(dir.write("in.gz", packed).c_str(), O_RDONLY);
    ::dup2(fd, STDIN_FILENO);
    ::close(fd);
  };
  give();
  EXPECT_EQ(read_all("-"), (Lines{"one", "two"}));
  ::dup2(saved, STDIN_FILENO);
  ::close(saved);
}

TEST(TextReader, GoesOnAfterABadLine) {
  const SampleFolder dir;
  const std::string x(1 << 18, 'x'), y(1 << 18, 'y');
  const auto path = dir.write("bad", std::string("one\na\0b\n", 8) + x + "\n\xFF\ntwo\n" + y);
  TextReader reader(path, 100);
  std::string_view line;
  Lines lines, bad;
  for (;;) {
    try {
      if (!reader.next(line)) break;
      lines.emplace_back(line);
    } catch (const BadLine& e) {
      bad.emplace_back(e.what());
    }
  }
  EXPECT_EQ(lines, (Lines{"one", "two"}));
  ASSERT_EQ(bad.size(), 4u);
  EXPECT_NE(bad[0].find(path + ":2: the line has a NUL"), std::string::npos) << bad[0];
  EXPECT_NE(bad[1].find(path + ":3: the line is longer"), std::string::npos) << bad[1];
  EXPECT_NE(bad[2].find(path + ":4: byte 1"), std::string::npos) << bad[2];
  EXPECT_NE(bad[3].find(path + ":6: the line is longer"), std::string::npos) << bad[3];
}

}  // namespace
}  // namespace saturate::data
