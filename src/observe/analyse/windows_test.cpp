// SPDX-License-Identifier: Apache-2.0
// Steps that are detected by what the host did before them, in a capture that comes in windows.
#include <gtest/gtest.h>

#include <functional>

#include "observe/analyse/analyser.h"
#include "observe/testing/simulator.h"
#include "observe/testing/windows.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

void kernels(Simulator& s) {
  for (int k = 0; k < 5; ++k) s.kernel("kernel", 20'000);
}

struct Program {
  const char* name;
  std::function<void(Simulator&)> step;
};

TEST(Windows, DoNotLoseWhatTheHostDidBeforeAStep) {
  const Program programs[] = {
      {"waits",
       [](Simulator& s) {
         kernels(s);
         s.synchronize();
       }},
      {"waits, then works",
       [](Simulator& s) {
         kernels(s);
         s.synchronize();
         s.host(300'000);
         s.call("cudaEventRecord", 2'000);
         s.call("cudaEventRecord", 2'000);
       }},
      {"allocates",
       [](Simulator& s) {
         s.call("cudaMalloc", 100'000);
         kernels(s);
       }},
      {"allocates, far ahead of the device",
       [](Simulator& s) {
         s.call("cudaMalloc", 10'000);
         kernels(s);
       }},
      {"makes no call",
       [](Simulator& s) {
         s.host(3'000'000);
         kernels(s);
       }},
  };
  for (const Program& program : programs) {
    Simulator s;
    for (int i = 0; i < 60; ++i) program.step(s);
    const Trace whole = s.take();
    Trace once = whole;
    const Analysis expected = analyse(once);
    ASSERT_GE(expected.steps.count, 50) << program.name;
    for (const int64_t parts : {2, 3, 5, 7}) {
      const Analysis got = testing::analyse_in_parts(whole, parts);
      EXPECT_EQ(got.steps.count, expected.steps.count) << program.name << ", " << parts;
      EXPECT_EQ(got.steps.irregular, expected.steps.irregular) << program.name << ", " << parts;
      EXPECT_EQ(got.steps.median_ns, expected.steps.median_ns) << program.name << ", " << parts;
      EXPECT_EQ(got.devices[0].budget, expected.devices[0].budget) << program.name << ", " << parts;
    }
  }
}

}  // namespace
}  // namespace saturate::observe
