// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace saturate::observe::cupti {

// Wakes a thread, also out of a signal handler, where no condition variable may be used. Stays
// rung.
class Doorbell {
 public:
  void ring() noexcept {
    rung_ = 1;
    syscall(SYS_futex, word(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  // Until it is rung, `ns` have passed or a signal has come.
  void wait(int64_t ns) noexcept {
    const timespec timeout{static_cast<time_t>(ns / 1'000'000'000), ns % 1'000'000'000};
    if (ns > 0) syscall(SYS_futex, word(), FUTEX_WAIT_PRIVATE, 0, &timeout, nullptr, 0);
  }
  bool rung() const noexcept { return rung_ != 0; }

 private:
  uint32_t* word() noexcept { return reinterpret_cast<uint32_t*>(&rung_); }
  std::atomic<uint32_t> rung_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
};

}  // namespace saturate::observe::cupti
