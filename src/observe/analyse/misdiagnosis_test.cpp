// SPDX-License-Identifier: Apache-2.0
// What traces of real programs on a GPU were once diagnosed wrongly, as small as shows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "observe/analyse/analyser.h"
#include "observe/analyse/fixes.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using testing::Machine;
using testing::Simulator;

struct Recorded {
  double step_ns = 0;
  Analysis analysis;
  Trace trace;

  FixReport fixes(double untraced_step_ns = 0) {
    const HostTimeline host(trace);
    std::vector<int64_t> begins;
    for (const StepStat& one : analysis.steps.steps) begins.push_back(one.start_ns);
    begins.push_back(analysis.steps.steps.back().end_ns);
    return find_fixes(Replay(trace, host, 0, begins, begins.front(), begins.back()), analysis,
                      untraced_step_ns);
  }
};

Recorded record(const std::function<void(Simulator&, int)>& step, Machine machine = {}) {
  constexpr int kSteps = 24;
  Simulator s(machine);
  for (int i = 0; i < kSteps; ++i) {
    s.begin_step(i);
    step(s, i);
  }
  Recorded r;
  r.step_ns = static_cast<double>(s.done_ns() - s.start_ns()) / kSteps;
  r.trace = s.take();
  r.analysis = analyse(r.trace);
  return r;
}

void layers(Simulator& s, int n, int64_t kernel_ns, int64_t host_ns) {
  for (int i = 0; i < n; ++i) {
    s.host(host_ns);
    s.kernel("sm90_gemm_bf16bf16", kernel_ns);
  }
}

const Fix& find(const FixReport& r, FixKind kind) {
  for (const auto* list : {&r.worth, &r.not_worth}) {
    for (const Fix& f : *list) {
      if (f.kind == kind) return f;
    }
  }
  throw Error(Errc::internal, "test", "every fix is in one of the lists");
}

FixKind first(const FixReport& r) { return r.worth.empty() ? FixKind::batch : r.worth[0].kind; }

// Rows of a batch are made in a loop of 12 ms that is kept from a core for a tenth of a millisecond
// after each one. Those waits were nobody's, so the loop's time was a tenth too short.
TEST(Misdiagnosis, ShortWaitsGoWithTheWorkThatTheyInterrupt) {
  Recorded r = record([](Simulator& s, int) {
    for (int i = 0; i < 12; ++i) {
      s.host(900'000);
      s.wait(SpanKind::runnable, "", 100'000);
    }
    s.copy_in(480'000, 20'000, true);
    layers(s, 10, 100'000, 20'000);
    s.copy_out(4, 2'000, true);
  });
  const FixReport fixes = r.fixes();
  ASSERT_EQ(first(fixes), FixKind::host_work);
  EXPECT_NEAR(find(fixes, FixKind::host_work).share * r.step_ns, 12e6, 0.05 * 12e6);
  // Short waits between launches stay launching's: they are in the way of each of them.
  Recorded launches = record([](Simulator& s, int) {
    for (int i = 0; i < 40; ++i) {
      s.host(200'000);
      s.wait(SpanKind::runnable, "", 100'000);
      s.kernel("sm90_gemm_bf16bf16", 10'000);
    }
  });
  EXPECT_LT(find(launches.fixes(), FixKind::host_work).share, 0.01);
}

// A program that was ended while it imported and filled its weights: a healthy one was promised 52x
// for that.
TEST(Misdiagnosis, AStartIsNoStep) {
  const auto start = [](int64_t kernel_ns) {
    Simulator s;
    for (int i = 0; i < 10; ++i) {
      for (int k = 0; k <= i % 4; ++k)
        s.kernel("distribution_elementwise", kernel_ns * (1 + i % 3));
      s.copy_in(int64_t{50} << 20, 6'000'000, true);
      s.host(300'000'000 + i * 17'000'000);
      s.kernel(i % 2 == 0 ? "fill_kernel" : "sm90_gemm_bf16bf16", kernel_ns);
    }
    Trace trace = s.take();
    const Analysis analysis = analyse(trace);
    const HostTimeline host(trace);
    return find_fixes(
        Replay(trace, host, 0, {}, trace.ops.front().start_ns, trace.ops.back().end_ns), analysis);
  };
  const FixReport fixes = start(1'000);
  EXPECT_FALSE(fixes.numbers);
  EXPECT_TRUE(fixes.worth.empty());
  EXPECT_NE(fixes.why_not.find("gets ready"), std::string::npos) << fixes.why_not;
  // What computes a good part of its time is more than that, whether it has steps or not.
  EXPECT_FALSE(start(10'000'000).worth.empty());
}

// The driver returns from a copy of pageable memory when the last chunk is staged, 20 us before the
// copy ends. Taken for an asynchronous copy, it made the replay miss by 40%.
TEST(Misdiagnosis, PageableCopyThatOutlivesItsCall) {
  Machine machine;
  machine.pageable_lead_ns = 20'000;
  Recorded r = record(
      [](Simulator& s, int) {
        layers(s, 10, 200'000, 20'000);
        s.copy_in(32 << 20, 2'000'000, true);
        s.synchronize();
      },
      machine);
  const FixReport fixes = r.fixes();
  ASSERT_TRUE(fixes.numbers) << fixes.why_not;
  EXPECT_LT(fixes.replay_error, 0.01);
  EXPECT_EQ(first(fixes), FixKind::copies);
  EXPECT_NEAR(find(fixes, FixKind::copies).share * r.step_ns, 2'000'000, 100'000);
  EXPECT_NEAR(find(fixes, FixKind::copies).step_ns, 2'010'000, 60'000);
}

// Hundreds of small copies are launches, waits and dispatch by their calls; one block cures them.
TEST(Misdiagnosis, RunOfSmallCopies) {
  Recorded r = record([](Simulator& s, int) {
    for (int i = 0; i < 200; ++i) {
      s.host(8'000);
      s.copy_in(4096, 1'000, false);
      s.synchronize();
    }
    layers(s, 10, 100'000, 10'000);
  });
  const FixReport fixes = r.fixes();
  EXPECT_EQ(first(fixes), FixKind::copies);
  const double planted = 199 * (8'000 + 4'000 + 2'500 + 1'000 + 6'000);
  EXPECT_NEAR(find(fixes, FixKind::copies).share * r.step_ns, planted, 0.05 * planted);
  EXPECT_NEAR(find(fixes, FixKind::copies).step_ns, 1'010'000, 100'000);
}

// A batch comes when the workers have it: nothing that makes the rest faster helps.
TEST(Misdiagnosis, OnlyTheLoaderCuresASlowLoader) {
  Recorded r = record([](Simulator& s, int step) {
    const int64_t ready = s.start_ns() + (step + 1) * 10'000'000;
    s.wait(SpanKind::loader, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
           std::max<int64_t>(1'000, ready - s.now_ns()));
    layers(s, 40, 20'000, 40'000);
  });
  const FixReport fixes = r.fixes();
  EXPECT_EQ(first(fixes), FixKind::loader);
  EXPECT_LT(find(fixes, FixKind::graphs).speedup, 1.01);
  EXPECT_GT(find(fixes, FixKind::loader).speedup, 4);
}

// With num_workers=0 the loading is work of the training thread: less beside it does help.
TEST(Misdiagnosis, LoadingInTheTrainingThreadIsNoPace) {
  Recorded r = record([](Simulator& s, int) {
    s.wait(SpanKind::loader, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
           4'000'000);
    layers(s, 40, 20'000, 40'000);
  });
  EXPECT_GT(find(r.fixes(), FixKind::graphs).speedup, 1.2);
}

// Dispatch between launches is no work of the program's own.
TEST(Misdiagnosis, HostWorkIsNotDispatch) {
  Recorded r = record([](Simulator& s, int) {
    s.host(3'000'000);
    layers(s, 100, 3'000, 10'000);
  });
  const FixReport fixes = r.fixes();
  EXPECT_NEAR(find(fixes, FixKind::host_work).share * r.step_ns, 3'000'000, 100'000);
  EXPECT_NEAR(find(fixes, FixKind::graphs).share * r.step_ns, 100 * (14'000 - 3'000), 100'000);
}

// A thread that starts and ends in a backward pass: 0.4 ms each way, and gone in a captured graph.
TEST(Misdiagnosis, ThreadStartsAreDispatch) {
  Machine graph;
  graph.launch_call_ns = 0;
  Recorded r = record([](Simulator& s, int) {
    layers(s, 40, 3'000, 20'000);
    s.host(400'000);
    layers(s, 80, 3'000, 20'000);
    s.host(400'000);
  });
  EXPECT_EQ(first(r.fixes()), FixKind::graphs);
  EXPECT_LT(find(r.fixes(), FixKind::graphs).step_ns, 120 * 3'400 + 10'000);
}

// 128 blocks on 132 multiprocessors: clusters of a persistent kernel do not fit everywhere.
TEST(Misdiagnosis, PersistentKernelsAreNotLowGrid) {
  Recorded r = record([](Simulator& s, int) {
    for (int i = 0; i < 20; ++i) s.kernel("nvjet_sm90_tst_128x256_64x4_2x1_v_bz", 60'000, 7, 128);
    s.kernel("sm90_gemm_bf16bf16", 60'000, 7, 64);
  });
  const Budget& b = r.analysis.devices.front().budget;
  EXPECT_GT(b[Leaf::tensor], 15 * b[Leaf::low_grid]);
  EXPECT_GT(b[Leaf::low_grid], 0);
}

// Waits for the device cannot be captured: after each one a graph has to be launched anew.
TEST(Misdiagnosis, GraphsDoNotReplaceWaits) {
  Recorded r = record([](Simulator& s, int) {
    for (int i = 0; i < 30; ++i) {
      layers(s, 3, 50'000, 12'000);
      s.synchronize();
    }
  });
  EXPECT_EQ(first(r.fixes()), FixKind::syncs);
}

// Recording doubles the host's part; given what a step takes without, the prediction is right.
TEST(Misdiagnosis, RecordingIsTakenOut) {
  const auto program = [](int64_t host_ns) {
    return [host_ns](Simulator& s, int) { layers(s, 200, 6'000, host_ns); };
  };
  Recorded recorded = record(program(22'000)), untraced = record(program(9'000));
  const double gain = untraced.step_ns / (200 * 6'000);
  const FixReport naive = recorded.fixes(), given = recorded.fixes(untraced.step_ns);
  EXPECT_GT(find(naive, FixKind::graphs).speedup, 1.5 * gain);
  EXPECT_NEAR(find(given, FixKind::graphs).speedup, gain, 0.05 * gain);
  EXPECT_LT(given.dispatch.factor, 0.7);
  EXPECT_FALSE(given.dispatch.assumed);
  EXPECT_EQ(naive.dispatch.factor, 1);
  EXPECT_THROW(recorded.fixes(300'000), Error);  // less than the device needs: another step
  EXPECT_THROW(recorded.fixes(2 * recorded.step_ns), Error);  // recording makes nothing faster
}

// Behind a slow loader nobody sees what recording costs; with the loader cured it would be in the
// way, so the ceiling must do without it.
TEST(Misdiagnosis, HiddenRecordingDoesNotLowerTheCeiling) {
  const auto program = [](int64_t wait, int64_t host_ns) {
    return [wait, host_ns](Simulator& s, int) {
      s.wait(SpanKind::loader, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
             wait);
      layers(s, 200, 6'000, host_ns);
    };
  };
  // The loader's pace decides: the wait takes up what the host saves.
  Recorded recorded = record(program(6'000'000, 22'000));
  EXPECT_FALSE(recorded.fixes(recorded.step_ns).dispatch.assumed);  // by whatever it was recorded
  recorded.analysis.source = kKinetoSource;
  const double hidden_step = recorded.step_ns;
  const double gain = hidden_step / record(program(0, 14'000)).step_ns;
  const FixReport naive = recorded.fixes(), given = recorded.fixes(hidden_step);
  EXPECT_LT(find(naive, FixKind::loader).speedup, 0.95 * gain);
  EXPECT_GE(find(given, FixKind::loader).speedup * 1.03, gain);
  EXPECT_TRUE(given.dispatch.assumed);
  EXPECT_THROW(recorded.fixes(0.5 * hidden_step), Error);  // the loader alone takes longer
}

}  // namespace
}  // namespace saturate::observe
