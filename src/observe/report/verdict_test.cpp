// SPDX-License-Identifier: Apache-2.0
// Classes of programs written by others that were once named by what hides their cause, or gained
// more than the ceiling allowed: the planted one against the repaired one.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::expect_sound;
using testing::find;
using testing::layers;
using testing::Machine;
using testing::replay_of;
using testing::Simulator;
using testing::Step;
using testing::tell;
using testing::Told;

size_t place_of(const FixReport& r, FixKind kind) {
  const auto at =
      std::find_if(r.worth.begin(), r.worth.end(), [&](const Fix& f) { return f.kind == kind; });
  return static_cast<size_t>(at - r.worth.begin());
}

TEST(Verdict, ALargePageableCopyGoesAtThePinnedRate) {
  const auto program = [](bool pinned) {
    return [=](Simulator& s, int) {
      layers(s, 6, 100'000, 5'000);
      s.copy_out(64 << 20, pinned ? 1'120'000 : 8'400'000, !pinned, pinned ? 9 : 7);
    };
  };
  const Told before = tell(program(false));
  EXPECT_EQ(before.verdict.id, "copy_bound");
  const double gain = before.step_ns / tell(program(true)).step_ns;
  EXPECT_GT(gain, 6);
  expect_sound(before, FixKind::copies, gain);
  EXPECT_NEAR(find(before.fixes, FixKind::copies)->speedup / gain, 1, 0.1);
  // A machine that was measured: 40 GB/s back.
  const Told measured = tell(program(false), [](Trace& t) { t.copy_rates.pinned_out = 40; });
  EXPECT_NEAR(find(measured.fixes, FixKind::copies)->step_ns, (64 << 20) / (1.03 * 40), 2e4);
}

TEST(Verdict, PinningInTheStepIsTheCopiesMatter) {
  const Told told = tell([](Simulator& s, int) {
    s.call("cudaHostRegister", 2'000'000);
    s.copy_in(32 << 20, 600'000, false);
    layers(s, 20, 150'000, 5'000);
    s.synchronize();
    s.call("cudaHostUnregister", 1'500'000);
  });
  EXPECT_EQ(told.verdict.id, "copy_bound");
  EXPECT_LT(find(told.fixes, FixKind::allocator)->speedup, kWorth);
}

TEST(Verdict, AllocationIsNotHiddenByGraphs) {
  const auto program = [](bool allocate) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 10; ++i) {
        if (allocate) s.call("cudaMalloc", 100'000);
        layers(s, 10, 8'000, 16'000);
        if (allocate) s.call("cudaFree", 60'000);
      }
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "allocation_bound");
  const Fix& graphs = *find(before.fixes, FixKind::graphs);
  EXPECT_EQ(graphs.with, std::vector{FixKind::allocator});
  EXPECT_NE(graphs.obstacle.find("allocates 20 times"), std::string::npos) << graphs.obstacle;
  EXPECT_GT(place_of(before.fixes, FixKind::graphs), place_of(before.fixes, FixKind::allocator));
  EXPECT_GT(graphs.speedup, 3) << "offered with what clears its way, by one bound";
  expect_sound(before, FixKind::allocator, before.step_ns / tell(program(false)).step_ns);
}

TEST(Verdict, ReadsInEachLayerAreNotHiddenByGraphs) {
  const auto program = [](bool read) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 30; ++i) {
        layers(s, 6, 4'000, 12'000);
        if (!read) continue;
        s.host(5'000);
        s.copy_out(4, 2'000, true);
      }
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "sync_bound");
  EXPECT_NE(find(before.fixes, FixKind::graphs)->obstacle.find("waits for the device"),
            std::string::npos);
  expect_sound(before, FixKind::syncs, before.step_ns / tell(program(false)).step_ns);
}

// Two reads among hundreds of launches stand in the way and are not the cause.
TEST(Verdict, AFewWaitsDoNotOutweighLaunches) {
  const Told told = tell([](Simulator& s, int) {
    for (int i = 0; i < 3; ++i) {
      layers(s, 150, 4'000, 12'000);
      s.copy_out(4, 2'000, true);
    }
  });
  EXPECT_EQ(told.verdict.id, "launch_bound");
  EXPECT_FALSE(find(told.fixes, FixKind::graphs)->with.empty());
  EXPECT_NE(told.verdict.next.find("a graph cannot hold"), std::string::npos);
}

TEST(Verdict, AStateWrittenToDiskTakesItsCopiesAlong) {
  const auto program = [](bool write) {
    return [=](Simulator& s, int) {
      layers(s, 20, 50'000, 5'000);
      if (!write) return;
      for (int i = 0; i < 8; ++i) s.copy_out(32 << 20, 3'000'000, true);
      s.host(40'000'000);
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "host_bound");
  const double gain = before.step_ns / tell(program(false)).step_ns;
  EXPECT_GT(gain, 40);
  expect_sound(before, FixKind::host_work, gain);
}

// Saved after an epoch: the steps between show what a step takes without it, and the copies that feed
// the writing are its time.
TEST(Verdict, StepsThatDoWithoutShowWhatAllWouldTake) {
  const auto program = [](bool save) {
    return [=](Simulator& s, int i) {
      layers(s, 20, 50'000, 5'000);
      for (int k = 0; k < 6; ++k) s.host(30'000), s.kernel("sm90_gemm_bf16bf16", 100'000);
      if (!save || i % 8 != 5) return;
      s.synchronize();
      for (int k = 0; k < 8; ++k) s.copy_out(32 << 20, 3'000'000, true);
      s.host(40'000'000);
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "host_bound");
  const double gain = before.step_ns / tell(program(false)).step_ns;
  const Fix& f = *find(before.fixes, FixKind::host_work);
  EXPECT_NEAR(f.speedup / gain, 1, 0.1) << f.speedup << " for " << gain;
  expect_sound(before, FixKind::host_work, gain);
  EXPECT_NEAR(before.verdict.cause_ns / (64e6 / 8), 1, 0.1) << "24 ms of copies, 40 of writing";
}

// Kernels are tried for shapes that are new; steps of known shapes compute less, and train as well.
TEST(Verdict, StepsWithoutTrialsShowWhatTrialsCost) {
  const auto program = [](bool tries) {
    return [=](Simulator& s, int i) {
      for (int k = 0; tries && i % 5 == 2 && k < 60; ++k) {
        s.kernel("conv_tried_" + std::to_string(k), 200'000);
        s.synchronize();
        s.host(600'000);
      }
      layers(s, 12, 100'000, 5'000);
      s.kernel("multi_tensor_adam", 50'000);
    };
  };
  const Told before = tell(program(true));
  const double gain = before.step_ns / tell(program(false)).step_ns;
  EXPECT_GT(gain, 5);
  const Fix& f = *find(before.fixes, FixKind::host_work);
  EXPECT_NEAR(f.speedup / gain, 1, 0.1) << f.speedup << " for " << gain;
  expect_sound(before, FixKind::host_work, gain);
}

// Gaps of a queue that never runs dry are the device's own: neither a cause nor promised away.
TEST(Verdict, WhatIsLeftBesideABusyDeviceIsNoCause) {
  Machine machine;
  machine.kernel_gap_ns = 2'500;
  const Told told = tell([](Simulator& s, int) { layers(s, 200, 50'000, 5'000); }, {}, machine);
  EXPECT_TRUE(told.fixes.worth.empty());
  EXPECT_GT(find(told.fixes, FixKind::graphs)->speedup, kWorth);
  EXPECT_EQ(told.verdict.id, "gpu_bound");
  EXPECT_NE(told.verdict.why.find("CUDA Graphs"), std::string::npos) << told.verdict.why;
}

// How long host code takes differs from run to run: its bound is no ceiling.
TEST(Verdict, HostWorkIsAnEstimate) {
  const auto program = [](int64_t host_ns) {
    return [=](Simulator& s, int) {
      s.host(host_ns);
      layers(s, 40, 50'000, 5'000);
    };
  };
  const Told told = tell(program(6'000'000));
  const Fix& f = *find(told.fixes, FixKind::host_work);
  EXPECT_FALSE(f.ceiling);
  const double slower = tell(program(8'000'000)).step_ns / tell(program(0)).step_ns;
  EXPECT_LT(slower, f.high) << "the same program, slower by a third";
}

// Kernels of one name read a mask of numbers, or have none.
TEST(Verdict, AttentionMayReadAMaskOfZeros) {
  const auto program = [](const char* name, int64_t ns) {
    return [=](Simulator& s, int) {
      layers(s, 10, 50'000, 5'000);
      for (int k = 0; k < 8; ++k) s.kernel(name, ns);
    };
  };
  constexpr const char* kFused = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16";
  const Told told = tell(program(kFused, 400'000));
  EXPECT_EQ(told.verdict.id, "gpu_bound");
  EXPECT_NE(told.verdict.next.find("where nothing is masked"), std::string::npos)
      << told.verdict.next;
  ASSERT_EQ(told.fixes.possible.size(), 1u);
  const Fix& f = told.fixes.possible[0];
  EXPECT_EQ(f.speedup, 1) << "nothing shows that there is a mask";
  const double gain = told.step_ns / tell(program(kFused, 200'000)).step_ns;
  EXPECT_LT(gain, f.high);
  EXPECT_EQ(f.ceiling, false);
  EXPECT_TRUE(tell(program("pytorch_flash::flash_fwd_kernel", 400'000)).fixes.possible.empty())
      << "has no mask of numbers";
  EXPECT_TRUE(tell(program(kFused, 10'000)).fixes.possible.empty()) << "little to win";
}

// Halves of one step are no steps that do without: they compute less.
TEST(Verdict, ShorterStepsOfAnotherKindShowNothing) {
  const Told told = tell([](Simulator& s, int i) {
    if (i % 3 == 0) s.host(6'000'000);
    layers(s, i % 3 == 0 ? 40 : 4, 100'000, 5'000);
  });
  EXPECT_LT(find(told.fixes, FixKind::host_work)->speedup, 3);
}

// Rows picked by a mask: their number is read at several places, and what makes the mask and picks
// the rows goes with it.
TEST(Verdict, ValuesThatSteerAStepTakeTheirCodeAlong) {
  const auto program = [](bool masks) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 12; ++i) {
        layers(s, 3, 60'000, 8'000);
        if (!masks) continue;
        for (int k = 0; k < 3; ++k) s.host(40'000), s.kernel("cub::DeviceReduceKernel", 4'000);
        s.copy_out(8, 2'000, true);
        s.host(40'000), s.kernel("index_elementwise_kernel", 2'000);
      }
    };
  };
  const Told before = tell(program(true));
  const double gain = before.step_ns / tell(program(false)).step_ns;
  EXPECT_FALSE(find(before.fixes, FixKind::syncs)->ceiling);
  expect_sound(before, FixKind::syncs, gain);
}

// What is made on the host between them goes on without them (graphs joined in Python, 0.88x where the waits were left out).
TEST(Verdict, FewWaitsBesideMuchWorkDoNotTakeItAlong) {
  const auto program = [](bool waits) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 5; ++i) {
        s.host(3'000'000);
        for (int k = 0; k < 10; ++k) s.host(60'000), s.kernel("index_elementwise_kernel", 4'000);
        layers(s, 3, 60'000, 8'000);
        if (waits) s.copy_out(8, 2'000, true);
      }
    };
  };
  const Told before = tell(program(true));
  const double gain = before.step_ns / tell(program(false)).step_ns;
  const Fix& syncs = *find(before.fixes, FixKind::syncs);
  EXPECT_LT(gain, 1.08);
  EXPECT_GT(syncs.high, 3) << "as far as the work could go along";
  EXPECT_LT(syncs.speedup, 1.35 * gain);
  EXPECT_NE(before.verdict.id, "sync_bound");
}

TEST(Verdict, AProgramThatOnlyGetsReadyIsPromisedNothing) {
  const Told told = tell([](Simulator& s, int) {
    s.host(5'000'000);
    s.call("cudaMalloc", 300'000);
    s.copy_in(16 << 20, 2'000'000, true);
  });
  EXPECT_FALSE(told.fixes.numbers);
  EXPECT_NE(told.fixes.why_not.find("nothing was computed"), std::string::npos);
  EXPECT_TRUE(told.fixes.worth.empty());
  EXPECT_EQ(told.verdict.confidence, "low");
}

TEST(Verdict, AThreadThatHoldsTheInterpreterSlowsDispatchAsWell) {
  const auto program = [](bool held) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 4; ++i) {
        if (held) s.wait(SpanKind::gil, "", 5'000'000);
        layers(s, 10, 3'000, held ? 16'000 : 8'000);
      }
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "host_bound");
  expect_sound(before, FixKind::host_work, before.step_ns / tell(program(false)).step_ns);
}

TEST(Verdict, WorkersThatCrowdTheCoresSlowTheTrainingThreadAsWell) {
  const auto program = [](bool crowd) {
    return [=](Simulator& s, int step) {
      if (crowd) {
        const int64_t ready = s.start_ns() + (step + 1) * 12'000'000;
        s.wait(SpanKind::loader, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
               std::max<int64_t>(1'000, ready - s.now_ns()));
        s.wait(SpanKind::runnable, "", 800'000);
      }
      layers(s, 60, 8'000, crowd ? 30'000 : 15'000);
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "input_bound");
  expect_sound(before, FixKind::loader, before.step_ns / tell(program(false)).step_ns);
}

TEST(Verdict, WhatGrowsIsTheVerdict) {
  const auto program = [](bool grows) {
    return
        [=](Simulator& s, int step) { layers(s, 60, 10'000, 5'000 + (grows ? 3'000 * step : 0)); };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "growth_bound");
  expect_sound(before, FixKind::growth, before.step_ns / tell(program(false)).step_ns);
  const Told even = tell(program(false));
  EXPECT_EQ(find(even.fixes, FixKind::growth)->speedup, 1);
}

// As the sample of PyTorch's own profiler with num_workers=0: a third of the time for data, a tenth
// in launches.
TEST(Verdict, LoadingInTheTrainingThreadIsNotHiddenByGraphs) {
  const Told told = tell([](Simulator& s, int) {
    s.wait(SpanKind::loader, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
           3'200'000);
    layers(s, 60, 80'000, 95'000);
  });
  EXPECT_EQ(told.verdict.id, "input_bound");
  const Fix& graphs = *find(told.fixes, FixKind::graphs);
  EXPECT_GT(1 - 1 / graphs.speedup, 1.5 * graphs.own) << "most of it is hiding";
}

// Host work after a read of the loss, which would run ahead without the read.
TEST(Verdict, HostWorkThatAWaitUncoversIsTheWaits) {
  const Step program = [](Simulator& s, int) {
    layers(s, 30, 1'000'000, 20'000);
    s.copy_out(4, 2'000, true);
    s.host(12'000'000);
  };
  EXPECT_EQ(tell(program).verdict.id, "sync_bound");
  const Step slow_python = [](Simulator& s, int) {  // longer than the device's work
    layers(s, 5, 1'000'000, 20'000);
    s.copy_out(4, 2'000, true);
    s.host(30'000'000);
  };
  EXPECT_EQ(tell(slow_python).verdict.id, "host_bound");
}

TEST(Verdict, TwoCausesSideBySideAreOfferedTogether) {
  const Told told = tell([](Simulator& s, int step) {
    const int64_t ready = s.start_ns() + (step + 1) * 5'000'000;
    s.wait(SpanKind::loader, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
           std::max<int64_t>(1'000, ready - s.now_ns()));
    layers(s, 100, 3'000, 30'000);
  });
  ASSERT_EQ(told.fixes.together.size(), 1u);
  const Pair& pair = told.fixes.together[0];
  EXPECT_EQ(pair.first, FixKind::graphs);
  EXPECT_EQ(pair.second, FixKind::loader);
  EXPECT_GT(pair.speedup, 5);
}

// A wait for another thread in long work of the program's own is no loader that sets a pace.
TEST(Verdict, AShortWaitBeforeACopyDoesNotHideHostWork) {
  const Told told = tell([](Simulator& s, int) {
    s.wait(SpanKind::blocked, "", 3'000'000);
    s.host(60'000'000);
    s.copy_in(2 << 20, 150'000, true);
    layers(s, 20, 500'000, 10'000);
  });
  EXPECT_EQ(told.verdict.id, "host_bound");
  EXPECT_GT(find(told.fixes, FixKind::host_work)->speedup, 4);
}

// As PyTorch's anomaly mode: after every operation its result is searched for what is no number.
TEST(Verdict, AChecksOwnKernelsAndCodeGoWithIt) {
  const auto program = [](bool checks) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 60; ++i) {
        layers(s, 1, 60'000, checks ? 60'000 : 10'000);
        if (!checks) continue;
        s.host(15'000);
        s.kernel("void at::native::vectorized_elementwise_kernel<4, isnan>", 20'000);
        s.host(15'000);
        s.kernel("void at::native::reduce_kernel<512, 1, any>", 8'000);
        s.host(15'000);
        s.copy_out(1, 2'000, true);
      }
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "sync_bound");
  expect_sound(before, FixKind::syncs, before.step_ns / tell(program(false)).step_ns);
}

// Graphs whose neighbours are drawn, lists that become tensors: with the data made elsewhere both the
// long work and its many short pieces are gone, and the copies go beside the computation.
TEST(Verdict, DataMadeInTheLaunchingThreadCanBeReadyInAdvance) {
  const auto program = [](bool inside) {
    return [=](Simulator& s, int) {
      if (inside) {
        for (int i = 0; i < 300; ++i) {
          s.host(90'000);
          s.call("cudaStreamIsCapturing", 500);
        }
        s.host(9'000'000);
      }
      s.copy_in(32 << 20, inside ? 6'000'000 : 600'000, inside, inside ? 7 : 9);
      layers(s, 40, 100'000, 5'000);
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.verdict.id, "host_bound");
  const double gain = before.step_ns / tell(program(false)).step_ns;
  expect_sound(before, FixKind::host_work, gain);
  expect_sound(before, FixKind::loader, gain);
  EXPECT_LT(find(tell(program(false)).fixes, FixKind::loader)->speedup, 1.03);
}

TEST(Verdict, HalfPrecisionTakesWhatLiesBetweenAlong) {
  const auto program = [](bool half) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 20; ++i) {
        if (!half) s.kernel("void cudnn::nchwToNhwcKernel<float>", 40'000);
        s.kernel(half ? "sm90_xmma_fprop_bf16bf16" : "void wgrad_alg0_engine_NHWC<float>",
                 half ? 20'000 : 280'000);
        s.kernel("void at::native::vectorized_elementwise_kernel<4>", half ? 60'000 : 120'000);
      }
    };
  };
  const Told before = tell(program(false));
  EXPECT_EQ(before.verdict.id, "gpu_bound");
  const double gain = before.step_ns / tell(program(true)).step_ns;
  expect_sound(before, FixKind::mixed, gain);
  EXPECT_GT(gain, 1.03 * find(before.fixes, FixKind::precision)->speedup);
  EXPECT_EQ(before.fixes.worth.at(0).kind, FixKind::precision) << "rounds less";
  EXPECT_EQ(find(tell(program(true)).fixes, FixKind::mixed)->speedup, 1);
}

// A thread that begins to hold the interpreter late in the run is no growth.
TEST(Verdict, WhatSetsInLateDoesNotGrow) {
  const auto late = [](SpanKind kind) {
    return tell([kind](Simulator& s, int step) {
      layers(s, 60, 10'000, 5'000);
      if (step > 15) s.wait(kind, "", 2'000'000 + 100'000 * step);
    });
  };
  EXPECT_EQ(find(late(SpanKind::blocked).fixes, FixKind::growth)->speedup, 1);
  EXPECT_NE(late(SpanKind::gil).verdict.id, "growth_bound");
  const Told slowly = tell([](Simulator& s, int step) {
    layers(s, 60, 10'000, 5'000);
    s.wait(SpanKind::gil, "", 100'000 * step);
  });
  EXPECT_EQ(slowly.verdict.id, "host_bound");
}

TEST(Verdict, ConversionsOfLayoutAreNamed) {
  const auto program = [](bool convert) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 20; ++i) {
        if (convert) s.kernel("void cudnn::nchwToNhwcKernel<float>", 60'000);
        s.kernel("sm90_xmma_fprop_implicit_gemm_bf16bf16", 100'000);
        if (convert) s.kernel("void cudnn::nhwcToNchwKernel<float>", 40'000);
      }
    };
  };
  const Told before = tell(program(true));
  EXPECT_EQ(before.fixes.worth.at(0).kind, FixKind::layout);
  const double gain = before.step_ns / tell(program(false)).step_ns;
  EXPECT_NEAR(find(before.fixes, FixKind::layout)->speedup / gain, 1, 0.05);
}

// Without a replay it is not known what a wait cost: imports after a copy that waited were called
// synchronisation-bound.
TEST(Verdict, LongWorkAfterAWaitIsTheHostsWhereNothingIsReplayed) {
  const auto told = [](int pieces, int64_t host_ns) {
    Simulator s;
    for (int i = 0; i < 20; ++i) {
      s.copy_in(1 << 20, 300'000, true);
      for (int k = 0; k < pieces; ++k) {
        s.kernel("sm90_gemm_bf16bf16", 1'000);
        s.synchronize();
        s.host(host_ns);
      }
    }
    Trace trace = s.take();
    FixReport none;
    none.why_not = "a program that gets ready";
    return judge(analyse(trace), none);
  };
  EXPECT_EQ(told(1, 30'000'000).id, "host_bound");
  EXPECT_EQ(told(1, 30'000'000).confidence, "low");
  EXPECT_NE(told(1, 30'000'000).next.find("gets ready"), std::string::npos);
  EXPECT_EQ(told(100, 300'000).id, "sync_bound");
}

// What is read once a step may be for a log, and then with it goes nothing else; what is read every
// fifth of a millisecond steers what is computed, and kernels and code may go along.
TEST(Verdict, WhatIsReadTooOftenForALogIsNoCeiling) {
  const auto syncs = [](int kernels) {
    const Told told = tell([=](Simulator& s, int) {
      for (int k = 0; k < kernels; ++k) {
        s.host(8'000);
        s.kernel("elementwise", 2'000);
      }
      s.copy_out(8, 1'500, true);
    });
    return *find(told.fixes, FixKind::syncs);
  };
  EXPECT_FALSE(syncs(15).ceiling);
  EXPECT_GT(syncs(15).high, 1.2 * syncs(15).low);
  EXPECT_TRUE(syncs(120).ceiling);
}

// A graph of each step, where no two are alike, is no remedy before work of the host that takes as long.
TEST(Verdict, GraphsOfStepsThatDifferGoBehindTheHostsWork) {
  const auto told = [](bool differ) {
    return tell([=](Simulator& s, int step) {
      s.host(1'050'000);
      for (int i = 0; i < 80; ++i) {
        s.host(12'000);
        s.kernel("sm90_gemm_bf16bf16", 2'000, 7, 200 + (differ ? 10 * (step % 12) : 0));
      }
    });
  };
  EXPECT_EQ(told(false).verdict.id, "launch_bound");
  const Told differ = told(true);
  EXPECT_EQ(differ.verdict.id, "host_bound");
  EXPECT_NE(find(differ.fixes, FixKind::graphs)->obstacle.find("of one shape"), std::string::npos);
}

TEST(Verdict, ShapesThatChangeAreSaid) {
  const Told told = tell([](Simulator& s, int step) {
    for (int i = 0; i < 80; ++i) {
      s.host(12'000);
      s.kernel("sm90_gemm_bf16bf16", 4'000, 7, 200 + 10 * (step % 12));
    }
  });
  EXPECT_EQ(told.verdict.id, "launch_bound");
  EXPECT_NE(find(told.fixes, FixKind::graphs)->obstacle.find("of one shape"), std::string::npos);
}

}  // namespace
}  // namespace saturate::observe
