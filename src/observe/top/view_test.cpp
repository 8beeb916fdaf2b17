// SPDX-License-Identifier: Apache-2.0
#include "observe/top/view.h"

#include <gtest/gtest.h>

#include <csignal>

namespace saturate::observe {
namespace {

ProcessView process(int64_t pid, const char* name, double cpu, bool worker = false) {
  ProcessView p;
  p.pid = pid;
  p.seen = true;
  p.worker = worker;
  p.name = p.command = name;
  p.cpu = cpu;
  p.start_ticks = pid * 10;
  if (!worker) p.gpus.push_back({});
  return p;
}

Snapshot three() {
  Snapshot s;
  s.processes = {process(10, "train", 0.5), process(11, "loader", 3, true),
                 process(20, "serve", 2)};
  return s;
}

std::vector<int64_t> pids(const View& v, const Snapshot& s) {
  std::vector<int64_t> found;
  for (const ProcessView* p : visible_processes(v, s)) found.push_back(p->pid);
  return found;
}

Action type(View& v, const Snapshot& s, std::string_view bytes) {
  Action last;
  for (const KeyPress& k : decode_keys(bytes)) last = press(v, s, k);
  return last;
}

using Pids = std::vector<int64_t>;

TEST(View, SortsReversesFiltersAndShowsTheTree) {
  const Snapshot s = three();
  View v;
  EXPECT_EQ(pids(v, s), (Pids{10, 20}));
  v.sort = SortBy::cpu;
  EXPECT_EQ(pids(v, s), (Pids{20, 10}));
  type(v, s, "t");
  EXPECT_EQ(pids(v, s), (Pids{20, 10, 11})) << "workers stay with their process";
  type(v, s, "r");
  EXPECT_EQ(pids(v, s), (Pids{10, 11, 20}));
  type(v, s, "floadx\x7f\r");
  EXPECT_EQ(v.filter, "load");
  EXPECT_EQ(pids(v, s), (Pids{10, 11}));
  EXPECT_FALSE(type(v, s, "fq\r").quit) << "q is a letter while a filter is typed";
  EXPECT_EQ(pids(v, s), Pids{});
  type(v, s, "\x1b");
  EXPECT_EQ(v.filter, "");
}

TEST(View, ArrowsSelect) {
  const Snapshot s = three();
  View v;
  type(v, s, "\x1b[B");
  EXPECT_EQ(v.selected, 10);
  type(v, s, "\x1b[B\x1b[B\x1b[B");
  EXPECT_EQ(v.selected, 20);
  type(v, s, "\x1bOA");
  EXPECT_EQ(v.selected, 10);
  type(v, s, "\x1b[F");
  EXPECT_EQ(v.selected, 20);
  type(v, s, "\x1b[1~");
  EXPECT_EQ(v.selected, 10);
}

TEST(View, KillNeedsASelectionASignalAndYes) {
  const Snapshot s = three();
  View v;
  EXPECT_EQ(type(v, s, "Ty").kill_pid, 0);
  type(v, s, "\x1b[B");
  EXPECT_EQ(type(v, s, "T").kill_pid, 0);
  Action a = type(v, s, "y");
  EXPECT_EQ(a.kill_pid, 10);
  EXPECT_EQ(a.signal, SIGTERM);
  EXPECT_EQ(a.kill_start_ticks, 100);
  EXPECT_EQ(type(v, s, "Kn").kill_pid, 0);
  EXPECT_EQ(v.message, "nothing was killed");
  EXPECT_EQ(type(v, s, "K\r").kill_pid, 0) << "Enter is not yes";
  a = type(v, s, "kiy");
  EXPECT_EQ(a.kill_pid, 10);
  EXPECT_EQ(a.signal, SIGINT);
  EXPECT_EQ(type(v, s, "kxy").kill_pid, 0);
}

TEST(View, KillIsRefusedWithoutCertainty) {
  Snapshot s = three();
  View v;
  v.selected = 10;
  s.processes[0].guessed = true;
  EXPECT_EQ(type(v, s, "Ty").kill_pid, 0);
  s.processes[0].guessed = false;
  s.processes[0].seen = false;
  EXPECT_EQ(type(v, s, "Ty").kill_pid, 0);
  s.processes[0].seen = true;
  v.read_only = true;
  EXPECT_EQ(type(v, s, "Ty").kill_pid, 0);
  type(v, s, "T");
  EXPECT_NE(v.message.find("read-only"), std::string::npos);
  v.read_only = false;
  type(v, s, "T");
  s.processes.erase(s.processes.begin());  // it ended while the question was open
  EXPECT_EQ(type(v, s, "y").kill_pid, 0);
}

TEST(View, QuitsAndHelps) {
  const Snapshot s = three();
  View v;
  EXPECT_TRUE(type(v, s, "q").quit);
  EXPECT_TRUE(type(v, s, "\x03").quit);
  EXPECT_TRUE(type(v, s, "\x1b[21~").quit);
  EXPECT_FALSE(type(v, s, "hq").quit) << "the first key leaves the help";
  EXPECT_TRUE(type(v, s, "q").quit);
  v.interval_s = 1;
  type(v, s, "--------");
  EXPECT_EQ(v.interval_s, 0.25);
  type(v, s, "+++++++++++++");
  EXPECT_EQ(v.interval_s, 60);
}

TEST(Keys, UnknownSequencesAreDroppedWhole) {
  EXPECT_TRUE(decode_keys("\x1b[1;5C").empty());
  EXPECT_TRUE(decode_keys("\x1b[<0;10;20M").empty());
  const auto keys = decode_keys("\x1b[99~q\x1b");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].character, 'q');
  EXPECT_EQ(keys[1].key, Key::escape);
  EXPECT_TRUE(decode_keys("\x1b[5").empty()) << "cut off";
}

}  // namespace
}  // namespace saturate::observe
