// SPDX-License-Identifier: Apache-2.0
// On a procfs of files and a memory of bytes; with real processes: thread_sampler_live_test.cpp.
#include "observe/launcher/wait_reader.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"

namespace saturate::observe {
namespace {

namespace fs = std::filesystem;

// Recorded of Debian's python3, which holds the interpreter itself, and of a library in a wheel.
constexpr const char* kMaps =
    "560a3c000000-560a3c06b000 r--p 00000000 fe:00 131 /usr/bin/python3.11\n"
    "560a3c6d5000-560a3c7d9000 rw-p 006d5000 fe:00 131 /usr/bin/python3.11\n"
    "560a3c7d9000-560a3c81d000 rw-p 00000000 00:00 0\n"
    "560a3d0c4000-560a3d4f1000 rw-p 00000000 00:00 0          [heap]\n"
    "7f79c0000000-7f79c8000000 r--s 00000000 fe:00 900 /data/train.bin\n"
    "7f79cf000000-7f79cf200000 r-xp 00000000 fe:00 700 /usr/lib/libtorch.so\n"
    "7f79cf200000-7f79df200000 r--p 00000000 fe:00 700 /usr/lib/libtorch.so\n"
    "7f79cf600000-7f79cf610000 rw-p 00000000 00:00 0\n";

TEST(Maps, PythonsDataAndTheLargestFileWithoutCode) {
  const auto data = python_data(kMaps);
  ASSERT_EQ(data.size(), 2u);  // and what follows without a gap; not the heap
  EXPECT_EQ(data[0].first, 0x560a3c6d5000u);
  EXPECT_EQ(data[1].second, 0x560a3c81d000u);
  EXPECT_EQ(largest_mapped_file(kMaps), "/data/train.bin");
  EXPECT_EQ(largest_mapped_file("7f00-7f01 r--p 0 fe:00 9 /etc/locale\n"), "");
}

class Waits : public ::testing::Test {
 protected:
  Waits()
      : open(folder / "", [] { return int64_t{0}; }),
        uses(folder / "", open),
        reader(
            folder / "", open, uses, [] { return int64_t{0}; },
            [this](pid_t, uint64_t address, void* to, size_t bytes) {
              errno = refuse ? EPERM : EFAULT;
              if (refuse || address != at || bytes > memory.size()) return false;
              std::memcpy(to, memory.data(), bytes);
              return true;
            }) {
    for (const char* sub : {"/fd", "/task/100", "/task/123"}) fs::create_directories(process + sub);
    std::ofstream(process + "/maps") << kMaps;
    std::ofstream(process + "/task/123/comm") << "prefetch\n";
  }
  WaitReader::Wait wait(int64_t number, const std::string& args, char state = 'S') {
    std::ofstream(process + "/task/100/syscall") << number << " " << args << " 0x0 0x0\n";
    return reader.read(100, 100, state, file);
  }

  saturate::testing::TempFolder folder;
  std::string process = folder / "100";
  OpenFiles open;
  FileUses uses;
  uint64_t at = 0;
  std::string memory;
  bool refuse = false;
  WaitReader reader;
  ThreadFile file;
};

TEST_F(Waits, AMutexNamesItsHolder) {
  const uint32_t words[] = {2, 0, 123, 1};
  memory.assign(reinterpret_cast<const char*>(words), sizeof words);
  at = 0x7f0010;
  EXPECT_EQ(wait(SYS_futex, "0x7f0010 0x80 0x2 0x0 0x0 0x0"),
            (WaitReader::Wait{SpanKind::lock, "held by thread 123 (prefetch)"}));
  // Of a lock that inherits priorities the word is the holder.
  const uint32_t inherits[] = {0x80000000u | 123, 0, 0, 0};
  memory.assign(reinterpret_cast<const char*>(inherits), sizeof inherits);
  EXPECT_EQ(wait(SYS_futex, "0x7f0010 0x86 0x0 0x0 0x0 0x0").name, "held by thread 123 (prefetch)");
}

TEST_F(Waits, WhatIsNoMutexIsAnotherThread) {
  const uint32_t words[] = {2, 0, 999, 1};  // there is no thread 999
  memory.assign(reinterpret_cast<const char*>(words), sizeof words);
  at = 0x7f0010;
  EXPECT_EQ(wait(SYS_futex, "0x7f0010 0x189 0x0 0x0 0x0 0xffffffff").name, "another thread");
  EXPECT_EQ(wait(SYS_futex, "0x7f0010 0x189 0x2 0x0 0x0 0xffffffff").name, "another thread");
  EXPECT_EQ(wait(SYS_futex, "0x7f0010 0x80 0x2 0x0 0x0 0x0").kind, SpanKind::lock);
}

TEST_F(Waits, AFutexInPythonsDataIsTheInterpretersLock) {
  EXPECT_EQ(wait(SYS_futex, "0x560a3c7e0000 0x189 0x0 0x0 0x0 0xffffffff").kind, SpanKind::gil);
  EXPECT_EQ(wait(SYS_futex, "0x560a3d0c5000 0x189 0x0 0x0 0x0 0xffffffff").name, "another thread");
}

TEST_F(Waits, FilesPipesAndSleep) {
  fs::create_symlink("/data/train.bin", process + "/fd/3");
  fs::create_symlink("pipe:[42]", process + "/fd/4");
  EXPECT_EQ(wait(SYS_read, "0x3 0x0 0x100 0x0 0x0 0x0", 'D'),
            (WaitReader::Wait{SpanKind::file_read, "/data/train.bin"}));
  EXPECT_EQ(wait(SYS_fsync, "0x3 0x0 0x0 0x0 0x0 0x0", 'D').kind, SpanKind::file_write);
  EXPECT_EQ(wait(SYS_read, "0x4 0x0 0x100 0x0 0x0 0x0").name, "a pipe");
  EXPECT_EQ(wait(SYS_clock_nanosleep, "0x0 0x0 0x0 0x0 0x0 0x0").name, "sleep");
  memory = std::string("/data/index.json") + '\0';
  memory.resize(4096);
  at = 0x9000;
  EXPECT_EQ(wait(SYS_openat, "0xffffff9c 0x9000 0x0 0x0 0x0 0x0", 'D').name, "/data/index.json");
  std::ofstream(process + "/task/100/syscall") << "-1 0x7ffc 0x7f79\n";
  EXPECT_EQ(reader.read(100, 100, 'D', file),
            (WaitReader::Wait{SpanKind::file_read, "/data/train.bin"}));
  std::ofstream(process + "/task/100/wchan") << "rwsem_down_read_slowpath";
  EXPECT_EQ(reader.read(100, 100, 'D', file).kind, SpanKind::lock);
}

TEST_F(Waits, APollIsOfWhatItPolls) {
  fs::create_symlink("/dev/null", process + "/fd/3");
  fs::create_symlink("pipe:[42]", process + "/fd/4");
  const pollfd fds[] = {{3, POLLIN, 0}, {4, POLLIN, 0}};
  memory.assign(reinterpret_cast<const char*>(fds), sizeof fds);
  at = 0x9000;
  EXPECT_EQ(wait(SYS_ppoll, "0x9000 0x2 0x0 0x0 0x0 0x0").name, "a pipe");
  uint64_t bits = 1u << 4;
  memory.assign(reinterpret_cast<const char*>(&bits), sizeof bits);
  EXPECT_EQ(wait(SYS_pselect6, "0x5 0x9000 0x0 0x0 0x0 0x0").name, "a pipe");
  EXPECT_TRUE(reader.refused().empty());
  refuse = true;
  EXPECT_EQ(wait(SYS_ppoll, "0x9000 0x2 0x0 0x0 0x0 0x0").name, "events");
  EXPECT_EQ(reader.refused().size(), 1u);
}

// Where the call is refused, its kind is known by the kernel's function, and that is said.
TEST_F(Waits, WithoutTheCallTheKernelsFunctionTellsTheKind) {
  std::ofstream(process + "/task/100/wchan") << "folio_wait_bit_common";
  EXPECT_EQ(reader.read(100, 100, 'D', file).kind, SpanKind::file_read);
  ASSERT_EQ(reader.refused().size(), 1u);
  EXPECT_NE(reader.refused()[0].find("ptrace"), std::string::npos);
}

}  // namespace
}  // namespace saturate::observe
