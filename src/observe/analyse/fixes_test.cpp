// SPDX-License-Identifier: Apache-2.0
// Predictions against the repaired program, which the simulator can run.
#include "observe/analyse/fixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "observe/testing/fix_report.h"

namespace saturate::observe {
namespace {

using testing::find;
using testing::Machine;
using testing::Outcome;
using testing::replay_of;
using testing::run;
using testing::Simulator;

// `broken` has the planted cause, `fixed` has not.
void expect_planted(FixKind kind, const std::function<void(Simulator&)>& broken,
                    const std::function<void(Simulator&)>& fixed, Machine fixed_machine = {}) {
  const Outcome before = run(broken), after = run(fixed, fixed_machine);
  ASSERT_TRUE(before.fixes.numbers) << before.fixes.why_not;
  EXPECT_LT(before.fixes.replay_error, 0.02);
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, kind) << fix_info(before.fixes.worth[0].kind).id;
  const double gain = before.step_ns / after.step_ns, predicted = find(before.fixes, kind)->speedup;
  EXPECT_NEAR(predicted / gain, 1, 0.10)
      << fix_info(kind).id << " predicted " << predicted << " got " << gain;
  EXPECT_LE(gain, predicted * 1.03);
}

void layers(Simulator& s, int n, int64_t kernel_ns, int64_t host_ns) {
  for (int i = 0; i < n; ++i) {
    s.host(host_ns);
    s.kernel("sm90_gemm_bf16bf16", kernel_ns);
  }
}

TEST(Fixes, LaunchBound) {
  Machine graph;
  graph.launch_call_ns = 0;
  graph.kernel_gap_ns = 400;  // of a graph's kernels on an H200
  expect_planted(
      FixKind::graphs, [](Simulator& s) { layers(s, 200, 3'000, 5'000); },
      [](Simulator& s) { layers(s, 200, 3'000, 0); }, graph);
}

// Sixteen experts called one by one: one batched product in their place is faster than a graph of
// them, so a graph's gain is no ceiling.
TEST(Fixes, SmallProductsMayBeBatched) {
  const auto fixes = run([](Simulator& s) {
                       layers(s, 200, 3'000, 5'000);
                       s.kernel("sm90_gemm_bf16bf16", 200'000);
                     }).fixes;
  const Fix* graphs = find(fixes, FixKind::graphs);
  ASSERT_NE(graphs, nullptr);
  EXPECT_FALSE(graphs->ceiling);
  EXPECT_GT(graphs->high, 1.5 * graphs->speedup);
  const auto long_ones = run([](Simulator& s) { layers(s, 100, 12'000, 20'000); }).fixes;
  const Fix* large = find(long_ones, FixKind::graphs);
  ASSERT_NE(large, nullptr);
  EXPECT_TRUE(large->ceiling) << "kernels that are not short stay as they are";
}

TEST(Fixes, LongHostWork) {
  expect_planted(
      FixKind::host_work,
      [](Simulator& s) {
        s.host(3'000'000);
        layers(s, 40, 50'000, 5'000);
      },
      [](Simulator& s) { layers(s, 40, 50'000, 5'000); });
}

TEST(Fixes, SynchronisingEachStep) {
  const auto program = [](bool sync) {
    return [sync](Simulator& s) {
      layers(s, 50, 40'000, 15'000);
      if (sync) s.synchronize();
      s.host(600'000);  // could run while the layers do
      s.kernel("multi_tensor_adam", 20'000);
    };
  };
  expect_planted(FixKind::syncs, program(true), program(false));
}

TEST(Fixes, ReadingTheLossEachStep) {
  const auto program = [](bool read) {
    return [read](Simulator& s) {
      s.host(90'000);
      for (int i = 0; i < 10; ++i) {
        s.host(80'000);
        s.kernel("sm90_gemm_bf16bf16", 100'000);
      }
      s.copy_out(4, 2'000, read);
    };
  };
  expect_planted(FixKind::syncs, program(true), program(false));
}

TEST(Fixes, SlowLoader) {
  const auto program = [](int64_t wait) {
    return [wait](Simulator& s) {
      s.wait(SpanKind::loader, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
             wait);
      s.copy_in(1 << 20, 60'000, true);
      layers(s, 40, 50'000, 5'000);
    };
  };
  expect_planted(FixKind::loader, program(4'000'000), program(0));
}

TEST(Fixes, PageableCopies) {
  const auto program = [](bool pageable) {
    return [pageable](Simulator& s) {
      for (int i = 0; i < 2; ++i)
        s.copy_in(8 << 20, pageable ? 800'000 : 160'000, pageable, pageable ? 7 : 9);
      layers(s, 40, 50'000, 5'000);
    };
  };
  expect_planted(FixKind::copies, program(true), program(false));
}

// Copies that take longer than the computation bound the step themselves.
TEST(Fixes, OverlapIsNoMiracle) {
  const Outcome r = run([](Simulator& s) {
    s.copy_in(64 << 20, 6'000'000, false);
    layers(s, 20, 50'000, 5'000);
  });
  ASSERT_TRUE(r.fixes.numbers);
  EXPECT_NEAR(find(r.fixes, FixKind::copies)->speedup, r.step_ns / 6e6, 0.02);
  // Beyond that only fewer bytes help, if the step can do with fewer.
  ASSERT_EQ(r.fixes.possible.size(), 1U);
  EXPECT_EQ(r.fixes.possible[0].kind, FixKind::fewer_bytes);
  EXPECT_NEAR(r.fixes.possible[0].high, r.step_ns / 1.5e6, 0.1);
}

TEST(Fixes, AllocatingEachStep) {
  const auto program = [](bool allocate) {
    return [allocate](Simulator& s) {
      for (int i = 0; i < 40; ++i) {
        if (allocate) s.call("cudaMalloc", 150'000);
        s.host(3'000);
        s.kernel("sm90_gemm_bf16bf16", 50'000);
        if (allocate) s.call("cudaFree", 80'000);
      }
    };
  };
  expect_planted(FixKind::allocator, program(true), program(false));
}

TEST(Fixes, ExposedCommunication) {
  const auto program = [](bool apart) {
    return [apart](Simulator& s) {
      layers(s, 40, 100'000, 3'000);
      s.kernel("ncclDevKernel_AllReduce_Sum_bf16", 2'000'000, apart ? 20 : 7);
    };
  };
  expect_planted(FixKind::communication, program(false), program(true));
}

TEST(Fixes, FullPrecisionProducts) {
  expect_planted(
      FixKind::precision,
      [](Simulator& s) {
        for (int i = 0; i < 40; ++i) s.kernel("ampere_sgemm_128x64_nn", 400'000);
      },
      [](Simulator& s) { layers(s, 40, 54'000, 0); });
}

TEST(Fixes, SmallBatch) {
  const Outcome one = run([](Simulator& s) {
    for (int i = 0; i < 100; ++i) s.kernel("sm90_gemm_bf16bf16", 60'000, 7, 60);
  });
  ASSERT_TRUE(one.fixes.numbers);
  EXPECT_EQ(one.fixes.worth[0].kind, FixKind::batch);
  EXPECT_NEAR(one.fixes.worth[0].speedup, 2, 0.05);
}

// Kernels that leave less than half of the device empty may find room beside each other or not.
TEST(Fixes, WhatSmallKernelsShareIsPossibleOnly) {
  const auto program = [](int64_t blocks) {
    return run([=](Simulator& s) {
      for (int i = 0; i < 100; ++i) s.kernel("sm90_gemm_bf16bf16", 60'000, 7, blocks);
    });
  };
  for (const FixKind kind : {FixKind::batch, FixKind::processes}) {
    EXPECT_NEAR(find(program(60).fixes, kind)->speedup, 2, 0.05) << fix_info(kind).id;
    const FixReport wide = program(90).fixes;
    const auto is_it = [&](const Fix& f) { return f.kind == kind; };
    EXPECT_TRUE(std::none_of(wide.worth.begin(), wide.worth.end(), is_it)) << fix_info(kind).id;
    const auto f = std::find_if(wide.possible.begin(), wide.possible.end(), is_it);
    ASSERT_NE(f, wide.possible.end()) << fix_info(kind).id;
    EXPECT_EQ(f->speedup, 1);
    EXPECT_NEAR(f->high, 2, 0.05);
  }
}

// Passes over memory are joined where nobody else reads what lies between them; launches always.
TEST(Fixes, FusingPromisesLaunchesAndNotBytes) {
  const auto chain = [](int64_t kernel_ns) {
    return run([=](Simulator& s) {
             s.kernel("sm90_gemm_bf16bf16", 20'000);
             for (int i = 0; i < 40; ++i)
               s.kernel(i % 2 ? "vectorized_elementwise_kernel<mul>"
                              : "vectorized_elementwise_kernel<add>",
                        kernel_ns);
           })
        .fixes;
  };
  const auto is_it = [](const Fix& f) { return f.kind == FixKind::fusion; };
  const FixReport busy = chain(100'000), launching = chain(2'000);
  EXPECT_TRUE(std::none_of(busy.worth.begin(), busy.worth.end(), is_it));
  const auto possible = std::find_if(busy.possible.begin(), busy.possible.end(), is_it);
  ASSERT_NE(possible, busy.possible.end());
  EXPECT_GT(possible->high, 5);
  EXPECT_EQ(possible->speedup, 1);
  const auto promised = std::find_if(launching.worth.begin(), launching.worth.end(), is_it);
  ASSERT_NE(promised, launching.worth.end());
  EXPECT_GT(promised->low, 1);
}

// A replay that misses bounds nothing; that the kernels stay as they are does.
TEST(Fixes, WhereTheReplayMissesIdleTimeIsTheBound) {
  const Outcome r = run([](Simulator& s) {
    s.kernel("sm90_gemm_bf16bf16", 20'000);
    for (int i = 0; i < 40; ++i)
      s.kernel(i % 2 ? "vectorized_elementwise_kernel<mul>" : "vectorized_elementwise_kernel<add>",
               2'000);
  });
  ASSERT_GT(r.fixes.replay_error, kMaxReplayError);
  ASSERT_FALSE(r.fixes.numbers);
  ASSERT_FALSE(r.fixes.possible.empty());
  const Budget& b = r.analysis.devices.front().budget;
  for (const Fix& f : r.fixes.possible) {
    EXPECT_TRUE(is_outside_kernels(f.kind)) << fix_info(f.kind).id;
    EXPECT_EQ(f.speedup, 1);
    EXPECT_FALSE(f.ceiling);
    EXPECT_NEAR(f.high, static_cast<double>(b.total_ns()) / static_cast<double>(b.busy_ns()), 0.01);
  }
}

TEST(Fixes, HealthyProgramGetsNoPromise) {
  const Outcome r = run([](Simulator& s) { layers(s, 60, 200'000, 5'000); });
  ASSERT_TRUE(r.fixes.numbers);
  EXPECT_TRUE(r.fixes.worth.empty()) << fix_info(r.fixes.worth[0].kind).id;
  EXPECT_NE(find(r.fixes, FixKind::graphs)->evidence.find("will not help"), std::string::npos);
}

// The longer a removable wait, the higher the ceiling of what removes it.
TEST(Fixes, AddingARemovableGapNeverLowersTheCeiling) {
  double last = 0;
  for (const int64_t wait : {0, 50'000, 200'000, 1'000'000, 5'000'000}) {
    const Outcome r = run([&](Simulator& s) {
      s.wait(SpanKind::loader, "enumerate(DataLoader)", wait);
      s.copy_in(1 << 20, 60'000, true);
      layers(s, 30, 20'000, 8'000);
    });
    const double now = find(r.fixes, FixKind::loader)->speedup;
    EXPECT_GE(now, last);
    last = now;
  }
  last = 0;
  for (const int64_t host : {0, 2'000, 5'000, 20'000, 90'000}) {
    const Outcome r = run([&](Simulator& s) { layers(s, 30, 20'000, host); });
    const double now = find(r.fixes, FixKind::graphs)->speedup;
    EXPECT_GE(now, last * 0.999);
    last = now;
  }
}

// The same for programs of any make.
TEST(Fixes, AddingAWaitToAnyProgramNeverLowersTheCeiling) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    double last = 0;
    for (const int64_t wait : {0, 100'000, 400'000, 1'600'000}) {
      const Outcome r = run([&](Simulator& s) {
        std::mt19937 random(seed);
        const auto pick = [&](int64_t low, int64_t high) {
          return std::uniform_int_distribution<int64_t>(low, high)(random);
        };
        const int64_t n = pick(5, 40), where = pick(0, n - 1);
        for (int64_t i = 0; i < n; ++i) {
          if (i == where) s.wait(SpanKind::loader, "enumerate(DataLoader)", wait);
          s.host(pick(0, 40'000));
          const int64_t what = pick(0, 9);
          if (what == 0)
            s.synchronize();
          else if (what == 1)
            s.copy_out(4, 2'000, true);
          else
            s.kernel("sm90_gemm_bf16bf16", pick(1'000, 90'000), what == 2 ? 9 : 7);
        }
        s.kernel("multi_tensor_adam", 10'000);
      });
      const double now = find(r.fixes, FixKind::loader)->speedup;
      EXPECT_GE(now, last * 0.999) << "seed " << seed << " wait " << wait;
      last = now;
    }
  }
}

// A recorder that makes every call dearer: with that taken out, the promise is that of the program
// without it.
TEST(Fixes, TheRecordersCostIsNoGain) {
  const auto traced = [](int64_t call_ns) {
    Machine m;
    m.launch_call_ns = call_ns;
    Simulator s(m);
    for (int i = 0; i < 24; ++i) {
      s.begin_step(i);
      for (int k = 0; k < 100; ++k) {
        s.host(3'000);
        s.kernel("elementwise", 2'000);
      }
      s.synchronize();
    }
    return s.take();
  };
  const auto graphs = [](Trace t, double slowdown) {
    const Analysis a = analyse(t);
    Replay replay = replay_of(t, a);
    replay.remove_cost(slowdown);
    const FixReport r = find_fixes(replay, a);
    return std::pair(find(r, FixKind::graphs)->speedup, r.replay_step_ns);
  };
  const auto [clean, clean_step] = graphs(traced(4'000), 1);
  const auto [naive, naive_step] = graphs(traced(6'000), 1);
  const auto [corrected, step] = graphs(traced(6'000), naive_step / clean_step);
  EXPECT_GT(naive, 1.1 * clean);
  EXPECT_NEAR(corrected, clean, 0.02 * clean);
  EXPECT_NEAR(step, clean_step, 0.01 * clean_step);
}

// Where the device is what a step waits for, recording lengthens the gaps between kernels.
TEST(Fixes, TheRecordersGapsAreNoGain) {
  const auto promise = [](int64_t gap_ns, double slowdown) {
    Machine m;
    m.kernel_gap_ns = gap_ns;
    Simulator s(m);
    for (int i = 0; i < 24; ++i) {
      s.begin_step(i);
      layers(s, 200, 30'000, 3'000);
    }
    const Trace t = s.take();
    Trace copy = t;
    const Analysis a = analyse(copy);
    Replay replay = replay_of(t, a);
    replay.remove_cost(slowdown);
    return find(find_fixes(replay, a), FixKind::graphs)->speedup;
  };
  EXPECT_GT(promise(2'500, 1), 1.05);
  EXPECT_NEAR(promise(2'500, 32.5 / 31), promise(1'000, 1), 0.005);
}

// The gap between two graphs stays: what is a graph already is promised none.
TEST(Fixes, WhatIsAGraphIsNotPromisedOne) {
  Machine m;
  m.kernel_gap_ns = 3'000;
  const auto promise = [&](OpKind kind) {
    Simulator s(m);
    for (int i = 0; i < 24; ++i) {
      s.begin_step(i);
      for (int k = 0; k < 20; ++k) s.kernel("work", 50'000);
    }
    Trace t = s.take();
    for (DeviceOp& op : t.ops) op.kind = kind;
    const Analysis a = analyse(t);
    const FixReport r = find_fixes(replay_of(t, a), a);
    return find(r, FixKind::graphs)->speedup;
  };
  EXPECT_GT(promise(OpKind::kernel), 1.05);
  EXPECT_LT(promise(OpKind::graph), 1.01);
}

// Graphs of a few microseconds are steps of a loop: launches, most of which one long graph needs not.
TEST(Fixes, ShortGraphsAreLaunches) {
  const auto told = [](int64_t graph_ns) {
    return run([=](Simulator& s) {
             for (int k = 0; k < 50; ++k) {
               s.host(3'000);
               s.graph(1, graph_ns);
             }
           })
        .fixes;
  };
  const FixReport brief = told(6'000), whole = told(60'000);
  ASSERT_FALSE(brief.worth.empty());
  EXPECT_EQ(brief.worth[0].kind, FixKind::graphs);
  EXPECT_GT(brief.worth[0].high, 4) << "an unrolled loop has fewer and longer ones";
  const Fix* other = find(whole, FixKind::graphs);
  EXPECT_LT(other->speedup, kWorth);
}

// What joins short kernels leaves long fills between them as they are.
TEST(Fixes, LongFillsStay) {
  const auto highest = [](int64_t fill_ns) {
    Simulator s{Machine{}};
    for (int i = 0; i < 24; ++i) {
      s.begin_step(i);
      for (int k = 0; k < 40; ++k) {
        s.host(5'000);
        s.kernel(k == 20 ? "Memset" : "elementwise", k == 20 ? fill_ns : 3'000);
      }
    }
    Trace t = s.take();
    for (DeviceOp& op : t.ops)
      if (t.names[op.name] == "Memset") op.kind = OpKind::fill;
    const Analysis a = analyse(t);
    const Fix f = *find(find_fixes(replay_of(t, a), a), FixKind::graphs);
    return std::max(f.speedup, f.high);
  };
  EXPECT_GT(highest(2'000), 10);
  EXPECT_LT(highest(1'000'000), 1.5);
}

// torch.compile(model) leaves what lies outside of the model: of an estimate that is what is certain.
TEST(Fixes, ACompiledModelLeavesTheRest) {
  Simulator s{Machine{}};
  for (int i = 0; i < 24; ++i) {
    s.begin_step(i);
    for (int k = 0; k < 40; ++k) {
      s.host(5'000);
      s.kernel("elementwise", 3'000);
    }
  }
  const Trace t = s.take();
  Trace copy = t;
  Analysis a = analyse(copy);
  HostLines& h = a.devices[0].host_lines;
  const auto graphs = [&](int64_t samples, double part) {
    h.samples = samples;
    h.model_ns = part * static_cast<double>(a.devices[0].budget.total_ns());
    return *find(find_fixes(replay_of(t, a), a), FixKind::graphs);
  };
  const Fix unknown = graphs(100, 0);
  ASSERT_FALSE(unknown.ceiling);
  EXPECT_GT(unknown.low, 1.5);
  EXPECT_NEAR(graphs(100, 0.25).low, 4.0 / 3, 1e-9);
  EXPECT_EQ(graphs(100, 0.95).low, unknown.low);
  EXPECT_EQ(graphs(kFewSamples - 1, 0.25).low, unknown.low);
}

// XLA's threads wait for the one that calls them: what looks like data that is late goes with the calls.
TEST(Fixes, OneProgramOfJaxMayLeaveTheDevicesWorkAlone) {
  Simulator s{Machine{}};
  for (int i = 0; i < 24; ++i) {
    s.begin_step(i);
    s.wait(SpanKind::loader, "another thread", 400'000);
    layers(s, 100, 12'000, 25'000);
    s.synchronize();
  }
  const Trace t = s.take();
  Trace copy = t;
  Analysis a = analyse(copy);
  const auto graphs = [&](const char* framework) {
    a.framework = framework;
    return *find(find_fixes(replay_of(t, a), a), FixKind::graphs);
  };
  const Budget& b = a.devices[0].budget;
  const double alone = static_cast<double>(b.total_ns()) / static_cast<double>(b.busy_ns());
  const Fix other = graphs("PyTorch"), jax = graphs("JAX");
  EXPECT_LT(std::max(other.speedup, other.high), 0.8 * alone);
  EXPECT_FALSE(jax.ceiling);
  EXPECT_NEAR(jax.high, alone, 0.05 * alone);
}

TEST(Fixes, OverlapsAreSaid) {
  const Outcome r = run([](Simulator& s) {
    layers(s, 100, 6'000, 20'000);
    s.synchronize();
  });
  ASSERT_GE(r.fixes.worth.size(), 2u);
  EXPECT_EQ(r.fixes.worth[0].kind, FixKind::graphs);
}

TEST(Fixes, TwoStreamsWithADependency) {
  const Outcome r = run([](Simulator& s) {
    for (int i = 0; i < 20; ++i) {
      s.kernel("sm90_gemm_bf16bf16", 50'000, 7);
      s.depend(9, 7);
      s.kernel("side", 30'000, 9);
      s.depend(7, 9);
    }
  });
  ASSERT_TRUE(r.fixes.numbers) << r.fixes.why_not;
  EXPECT_LT(r.fixes.replay_error, 0.02);
}

// Libraries of convolutions use streams of their own: kernels that fill the device let those of
// another stream in when their last blocks run.
TEST(Fixes, StreamsThatWaitForRoomOnTheDevice) {
  const auto program = [](int64_t product_ns) {
    return [=](Simulator& s) {
      for (int i = 0; i < 12; ++i) {
        s.kernel("ampere_sgemm_128x64_nn", product_ns, 7);
        s.find_room(9, 7, 0.9);
        s.kernel("void at::native::reduce_kernel<4>", 60'000, 9);
        s.kernel("ampere_sgemm_128x64_nn", product_ns, 7);
        s.depend(7, 9);
      }
    };
  };
  const Outcome before = run(program(400'000)), after = run(program(54'000));
  ASSERT_TRUE(before.fixes.numbers) << before.fixes.why_not;
  EXPECT_LT(before.fixes.replay_error, 0.02);
  EXPECT_LT(before.fixes.unexplained, 0.05);
  const double gain = before.step_ns / after.step_ns;
  const Fix& f = *find(before.fixes, FixKind::precision);
  EXPECT_NEAR(f.speedup / gain, 1, 0.10) << gain;
  EXPECT_LE(gain, 1.03 * f.speedup);
}

}  // namespace
}  // namespace saturate::observe
