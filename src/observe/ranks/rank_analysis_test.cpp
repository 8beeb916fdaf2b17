// SPDX-License-Identifier: Apache-2.0
// Planted delays, against what the simulated ranks waited.
#include "observe/ranks/rank_analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "observe/report/diagnosis.h"
#include "observe/report/text.h"
#include "observe/testing/rank_program.h"

namespace saturate::observe {
namespace {

using testing::RankProgram;
using testing::RankRun;
using testing::RankWork;
using testing::run_ranks;

struct Reading {
  RankRun run;
  Diagnosis diagnosis;
  const RankReport& ranks() const { return *diagnosis.ranks; }
};

Reading read(const RankProgram& program) {
  Reading r{run_ranks(program), {}};
  r.diagnosis = diagnose_ranks(r.run.traces, "simulated");
  return r;
}

// The verdict, its milliseconds, and that equal ranks would be no faster than the ceiling says.
void expect_straggler(const RankProgram& program, const RankProgram& repaired, int64_t rank,
                      LateCause cause, Leaf leaf) {
  const Reading r = read(program);
  EXPECT_EQ(r.diagnosis.verdict.id, "straggler_bound") << r.diagnosis.verdict.why;
  ASSERT_GE(r.ranks().straggler, 0);
  const RankUse& use = r.ranks().ranks[static_cast<size_t>(r.ranks().straggler)];
  EXPECT_EQ(use.rank, rank);
  EXPECT_EQ(r.ranks().cause, cause) << late_cause_info(r.ranks().cause).title;
  EXPECT_EQ(r.ranks().leaf, leaf) << leaf_info(r.ranks().leaf).title;
  double others = 0;
  for (size_t i = 0; i < r.run.waiting_ns.size(); ++i)
    if (static_cast<int64_t>(i) != rank)
      others += r.run.waiting_ns[i] / static_cast<double>(r.run.waiting_ns.size() - 1);
  EXPECT_NEAR(r.ranks().per_step(use.caused_ns) / others, 1, 0.05);
  EXPECT_NEAR(r.ranks().per_step(r.ranks().cause_ns) / others, 1, 0.05);
  const double gained = r.run.step_ns / run_ranks(repaired).step_ns;
  EXPECT_LE(gained, 1.03 * r.ranks().gain(r.ranks().saved_straggler_ns));
  EXPECT_NEAR(r.ranks().gain(r.ranks().saved_all_ns) / gained, 1, 0.10);
}

RankProgram of(size_t ranks) {
  RankProgram p;
  p.ranks.resize(ranks);
  return p;
}

TEST(RankAnalysis, ARankThatSleeps) {
  RankProgram p = of(2);
  p.ranks[1].blocked_ns = 2'000'000;
  expect_straggler(p, of(2), 1, LateCause::host, Leaf::blocked);
}

TEST(RankAnalysis, ARankWithHostWork) {
  RankProgram p = of(4);
  p.ranks[2].host_ns += 1'000'000;
  expect_straggler(p, of(4), 2, LateCause::host, Leaf::after_sync);
}

TEST(RankAnalysis, ARankThatWaitsForItsData) {
  RankProgram p = of(3);
  p.ranks[0].loader_ns = 1'500'000;
  expect_straggler(p, of(3), 0, LateCause::input, Leaf::loader);
}

TEST(RankAnalysis, ARankWithLargerBatches) {
  RankProgram p = of(4);
  p.ranks[3].kernel_ns = 700'000;
  p.ranks[3].blocks = 1792;
  expect_straggler(p, of(4), 3, LateCause::kernels, Leaf::tensor);
  const Reading r = read(p);
  EXPECT_NE(r.diagnosis.verdict.why.find("1.75x the blocks"), std::string::npos);
  EXPECT_NE(r.diagnosis.verdict.next.find("equal batches"), std::string::npos);
  EXPECT_NEAR(r.ranks().imbalance, 4 * 700.0 / (3 * 400 + 700) - 1, 0.02);
  p.ranks[3].blocks = 1024;
  EXPECT_NE(read(p).diagnosis.verdict.next.find("same work more slowly"), std::string::npos);
}

// Half of what the others wait lies beside their own kernels.
TEST(RankAnalysis, WaitsBesideKernelsAreNotExposed) {
  RankProgram p = of(2);
  p.overlapped = true;
  p.ranks[1].kernel_ns = 600'000;
  const Reading r = read(p);
  const RankUse& waits = r.ranks().ranks[0];
  EXPECT_GT(r.run.waiting_ns[0], 1.2 * r.run.exposed_ns[0]);
  EXPECT_NEAR(
      r.ranks().per_step(static_cast<double>(waits.exposed_waiting_ns)) / r.run.exposed_ns[0], 1,
      0.05);
  EXPECT_EQ(r.ranks().cause, LateCause::kernels);
}

TEST(RankAnalysis, EqualRanksPromiseNothing) {
  for (const bool overlapped : {false, true}) {
    RankProgram p = of(4);
    p.overlapped = overlapped;
    const Reading r = read(p);
    EXPECT_NE(r.diagnosis.verdict.id, "straggler_bound");
    EXPECT_NE(r.diagnosis.verdict.id, "imbalance_bound");
    EXPECT_LT(r.ranks().gain(r.ranks().saved_all_ns), 1.03);
    EXPECT_EQ(r.ranks().unmatched, 0);
  }
}

TEST(RankAnalysis, TransfersThatAreExposedHaveABound) {
  RankProgram p = of(2), hidden = of(2);
  hidden.overlapped = true;
  p.transfer_ns = hidden.transfer_ns = 600'000;
  const Reading r = read(p);
  EXPECT_NEAR(r.ranks().per_step(static_cast<double>(r.ranks().ranks[0].exposed_transfer_ns)),
              1.2e6, 0.05 * 1.2e6);
  const double gained = r.run.step_ns / run_ranks(hidden).step_ns;
  EXPECT_LE(gained, 1.03 * r.ranks().gain(r.ranks().saved_hidden_ns));
}

// All-reduces of a backward pass: those that one rank holds up end after the kernels of the other,
// which could have hidden their transfers. The sleep is gone with its repair, and so are these.
TEST(RankAnalysis, TransfersThatAWaitExposesAreInItsCeiling) {
  RankProgram p = of(2), repaired = of(2);
  p.overlapped = repaired.overlapped = true;
  p.buckets = repaired.buckets = 4;
  p.transfer_ns = repaired.transfer_ns = 700'000;
  p.ranks[1].blocked_ns = 5'000'000;
  const Reading r = read(p);
  EXPECT_EQ(r.diagnosis.verdict.headline, "held up by rank 1");
  const RankUse &held = r.ranks().ranks[0], &late = r.ranks().ranks[1];
  EXPECT_GT(held.exposed_transfer_ns, 2 * late.exposed_transfer_ns);
  const double gained = r.run.step_ns / run_ranks(repaired).step_ns;
  for (const double saved : {r.ranks().saved_straggler_ns, r.ranks().saved_all_ns}) {
    EXPECT_GE(r.ranks().gain(saved), gained / 1.005);
    EXPECT_LE(r.ranks().gain(saved), 1.3 * gained);
  }
}

// Every fourth rank in turn, not one of them.
TEST(RankAnalysis, RanksThatTakeTurnsAreNoStraggler) {
  // Each step another rank is late: two programs of one step each cannot say it, so the traces of
  // four are joined, one after the other.
  std::vector<RankTrace> joined;
  for (int turn = 0; turn < 24; ++turn) {
    RankProgram p = of(4);
    p.steps = 1;
    p.ranks[static_cast<size_t>(turn % 4)].blocked_ns = 2'000'000;
    for (RankWork& w : p.ranks) w.clock_ns = turn * 4'320'000;
    RankRun run = run_ranks(p);
    for (size_t r = 0; r < 4; ++r) {
      Trace& t = run.traces[r].trace;
      t.spans.back().name = t.names.add("ProfilerStep#" + std::to_string(turn));
      for (auto& o : t.ops) o.correlation += turn * 1'000;
      for (auto& c : t.calls) c.correlation += turn * 1'000;
      if (turn == 0) {
        joined.push_back(std::move(run.traces[r]));
        continue;
      }
      Trace& into = joined[r].trace;
      for (DeviceOp o : t.ops) {
        o.name = into.names.add(t.names[o.name]);
        into.ops.push_back(o);
      }
      for (HostCall c : t.calls) {
        c.name = into.names.add(t.names[c.name]);
        into.calls.push_back(c);
      }
      for (HostSpan c : t.spans) {
        c.name = into.names.add(t.names[c.name]);
        into.spans.push_back(c);
      }
    }
  }
  for (RankTrace& r : joined) r.trace.sort();
  const Diagnosis g = diagnose_ranks(joined, "turns", {.warm_up = 0, .untraced_step_ns = 0});
  EXPECT_LT(g.ranks->straggler_share, 0.4);
  EXPECT_EQ(g.verdict.id, "imbalance_bound");
}

// Operations of one rank at given times, each with the call that issued it.
struct ByHand {
  Trace& trace;
  int64_t rank;
  uint32_t thread;

  ByHand(RankTrace& to, int64_t number)
      : trace(to.trace),
        rank(number),
        thread(trace.threads.add({static_cast<uint32_t>(number), 1})) {
    to.rank = number;
    to.name = "by hand";
  }
  void op(const char* name, uint64_t stream, int64_t call, int64_t start, int64_t end) const {
    DeviceOp o;
    o.correlation = static_cast<int64_t>(trace.ops.size()) + 1;
    o.start_ns = start;
    o.end_ns = end;
    o.size = 512;
    o.name = trace.names.add(name);
    o.stream = trace.streams.add({static_cast<uint32_t>(rank), 0, 1, stream});
    trace.ops.push_back(o);
    trace.calls.push_back(
        {call, call + 4'000, o.correlation, trace.names.add("cudaLaunchKernel"), thread});
  }
};

// Devices that compute all the time: a collective that starts late beside kernels that are no longer
// than others' is late by the host, or by what no capture shows.
TEST(RankAnalysis, EqualKernelsAreNoCause) {
  for (const bool issued_late : {true, false}) {
    std::vector<RankTrace> ranks(2);
    for (int64_t r = 0; r < 2; ++r) {
      const ByHand by_hand(ranks[static_cast<size_t>(r)], r);
      Trace& t = by_hand.trace;
      for (int64_t step = 0; step < 40; ++step) {
        const int64_t at = 1'000'000 + step * 1'000'000, late = r * 200'000;
        t.spans.push_back({at, at + 999'000, t.names.add("ProfilerStep#" + std::to_string(step)),
                           by_hand.thread, SpanKind::range});
        by_hand.op("sm90_gemm_bf16bf16", 7, at, at + 10'000, at + 1'005'000);
        by_hand.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20,
                   at + (issued_late ? 390'000 + late : 20'000), at + 400'000 + late, at + 900'000);
      }
      t.sort();
    }
    const Diagnosis g = diagnose_ranks(ranks, "by hand");
    EXPECT_EQ(g.ranks->ranks[1].last, 39);
    EXPECT_NEAR(g.ranks->per_step(g.ranks->ranks[1].caused_ns), 200'000, 6'000);
    EXPECT_EQ(g.ranks->cause, issued_late ? LateCause::host : LateCause::unknown);
    EXPECT_LT(g.ranks->gain(g.ranks->saved_all_ns), 1.03);  // beside kernels
    EXPECT_NE(g.verdict.id, "straggler_bound");
  }
}

// Two ranks that are late in turn at small collectives, as a value that is reduced for a log in each
// micro-batch makes them: neither holds the other up, and fewer collectives would wait less.
TEST(RankAnalysis, SmallCollectivesInEachMicroBatch) {
  std::vector<RankTrace> ranks(2);
  for (int64_t r = 0; r < 2; ++r) {
    const ByHand by_hand(ranks[static_cast<size_t>(r)], r);
    Trace& t = by_hand.trace;
    for (int64_t step = 0; step < 40; ++step) {
      int64_t at = 1'000'000 + step * 2'000'000;
      t.spans.push_back({at, at + 1'999'000, t.names.add("ProfilerStep#" + std::to_string(step)),
                         by_hand.thread, SpanKind::range});
      for (int64_t batch = 0; batch < 4; ++batch, at += 490'000) {
        const int64_t late = batch % 2 == r ? 150'000 : 0;
        by_hand.op("sm90_gemm_bf16bf16", 7, at - 20'000, at, at + 300'000 + late);
        by_hand.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 7, at + 280'000 + late,
                   at + 300'000 + late, at + 455'000);
      }
    }
    t.sort();
  }
  const Diagnosis g = diagnose_ranks(ranks, "by hand");
  EXPECT_EQ(g.verdict.id, "imbalance_bound");
  EXPECT_NE(g.verdict.why.find("4.0 all-reduce a step wait"), std::string::npos) << g.verdict.why;
  EXPECT_NE(g.verdict.next.find("fewer collectives"), std::string::npos) << g.verdict.next;
  EXPECT_NEAR(g.verdict.cause_ns, 300'000, 15'000) << "what a rank waits in a step";
}

// A CUDA graph runs each collective of a step on a stream of its own.
TEST(RankAnalysis, StreamsOfAGraphAreOneLine) {
  std::vector<RankTrace> ranks(2);
  for (int64_t r = 0; r < 2; ++r) {
    RankTrace& rank = ranks[static_cast<size_t>(r)];
    Trace& t = rank.trace;
    rank.rank = r;
    rank.name = "by hand";
    const uint32_t thread = t.threads.add({static_cast<uint32_t>(r), 1});
    for (int64_t step = 0; step < 20; ++step) {
      const int64_t at = 1'000'000 + step * 1'000'000;
      t.spans.push_back({at, at + 999'000, t.names.add("ProfilerStep#" + std::to_string(step)),
                         thread, SpanKind::range});
      for (int64_t i = 0; i < 8; ++i) {
        DeviceOp o;
        o.correlation = static_cast<int64_t>(t.ops.size()) + 1;
        o.start_ns = at + i * 120'000 + (r == 1 ? 20'000 : 0);
        o.end_ns = at + i * 120'000 + 100'000;
        o.size = 512;
        o.name = t.names.add(i < 6 ? "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                                   : "ncclDevKernel_AllGather_RING_LL");
        o.stream = t.streams.add({static_cast<uint32_t>(r), 0, 1, static_cast<uint64_t>(40 + i)});
        t.ops.push_back(o);
      }
    }
    t.sort();
  }
  const Diagnosis g = diagnose_ranks(ranks, "by hand");
  ASSERT_EQ(g.ranks->communicators.size(), 3u);  // two of one kind are named one by one
  const CommunicatorUse& whole = g.ranks->communicators[0];
  EXPECT_EQ(whole.communicator.name, "6 streams");
  EXPECT_EQ(whole.communicator.what, "all-reduce");
  EXPECT_NEAR(static_cast<double>(whole.collectives), 6 * 20, 6);
  EXPECT_NEAR(whole.transfer_ns / static_cast<double>(whole.collectives), 80'000, 4'000);
  EXPECT_EQ(whole.last_rank, 1);
}

// Clocks of four hosts, in a random program: the same findings as with one clock.
TEST(RankAnalysis, ClocksOfHostsAreFound) {
  RankProgram p = of(4);
  p.ranks[2].blocked_ns = 1'500'000;
  const Reading one = read(p);
  p.ranks[1].clock_ns = 3'700'000'000;
  p.ranks[2].clock_ns = -41'000'000;
  p.ranks[3].clock_ns = 86'400'000'000'000;
  const Reading r = read(p);
  EXPECT_EQ(r.ranks().unmatched, 0);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(r.ranks().clocks[i].estimated);
    EXPECT_NEAR(r.ranks().clocks[i].offset_ns, static_cast<double>(p.ranks[i].clock_ns), 10'000);
  }
  EXPECT_EQ(r.diagnosis.verdict.headline, "held up by rank 2");
  EXPECT_NEAR(r.diagnosis.verdict.cause_ns, one.diagnosis.verdict.cause_ns,
              0.02 * one.diagnosis.verdict.cause_ns);
}

// The parts of what a rank came late by sum to it, whatever the cause.
TEST(RankAnalysis, CausesSumToTheWaiting) {
  std::mt19937 random(18);
  for (int trial = 0; trial < 60; ++trial) {
    RankProgram p = of(2 + random() % 3);
    p.overlapped = trial % 2 == 0;
    for (RankWork& w : p.ranks) {
      w.host_ns += static_cast<int64_t>(random() % 400'000);
      w.blocked_ns = random() % 3 == 0 ? static_cast<int64_t>(random() % 500'000) : 0;
      w.kernel_ns += static_cast<int64_t>(random() % 200'000);
    }
    const Reading r = read(p);
    double waits = 0, exposed = 0;
    for (size_t i = 0; i < r.ranks().ranks.size(); ++i) {
      const RankUse& u = r.ranks().ranks[i];
      double sum = 0;
      for (const double ns : u.caused_by) sum += ns;
      EXPECT_NEAR(sum, u.caused_ns, 1);
      EXPECT_LE(u.exposed_waiting_ns, u.waiting_ns);
      EXPECT_EQ(u.idle_ns + u.compute_ns + u.exposed_transfer_ns + u.exposed_waiting_ns,
                r.ranks().to_ns - r.ranks().from_ns);
      waits += r.run.waiting_ns[i] - r.ranks().per_step(static_cast<double>(u.waiting_ns));
      exposed +=
          r.run.exposed_ns[i] - r.ranks().per_step(static_cast<double>(u.exposed_waiting_ns));
    }
    EXPECT_NEAR(waits, 0, 0.05 * r.run.step_ns);
    EXPECT_NEAR(exposed, 0, 0.05 * r.run.step_ns);
    // No rank's work for all is faster than the ceiling.
    for (const RankWork& w : p.ranks) {
      RankProgram alike = p;
      alike.ranks.assign(p.ranks.size(), w);
      EXPECT_LE(r.run.step_ns / run_ranks(alike).step_ns,
                1.03 * r.ranks().gain(r.ranks().saved_all_ns));
    }
    EXPECT_LE(r.ranks().saved_straggler_ns, r.ranks().saved_all_ns + 1);
    EXPECT_LE(r.ranks().saved_median_ns, r.ranks().saved_all_ns + 1);
  }
}

// Launches of graphs, when nothing in them was recorded.
TEST(RankAnalysis, WholeGraphsShowWhoLaunchesLate) {
  RankProgram p = of(2);
  p.ranks[1].blocked_ns = 2'000'000;
  RankRun run = run_ranks(p);
  for (RankTrace& r : run.traces) {
    // A step's operations as one: from the first kernel to the last all-reduce.
    Trace& t = r.trace;
    std::vector<DeviceOp> graphs;
    for (size_t i = 0; i < t.ops.size(); i += 6) {
      DeviceOp g = t.ops[i];
      g.kind = OpKind::graph;
      g.name = t.names.add("graph 1");
      for (size_t k = i; k < i + 6; ++k) g.end_ns = std::max(g.end_ns, t.ops[k].end_ns);
      graphs.push_back(g);
    }
    t.ops = graphs;
    t.sort();
  }
  const Diagnosis g = diagnose_ranks(run.traces, "graphs");
  EXPECT_TRUE(g.ranks->whole_graphs);
  EXPECT_EQ(g.verdict.headline, "held up by rank 1");
  EXPECT_NEAR(g.verdict.cause_ns / run.waiting_ns[0], 1, 0.05);
  const auto says = [&](const std::string& text) {
    const std::string report = render_text(g);
    return report.find(text) != std::string::npos;
  };
  EXPECT_TRUE(says("Not seen are the collectives in them"));
}

// Weights sent around before the first step are collectives too, and not those that matter.
TEST(RankAnalysis, AFewCollectivesBesideGraphsAreNotTaken) {
  RankProgram p = of(2);
  p.ranks[0].blocked_ns = 1'000'000;
  for (const size_t graphs_from : {4u, 90u}) {  // of 180 operations
    RankRun run = run_ranks(p);
    for (RankTrace& r : run.traces) {
      Trace& t = r.trace;
      for (size_t i = graphs_from; i < t.ops.size(); ++i) {
        t.ops[i].kind = OpKind::graph;
        t.ops[i].name = t.names.add("graph " + std::to_string(i % 6));
      }
    }
    const Diagnosis g = diagnose_ranks(run.traces, "graphs");
    EXPECT_EQ(g.ranks->whole_graphs, graphs_from == 4);
    const std::string report = render_text(g);
    EXPECT_NE(
        report.find(graphs_from == 4 ? "Not seen are the collectives" : "some work lies in graphs"),
        std::string::npos);
  }
}

}  // namespace
}  // namespace saturate::observe
