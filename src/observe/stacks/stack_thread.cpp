// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/stack_thread.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <random>
#include <utility>

namespace saturate::observe {
namespace {

int64_t own_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

StackThread::StackThread(pid_t root, std::function<int64_t()> clock)
    : sampler_(root, std::move(clock)), thread_([this] { run(); }) {}

StackThread::~StackThread() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StackThread::run() {
  std::minstd_rand random(1);
  double cost_ns = 0;  // of a sample, on average of the last ones
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const int64_t before = own_cpu_ns();
    try {
      sampler_.sample();
    } catch (const std::exception& e) {  // the program must not go with us
      problem_ = e.what();
      return;
    }
    cost_ns += (static_cast<double>(own_cpu_ns() - before) - cost_ns) / 16;
    const double period = std::max<double>(kPeriodNs, kMostShare * cost_ns);
    const double wait = period * std::uniform_real_distribution<>(0.5, 1.5)(random);
    wake_.wait_for(lock, std::chrono::nanoseconds(static_cast<int64_t>(wait)),
                   [this] { return stopped_; });
  }
}

void StackThread::take(Trace& trace) {
  const std::lock_guard lock(mutex_);
  sampler_.take(trace);
}

std::vector<std::string> StackThread::notes() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> notes = sampler_.notes();
  if (!problem_.empty()) notes.push_back("lines of Python: sampling ended early: " + problem_);
  return notes;
}

}  // namespace saturate::observe
