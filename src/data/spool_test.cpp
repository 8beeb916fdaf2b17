// SPDX-License-Identifier: Apache-2.0
#include "data/spool.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

std::string fifo(const SampleFolder& dir, const char* name) {
  const std::string path = dir.file(name);
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return path;
}

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

TEST(Spool, TellsWhatCanBeReadOnce) {
  const SampleFolder dir;
  EXPECT_TRUE(is_read_once("-"));
  EXPECT_TRUE(is_read_once("/dev/null"));
  EXPECT_TRUE(is_read_once(fifo(dir, "a")));
  EXPECT_FALSE(is_read_once(dir.write("b", "text")));
  EXPECT_FALSE(is_read_once(dir.file("missing")));
}

// One program that fills two FIFOs by turns stops when either is full, unless both are read.
TEST(Spool, ReadsAllInputsAtOnce) {
  const SampleFolder dir;
  const std::string a = fifo(dir, "a"), b = fifo(dir, "b");
  const std::string block(100000, 'x');  // more than a pipe holds
  std::thread writer([&] {
    std::ofstream to_b(b), to_a(a);
    for (int i = 0; i < 5; ++i) {
      to_a << block << std::flush;
      to_b << block << i << std::flush;
    }
  });
  int64_t reported = 0;
  spool({{a, dir.file("a.copy")}, {b, dir.file("b.copy")}}, {}, [&](int64_t n) { reported = n; });
  writer.join();
  EXPECT_EQ(content(dir.file("a.copy")).size(), 500000u);
  EXPECT_EQ(content(dir.file("b.copy")).size(), 500005u);
  EXPECT_EQ(reported, 1000005);
}

TEST(Spool, AnInterruptEndsTheWaitForAWriter) {
  const SampleFolder dir;
  std::atomic<int> signal{0};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    signal = 15;
  });
  EXPECT_THROW(spool({{fifo(dir, "a"), dir.file("copy")}}, Interrupt(signal)), Interrupted);
  later.join();
  EXPECT_FALSE(std::filesystem::exists(dir.file("copy")));
  EXPECT_FALSE(std::filesystem::exists(dir.file("copy.tmp")));
}

TEST(Spool, RefusesEmptyInput) {
  const SampleFolder dir;
  EXPECT_NE(error_of([&] {
              spool({{"/dev/null", dir.file("copy")}}, {});
            }).find("is empty"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir.file("copy")));
}

}  // namespace
}  // namespace saturate::data
