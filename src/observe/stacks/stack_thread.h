// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "observe/stacks/stack_sampler.h"

namespace saturate::observe {

// Samples stacks in a thread of its own, 100 times a second on average and at times that keep no
// beat with the program's, less often where that would take more than 2% of a core.
class StackThread {
 public:
  StackThread(pid_t root, std::function<int64_t()> clock);
  ~StackThread();
  StackThread(const StackThread&) = delete;
  StackThread& operator=(const StackThread&) = delete;

  // As those of StackSampler.
  void take(Trace& trace);
  std::vector<std::string> notes();

 private:
  static constexpr int64_t kPeriodNs = 10'000'000;
  static constexpr int64_t kMostShare = 50;  // one part in so many of a core
  void run();
  std::mutex mutex_;  // of what follows
  StackSampler sampler_;
  bool stopped_ = false;
  std::string problem_;  // that ended it
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace saturate::observe
