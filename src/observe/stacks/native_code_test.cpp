// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/native_code.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/testing/temp_folder.h"
#include "observe/stacks/instruction_sampler.h"
#include "observe/stacks/stack_sampler.h"
#include "observe/testing/pythons.h"

// Runs for ever; its name is what the samples must give.
extern "C" __attribute__((noinline)) void saturate_test_spins(volatile unsigned* word) {
  for (;;) *word = *word * 5 + 1;
}
extern "C" __attribute__((noinline)) void saturate_test_sleeps() {
  for (;;) usleep(50'000);
}

namespace saturate::observe {
namespace {

using saturate::testing::TempFolder;

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Ends with the object.
struct Child {
  pid_t pid = -1;
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

bool has_native_code(const Trace& t) {
  for (const HostSample& s : t.samples)
    if (t.names[t.stacks[s.stack].file][0] == '/' && t.stacks[s.stack].line == 0) return true;
  return false;
}

// From when the tables of functions have been read.
Trace sampled(pid_t pid, int samples) {
  StackSampler sampler(pid, now_ns);
  for (int i = 0; i < 4000; ++i) {
    Trace before;
    sampler.sample();
    sampler.take(before);
    if (has_native_code(before)) break;
    usleep(5'000);
  }
  Trace trace;
  for (int i = 0; i < samples; ++i) {
    sampler.sample();
    usleep(5'000);
  }
  sampler.take(trace);
  return trace;
}

// Of all samples, the part whose innermost frame is `function` of a file that ends so.
double share_of(const Trace& t, const std::string& function, const std::string& file) {
  double all = 0, some = 0;
  for (const HostSample& s : t.samples) {
    const StackNode& n = t.stacks[s.stack];
    all += s.count;
    const bool named = function.empty() || t.names[n.function] == function;
    if (named && t.names[n.file].find(file) != std::string::npos) some += s.count;
  }
  return all > 0 ? some / all : 0;
}

class Native : public ::testing::Test {
 protected:
  void SetUp() override {
    int error = 0;
    if (InstructionSampler::open(getpid(), error) == nullptr)
      GTEST_SKIP() << "perf_event_open: " << std::strerror(error);
  }
};

TEST_F(Native, TheFunctionThatRunsIsNamed) {
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    unsigned word = 1;
    saturate_test_spins(&word);
  }
  const Trace t = sampled(child.pid, 60);
  EXPECT_GT(share_of(t, "saturate_test_spins", "saturate_observe_test"), 0.7);
}

TEST_F(Native, AThreadInTheKernelHasTheNameOfItsCall) {
  Child child;
  child.pid = fork();
  if (child.pid == 0) saturate_test_sleeps();
  StackSampler sampler(child.pid, now_ns);
  Trace t;
  for (int i = 0; i < 40; ++i) {
    sampler.sample();
    usleep(5'000);
  }
  sampler.take(t);
  EXPECT_GT(share_of(t, "sleep", "[kernel]"), 0.8);
}

TEST_F(Native, BelowALineOfPythonLiesTheLibraryThatItCalled) {
  const auto pythons = testing::interpreters();
  if (pythons.empty()) GTEST_SKIP() << "no Python 3.9 to 3.15 on this machine";
  const TempFolder folder;
  std::ofstream(folder / "program.py") << "import os, zlib\n"
                                          "data = os.urandom(4 << 20)\n"
                                          "while True: zlib.compress(data, 9)\n";
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    const std::string program = folder / "program.py";
    execl(pythons.back().path.c_str(), pythons.back().path.c_str(), program.c_str(), nullptr);
    _exit(127);
  }
  usleep(300'000);
  const Trace t = sampled(child.pid, 80);
  double below = 0, all = 0;
  for (const HostSample& s : t.samples) {
    all += s.count;
    const StackNode& n = t.stacks[s.stack];
    if (n.caller != kNoStack && t.names[n.file].find("libz") != std::string::npos &&
        t.stacks[n.caller].line == 3)
      below += s.count;
  }
  EXPECT_GT(below, 0.6 * all) << all;
}

// A file without symbols still gives its own name.
TEST(NativeCode, AddressesOfThisProgram) {
  NativeCode code(getpid());
  const auto place_of = [&code](uint64_t address) {
    const NativeCode::Place* place = code.at(address, 0);
    for (; place == nullptr; place = code.at(address, 0)) usleep(1'000);  // its table is read
    return *place;
  };
  const auto own = place_of(reinterpret_cast<uint64_t>(&saturate_test_spins) + 1);
  EXPECT_EQ(own.function, "saturate_test_spins");
  EXPECT_TRUE(own.file.ends_with("saturate_observe_test")) << own.file;
  const auto libc = place_of(reinterpret_cast<uint64_t>(&::getppid) + 1);
  EXPECT_NE(libc.file.find(".so"), std::string::npos) << libc.file;
  EXPECT_EQ(place_of(16).file, "[code made while running]");
  EXPECT_EQ(place_of(16).function, "(no symbol)");
}

TEST(FunctionTable, NotAnElfFileHasNone) {
  const TempFolder folder;
  std::ofstream(folder / "text") << "no library";
  EXPECT_EQ(FunctionTable(folder / "text").at(0), "");
  EXPECT_EQ(FunctionTable(folder / "none").at(0), "");
}

TEST(FunctionTable, NamesAreThoseOfTheSource) {
  EXPECT_EQ(function_words("npy_quicksort"), "npy_quicksort");
  EXPECT_EQ(function_words("memcpy@@GLIBC_2.14"), "memcpy");
  EXPECT_EQ(function_words("_ZN2at6native4sumsEiPf"), "at::native::sums");
  EXPECT_EQ(function_words("_Z3sumIfSaIfEET_PS1_"), "sum<...>");
  EXPECT_EQ(function_words("_ZN12_GLOBAL__N_14spinEv"), "(anonymous namespace)::spin");
  EXPECT_EQ(function_words("_ZNK3HotclEi"), "Hot::operator()");
  EXPECT_EQ(function_words("_ZlsRSoi"), "operator<<");
}

}  // namespace
}  // namespace saturate::observe
