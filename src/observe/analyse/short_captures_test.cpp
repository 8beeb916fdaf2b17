// SPDX-License-Identifier: Apache-2.0
// What a capture of a short run does not show of a long one.
#include <gtest/gtest.h>

#include <utility>

#include "observe/read/open_capture.h"
#include "observe/report/text.h"
#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::find;
using testing::Simulator;
using testing::tell;
using testing::Told;

// Two steps, of which one holds up the host for once.
TEST(ShortCaptures, WhatHappensOnceIsNotPromised) {
  const auto told = [](bool differ) {
    Simulator s;
    for (int i = 0; i < 3; ++i) {
      s.begin_step(i);
      s.host(differ && i == 1 ? 60'000'000 : 20'000'000);
      for (int k = 0; k < 50; ++k) {
        s.host(10'000);
        s.kernel("sm90_gemm_bf16bf16", 3'000'000);
        s.synchronize();
      }
    }
    Trace trace = s.take();
    const Analysis analysis = analyse(trace);
    EXPECT_EQ(analysis.steps.count, 2);
    return find_fixes(testing::replay_of(trace, analysis), analysis);
  };
  EXPECT_TRUE(told(false).numbers);
  const FixReport differ = told(true);
  EXPECT_FALSE(differ.numbers);
  EXPECT_NE(differ.why_not.find("two steps"), std::string::npos);
}

// Recording costs the host: no more than its calls can, and no more of a step than the device leaves.
TEST(ShortCaptures, WhatRecordingCostLeavesTheDeviceItsWork) {
  const auto told = [](int64_t host_ns, int64_t kernel_ns) {
    Simulator s;
    for (int i = 0; i < 24; ++i) {
      s.begin_step(i);
      s.host(host_ns);
      for (int k = 0; k < 100; ++k) {
        s.host(8'000);
        s.kernel("sm90_gemm_bf16bf16", kernel_ns);
      }
      s.synchronize();
    }
    Trace trace = s.take();
    trace.slowdown = 3;
    const Diagnosis g = diagnose(*make_capture(std::move(trace)), "run");
    EXPECT_NE(render_text(g).find("by its pace just before 3.00x"), std::string::npos);
    return g.analysis.slowdown;
  };
  EXPECT_NEAR(told(0, 10'000), 1.2, 0.05);     // of 12 us a call the device works 10
  EXPECT_NEAR(told(0, 1'000), 12.0 / 7, 0.1);  // 5 of 12 us
  // A pace that is another part's, as that of a warm-up: 0.5 ms of 11.2 can be the recorder's.
  EXPECT_NEAR(told(10'000'000, 1'000), 1.05, 0.01);
}

// Batches that were ready before the first step hide what later steps wait.
TEST(ShortCaptures, AStockOfBatchesRunsOut) {
  const auto high = [](int stock) {
    const Told told = tell([=](Simulator& s, int step) {
      if (step >= stock) s.wait(SpanKind::loader, "_MultiProcessingDataLoaderIter", 8'000'000);
      s.copy_in(1 << 20, 30'000, false);
      s.kernel("sm90_gemm_bf16bf16", 4'000'000);
      s.synchronize();
    });
    return *find(told.fixes, FixKind::loader);
  };
  const Fix without = high(0), with = high(12);
  EXPECT_FALSE(with.ceiling);
  EXPECT_LT(with.speedup, 0.8 * without.speedup);
  EXPECT_GT(with.high, without.speedup);
}

// Workers deliver at another pace in another run, and no less where one of them is late with each of its
// batches and the others are not.
TEST(ShortCaptures, WhatOneSlowWorkerDeliversIsNoCeiling) {
  const Told told = tell([](Simulator& s, int step) {
    if (step % 4 == 3) s.wait(SpanKind::loader, "_MultiProcessingDataLoaderIter", 24'000'000);
    s.copy_in(1 << 20, 30'000, false);
    s.kernel("sm90_gemm_bf16bf16", 4'000'000);
    s.synchronize();
  });
  const Fix* f = find(told.fixes, FixKind::loader);
  EXPECT_FALSE(f->ceiling);
  EXPECT_GT(f->speedup, 2);
  EXPECT_GT(f->high, 1.15 * f->speedup);
}

}  // namespace
}  // namespace saturate::observe
