// SPDX-License-Identifier: Apache-2.0
#include "observe/read/merge.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "observe/read/sat_writer.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using saturate::testing::TempFolder;

Trace loop(int steps) {
  testing::Simulator s;
  for (int i = 0; i < steps; ++i) {
    s.host(40'000);  // not ahead of the device
    s.kernel("kernel", 30'000);
  }
  return s.take();
}

void write(const std::string& path, const Trace& t) {
  SatWriter writer(path);
  writer.write(t, INT64_MAX / 2);
  writer.close(t);
}

TEST(Merge, KeepsRecordsOfAllFilesApart) {
  Trace a = loop(10), b = loop(5), all;
  b.streams = {};
  b.streams.add({9, 3, 1, 7});
  b.devices[3] = {"other", 80};
  b.notes = {"of b"};
  b.slowdown = 1.25;
  a.copy_rates = {"slow", "bus", 20, 25, 6, 6};
  b.copy_rates = {"fast", "bus", 50, 21, 7, 5};
  append_trace(all, a);
  append_trace(all, b);
  EXPECT_EQ(all.copy_rates, (CopyRates{"slow", "bus", 50, 25, 7, 6}));
  EXPECT_EQ(all.ops.size(), a.ops.size() + b.ops.size());
  EXPECT_EQ(all.calls.size(), a.calls.size() + b.calls.size());
  EXPECT_EQ(all.streams[all.ops.back().stream].device, 3u);
  EXPECT_EQ(all.names[all.ops.back().name], "kernel");
  EXPECT_EQ(all.devices.size(), 2u);
  EXPECT_EQ(all.notes, std::vector<std::string>{"of b"});
  EXPECT_EQ(all.slowdown, 1.25);
}

// What one process did not record is cut out of all.
TEST(Merge, PausesOfOneArePausesOfAll) {
  const TempFolder folder;
  Trace a = loop(100), b = loop(100);
  const int64_t from = a.ops[20].start_ns - 1, to = a.ops[60].start_ns - 1;
  b.pauses = {{from, to}};
  write(folder / "1.sat", a);
  write(folder / "2.sat", b);
  const auto capture = open_capture_folder(folder / "");
  while (capture->read_window()) {
  }
  const Trace& t = capture->trace();
  EXPECT_EQ(t.ops.size(), 2u * 60);
  EXPECT_LT(t.ops.back().end_ns, a.ops.back().end_ns - (to - from) + 1);
  // The same for a file alone, when its reader cuts.
  const auto alone = open_capture(folder / "2.sat");
  while (alone->read_window()) {
  }
  EXPECT_EQ(alone->trace().ops.size(), 60u);
  EXPECT_TRUE(alone->trace().pauses.empty());
}

TEST(Merge, ACostIsKept) {
  const TempFolder folder;
  Trace a = loop(5);
  a.slowdown = 1.5;
  write(folder / "1.sat", a);
  const auto capture = open_capture(folder / "1.sat");
  while (capture->read_window()) {
  }
  EXPECT_EQ(capture->trace().slowdown, 1.5);
}

TEST(Merge, ACaptureAloneIsReadWithItsHost) {
  const TempFolder folder;
  Trace host;
  host.notes = {"of the host"};
  write(folder / "1.sat", loop(5));
  write(folder / "host.sat", host);
  const auto capture = open_capture(folder / "1.sat");
  while (capture->read_window()) {
  }
  EXPECT_EQ(capture->trace().notes, std::vector<std::string>{"of the host"});
  EXPECT_THROW(open_capture(folder / "host.sat"), Error);
}

TEST(Merge, AFolderWithoutACaptureIsRefused) {
  const TempFolder folder;
  EXPECT_THROW(open_capture(folder / ""), Error);
}

}  // namespace
}  // namespace saturate::observe
