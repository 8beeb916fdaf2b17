// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/cut_captures.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"
#include "observe/read/open_capture.h"
#include "observe/read/sat_writer.h"

namespace saturate::observe {
namespace {

using saturate::testing::TempFolder;

// A part of a trace with `ops` operations from second `at` on, each of a millisecond.
Trace part(Trace t, int64_t at, int ops) {
  t.ops.clear();
  t.calls.clear();
  const uint32_t stream = t.streams.add({1, 0, 1, 7}), thread = t.threads.add({1, 1});
  for (int i = 0; i < ops; ++i) {
    const int64_t ns = at * 1'000'000'000 + i * 1'000'000;
    DeviceOp op;
    op.start_ns = ns + 5'000, op.end_ns = ns + 900'000, op.correlation = at * 1'000 + i;
    op.name = t.names.add("kernel"), op.stream = stream;
    t.ops.push_back(op);
    t.calls.push_back({ns, ns + 4'000, at * 1'000 + i, t.names.add("cudaLaunchKernel"), thread});
  }
  return t;
}

// A process that writes its capture turn by turn and is killed, in the middle of one if `torn`.
// Returns its number and what waitpid says.
std::pair<pid_t, int> killed_writer(const std::string& folder, int turns, bool torn) {
  const pid_t writer = fork();
  if (writer == 0) {
    const std::string path = folder + "/" + std::to_string(getpid()) + ".sat";
    SatWriter file(path);
    Trace t;
    for (int turn = 1; turn <= turns; ++turn) {
      t = part(std::move(t), turn, 20);
      file.write(t, turn * 1'000'000'000);
    }
    if (torn) std::ofstream(path, std::ios::app) << std::string("\x05\0\0\0\xff\0\0\0 torn", 13);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(writer, &status, 0);
  return {writer, status};
}

Trace read_all(const std::string& path) {
  const auto capture = open_capture(path);
  while (capture->read_window()) {
  }
  return std::move(capture->trace());
}

TEST(CutCaptures, SayHowTheProcessEnded) {
  for (const bool torn : {false, true}) {
    const TempFolder folder;
    const auto [process, status] = killed_writer(folder.path(), 3, torn);
    const std::string path = folder.path() + "/" + std::to_string(process) + ".sat";
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t later = int64_t{now.tv_sec} * 1'000'000'000 + 1'500'000'000;
    complete_cut_captures(folder.path(), process, status, later);
    const Trace t = read_all(path);
    EXPECT_EQ(t.ops.size(), 60u);
    ASSERT_EQ(t.notes.size(), 2u);
    EXPECT_NE(t.notes[0].find("ended by signal 9 (Killed), "), std::string::npos) << t.notes[0];
    EXPECT_NE(t.notes[0].find(" s after its last records"), std::string::npos);
    const double missing = 1e-9 * static_cast<double>(later - 3'019'900'000);
    EXPECT_NE(t.notes[0].find(fmt::format("{:.2f} s after the end of the last operation", missing)),
              std::string::npos)
        << t.notes[0];
    EXPECT_EQ(t.notes[0].find("13 bytes of a block") != std::string::npos, torn) << t.notes[0];
    EXPECT_NE(t.notes[1].find("cut off"), std::string::npos);
    const auto bytes = std::filesystem::file_size(path);
    complete_cut_captures(folder.path(), process + 1, 0,
                          later);  // another time, of another's child
    EXPECT_GT(std::filesystem::file_size(path), bytes);
  }
}

TEST(CutCaptures, OneWithoutRecordsIsCompletedToo) {
  const TempFolder folder;
  const auto [process, status] = killed_writer(folder.path(), 0, false);
  complete_cut_captures(folder.path(), 1, 0, 0);
  const Trace t = read_all(folder.path() + "/" + std::to_string(process) + ".sat");
  EXPECT_EQ(t.framework, "");
  ASSERT_EQ(t.notes.size(), 2u);
  EXPECT_NE(t.notes[0].find("ended without notice"), std::string::npos);
}

TEST(CutCaptures, ClosedOnesAndOthersAreLeftAlone) {
  const TempFolder folder;
  const std::string closed = folder.path() + "/999999.sat", other = folder.path() + "/999998.sat";
  {
    SatWriter file(closed);
    const Trace t = part({}, 1, 5);
    file.write(t, 1);
    file.close(t);
    std::ofstream(other) << "something else";
  }
  const auto bytes = std::filesystem::file_size(closed);
  complete_cut_captures(folder.path(), 999999, 9, 0);
  EXPECT_EQ(std::filesystem::file_size(closed), bytes);
  EXPECT_EQ(std::filesystem::file_size(other), 14u);
}

}  // namespace
}  // namespace saturate::observe
