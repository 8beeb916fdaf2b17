// SPDX-License-Identifier: Apache-2.0
#include "observe/ranks/rank_traces.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "observe/read/merge.h"
#include "observe/read/open_capture.h"
#include "observe/read/sat_writer.h"
#include "observe/report/diagnosis.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/perfetto.h"
#include "observe/report/text.h"
#include "observe/testing/rank_program.h"

namespace saturate::observe {
namespace {

using saturate::testing::TempFolder;

testing::RankRun two_ranks() {
  testing::RankProgram p;
  p.ranks.resize(2);
  p.ranks[1].blocked_ns = 2'000'000;
  return testing::run_ranks(p);
}

// As a process of that number records it.
void write(const std::string& path, const Trace& from, uint32_t process) {
  Trace t;
  append_trace(t, from, process);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  SatWriter writer(path);
  writer.write(t, INT64_MAX / 2);
  writer.close(t);
}

TEST(RankTraces, AFolderOfOneHostIsTakenApart) {
  const TempFolder folder;
  const testing::RankRun run = two_ranks();
  write(folder / "a/900.rank1.sat", run.traces[1].trace, 900);
  write(folder / "a/901.rank0.sat", run.traces[0].trace, 901);
  std::vector<RankTrace> ranks = open_ranks({folder / "a"});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].rank, 0);
  EXPECT_EQ(ranks[0].trace.ops.size(), run.traces[0].trace.ops.size());
  EXPECT_EQ(ranks[0].clock, ranks[1].clock);
  EXPECT_EQ(diagnose_ranks(ranks, "a").verdict.headline, "held up by rank 1");
  // The same of what a watched command left.
  const auto capture = open_capture(folder / "a");
  while (capture->read_window()) {
  }
  EXPECT_EQ(split_ranks(capture->trace(), "a").size(), 2u);
}

// A rank may start programs of its own, which have its number in their environment.
// Each rank has its own samples and those of its workers, and none of the other's.
TEST(RankTraces, SamplesAndThoseOfWorkersStayWithTheirRank) {
  const testing::RankRun run = two_ranks();
  Trace all;
  append_trace(all, run.traces[0].trace, 900);
  const uint32_t first = all.threads[all.calls[0].thread].process;
  const size_t calls = all.calls.size();
  append_trace(all, run.traces[1].trace, 1800);
  const uint32_t second = all.threads[all.calls[calls].thread].process;
  ASSERT_NE(first, second);
  const uint32_t stack =
      all.stacks.add({kNoStack, all.names.add("f"), all.names.add("/a.py"), 7, 0});
  const int64_t at = all.ops[0].start_ns;
  const auto sample = [&](uint32_t process, uint64_t thread) {
    all.samples.push_back({at, at, 1, all.threads.add({process, thread}), stack});
  };
  sample(first, 1);
  sample(5001, 2);  // a worker of the first rank
  sample(second, 3);
  sample(5002, 4);  // nobody's
  all.parents = {{5001, first}, {first, 1}, {second, 1}, {5002, 1}};
  all.sort();
  std::vector<RankTrace> ranks = split_ranks(all, "a");
  ASSERT_EQ(ranks.size(), 2u);
  size_t seen = 0;
  for (const RankTrace& r : ranks) {
    const Trace& t = r.trace;
    const uint32_t own = t.streams[0].process;
    seen += t.samples.size();
    for (const HostSample& s : t.samples) {
      const ThreadKey& key = t.threads[s.thread];
      EXPECT_EQ(t.stacks[s.stack].line, 7u);
      EXPECT_EQ(key.process == own, key.thread != 2);
      if (key.thread == 2) {
        EXPECT_EQ(t.parents.at(key.process), own);
      }
    }
  }
  EXPECT_EQ(seen, 3u);
}

TEST(RankTraces, WhatARankStartsIsNoRank) {
  const TempFolder folder;
  const testing::RankRun run = two_ranks();
  Trace few = run.traces[0].trace;
  few.ops.resize(8);
  write(folder / "a/900.rank1.sat", run.traces[1].trace, 900);
  write(folder / "a/901.rank0.sat", run.traces[0].trace, 901);
  write(folder / "a/902.rank0.sat", few, 902);
  write(folder / "a/903.rank1.sat", few, 903);
  const std::vector<RankTrace> ranks = open_ranks({folder / "a"});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].trace.ops.size(), run.traces[0].trace.ops.size());
  EXPECT_EQ(ranks[1].trace.ops.size(), run.traces[1].trace.ops.size());
}

// Hosts number their processes alike, and their clocks differ.
TEST(RankTraces, FoldersOfSeveralHostsAreJoined) {
  const TempFolder folder;
  testing::RankProgram p;
  p.ranks.resize(2);
  p.ranks[0].loader_ns = 2'000'000;
  p.ranks[1].clock_ns = 3'000'000;
  const testing::RankRun run = testing::run_ranks(p);
  write(folder / "x/rank0/77.rank0.sat", run.traces[0].trace, 77);
  write(folder / "x/rank1/77.rank1.sat", run.traces[1].trace, 77);
  std::vector<RankTrace> ranks = open_ranks({folder / "x"});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_NE(ranks[0].clock, ranks[1].clock);
  const Diagnosis g = diagnose_ranks(ranks, "x");
  EXPECT_NEAR(g.ranks->clocks[1].offset_ns, 3e6, 10'000);
  EXPECT_EQ(g.verdict.headline, "held up by rank 0");
  EXPECT_EQ(g.ranks->cause, LateCause::input);
}

TEST(RankTraces, ProcessesThatDoNotCommunicateAreNoRanks) {
  testing::Simulator s;
  for (int i = 0; i < 20; ++i) {
    s.host(30'000);
    s.kernel("gemm", 20'000);
  }
  const Trace one = s.take();
  Trace both;
  append_trace(both, one, 5);
  append_trace(both, one, 6);
  both.sort();
  EXPECT_TRUE(split_ranks(both, "both").empty());
  EXPECT_TRUE(split_ranks(one, "one").empty());
}

TEST(RankTraces, RefusalsSayWhatToGive) {
  const TempFolder folder;
  const testing::RankRun run = two_ranks();
  write(folder / "a/900.rank1.sat", run.traces[1].trace, 900);
  EXPECT_THROW(open_ranks({folder / "a"}), Error);  // one rank
  write(folder / "b/901.rank1.sat", run.traces[0].trace, 901);
  try {
    open_ranks({folder / "a", folder / "b"});
    ADD_FAILURE() << "two captures of one rank were taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("second capture of rank 1"), std::string::npos);
  }
  std::filesystem::create_directories(folder / "empty");
  EXPECT_THROW(open_ranks({folder / "empty"}), Error);
}

// Kineto's traces of one run: each counts its times from a moment of its own, and says rank, group
// and size of each collective.
TEST(RankTraces, KinetoTracesOfEachRank) {
  const TempFolder folder;
  for (int rank = 0; rank < 2; ++rank) {
    std::ofstream out(folder / ("host_" + std::to_string(rank) + ".json"));
    const int64_t base = 1'700'000'000'000'000'000 + rank * 1'000'000;
    out << "{\"distributedInfo\": {\"backend\": \"nccl\", \"rank\": " << rank
        << ", \"world_size\": 2}, \"baseTimeNanoseconds\": " << base << ", \"traceEvents\": [\n";
    const auto event = [&](const char* cat, const std::string& name, double ts, double dur,
                           const std::string& args) {
      out << "{\"ph\": \"X\", \"cat\": \"" << cat << "\", \"name\": \"" << name
          << "\", \"pid\": 7, \"tid\": 7, \"ts\": " << ts - rank * 1000 << ", \"dur\": " << dur
          << ", \"args\": {" << args << "}}\n";
    };
    for (int step = 0; step < 30; ++step) {
      const double at = 5'000 + 1'000.0 * step, late = rank == 1 ? 300 : 0;
      const std::string number = std::to_string(2 * step + 1), next = std::to_string(2 * step + 2);
      event("user_annotation", "ProfilerStep#" + std::to_string(step), at, 1000, "");
      out << ",";
      event("cuda_runtime", "cudaLaunchKernel", at + 5 + late, 5, "\"correlation\": " + number);
      out << ",";
      event("kernel", "gemm_bf16bf16", at + 20 + late, 400,
            "\"device\": " + std::to_string(rank) +
                ", \"context\": 1, \"stream\": 7, \"correlation\": " + number +
                ", \"grid\": [512, 1, 1], \"block\": [128, 1, 1]");
      out << ",";
      event("cuda_runtime", "cudaLaunchKernelExC", at + 15 + late, 5, "\"correlation\": " + next);
      out << ",";
      event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", at + 430 + late, 400 - late,
            "\"device\": " + std::to_string(rank) +
                ", \"context\": 1, \"stream\": 20, \"correlation\": " + next +
                ", \"Collective name\": \"allreduce\", \"In msg nelems\": 1000, \"Out msg "
                "nelems\": 1000, \"Group size\": 2, \"dtype\": \"BFloat16\", \"Process Group "
                "Name\": \"0\", \"Process Group Ranks\": \"[0, 1]\"");
      if (step < 29) out << ",";
    }
    out << "]}\n";
  }
  std::vector<RankTrace> ranks = open_ranks({folder / "host_1.json", folder / "host_0.json"});
  EXPECT_EQ(ranks[1].name, folder / "host_1.json");
  const Diagnosis g = diagnose_ranks(ranks, "kineto");
  // Bases were added, so nothing is left to set.
  EXPECT_NEAR(g.ranks->clocks[1].offset_ns, 0, 1);
  EXPECT_EQ(g.verdict.headline, "held up by rank 1");
  ASSERT_EQ(g.ranks->communicators.size(), 1u);
  EXPECT_EQ(g.ranks->communicators[0].communicator.name, "0 [0, 1]");
  EXPECT_EQ(g.ranks->communicators[0].communicator.what, "all-reduce");
  EXPECT_EQ(g.ranks->communicators[0].communicator.bytes, 30 * 2000);
  EXPECT_NEAR(g.verdict.cause_ns, 300'000, 15'000);

  const std::string text = render_text(g), json = render_json(g), html = render_html(g);
  EXPECT_NE(text.find("What follows is of rank 1."), std::string::npos);
  EXPECT_NE(text.find("all ranks as early as the first: up to 1."), std::string::npos);
  EXPECT_NE(json.find("\"straggler\": {\n"), std::string::npos);
  EXPECT_NE(html.find("<h2>Ranks</h2>"), std::string::npos);
  const std::string perfetto = render_perfetto(ranks);
  EXPECT_NE(perfetto.find("rank 0: GPU 0"), std::string::npos);
  EXPECT_NE(perfetto.find("rank 1: host"), std::string::npos);
}

}  // namespace
}  // namespace saturate::observe
