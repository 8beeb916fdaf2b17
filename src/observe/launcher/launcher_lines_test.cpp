// SPDX-License-Identifier: Apache-2.0
// From a program that runs to the line in the report: all but the device, whose work is made up from
// the program's own clock.
#include <gtest/gtest.h>

#include <fstream>

#include "base/testing/temp_folder.h"
#include "observe/launcher/launcher.h"
#include "observe/read/open_capture.h"
#include "observe/read/sat_writer.h"
#include "observe/report/diagnosis.h"
#include "observe/report/text.h"
#include "observe/testing/pythons.h"

namespace saturate::observe {
namespace {

using saturate::testing::Interpreter;
using saturate::testing::TempFolder;

constexpr const char* kProgram = R"(import os, sys, time
def slow():
    return sum(range(1200000))
def step(out):
    a = time.time_ns(); slow(); b = time.time_ns(); time.sleep(0.004)
    print(a, b, time.time_ns(), file=out)
with open(sys.argv[1] + '/times', 'w') as out:
    print(os.getpid(), file=out)
    end, steps = time.time() + 1.2, 0
    while time.time() < end or steps < 15: step(out); steps += 1  # 15: on a busy machine
)";

// What a recorder would have written had the second part of each step been the device's.
void write_capture(const std::string& folder) {
  std::ifstream in(folder + "/times");
  uint32_t process = 0;
  in >> process;
  Trace t;
  t.devices[0] = {"made up", 132};
  const uint32_t thread = t.threads.add({process, process});
  const uint32_t stream = t.streams.add({process, 0, 1, 7}),
                 kernel = t.names.add("sm90_gemm_bf16bf16");
  const uint32_t launch = t.names.add("cudaLaunchKernel");
  const uint32_t wait = t.names.add("cudaDeviceSynchronize");
  int64_t number = 0;
  for (int64_t a = 0, b = 0, c = 0; in >> a >> b >> c; ++number) {
    t.calls.push_back({b, b + 5'000, number, launch, thread});
    t.calls.push_back({b + 6'000, c, kNoCorrelation, wait, thread});
    DeviceOp op{b + 8'000, c, number, 1024, kernel, stream};
    t.ops.push_back(op);
  }
  ASSERT_GT(number, 10);
  SatWriter writer(folder + "/" + std::to_string(process) + ".sat");
  writer.write(t, t.ops.back().end_ns + 1);
  writer.close(t);
}

TEST(LinesOfAProgram, TheSlowOneIsInTheReport) {
  const std::vector<Interpreter> pythons = testing::interpreters();
  if (pythons.empty()) GTEST_SKIP() << "no Python 3.9 to 3.15 on this machine";
  const TempFolder captures, program;
  std::ofstream(program / "program.py") << kProgram;
  LaunchOptions options;
  options.command = {pythons.back().path, program / "program.py", captures.path()};
  options.folder = captures.path();
  options.library = "/bin/true";  // no CUDA comes to load it
  EXPECT_EQ(run_captured(options).exit_code, 0);
  write_capture(captures.path());
  std::filesystem::remove(captures / "times");
  const Diagnosis g = diagnose(captures.path());
  const HostLines& h = g.device().host_lines;
  ASSERT_FALSE(h.empty()) << render_text(g);
  EXPECT_EQ(h.lines[0].at.where(), "program.py:3") << render_text(g);
  EXPECT_EQ(h.lines[0].at.function, "slow");
  EXPECT_EQ(h.lines[0].caller.where(), "program.py:5");
  EXPECT_GT(h.lines[0].share, 0.5);
  EXPECT_NE(
      g.verdict.why.find("sum(range(1200000)) in program.py:3 (slow), called from program.py:5"),
      std::string::npos)
      << g.verdict.why;
}

}  // namespace
}  // namespace saturate::observe
