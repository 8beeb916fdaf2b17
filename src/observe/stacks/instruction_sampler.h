// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace saturate::observe {

// Which instruction a thread of another process ran last in its own code, by the kernel's sampling (perf_event_open(2)): every
// 2 ms of its time on a core. Costs the thread an interrupt each time, by estimate 0.1%; stops nothing. The kernel allows it for one's own
// processes where kernel.perf_event_paranoid is at most 2, but many containers forbid the call.
class InstructionSampler {
 public:
  static constexpr int64_t kPeriodNs = 2'000'000;

  // Null when the kernel refuses: `error` is then its errno.
  static std::unique_ptr<InstructionSampler> open(pid_t thread, int& error);
  ~InstructionSampler();
  InstructionSampler(const InstructionSampler&) = delete;
  InstructionSampler& operator=(const InstructionSampler&) = delete;

  struct Point {
    int64_t time_ns = 0;  // CLOCK_MONOTONIC
    uint64_t address = 0;
  };
  // The newest one so far; nothing before the first. Cost: no system call.
  std::optional<Point> last();

 private:
  InstructionSampler(int file, void* pages) : file_(file), pages_(pages) {}
  int file_;
  void* pages_;  // a head and one page of records
  std::optional<Point> last_;
};

}  // namespace saturate::observe
