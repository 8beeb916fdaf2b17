// SPDX-License-Identifier: Apache-2.0
#include "data/ordered_workers.h"

#include <chrono>

#include "base/error.h"
#include "runtime/start_threads.h"

namespace saturate::data {

OrderedWorkers::OrderedWorkers(int threads, int slots, std::function<bool(int)> plan,
                               std::function<void(int)> work)
    : slots_(slots), plan_(std::move(plan)), work_(std::move(work)), done_(slots), failure_(slots) {
  SAT_ASSERT(threads >= 1 && slots >= 1);
  start_threads(
      threads_, threads, "data.workers", [this](int) { run(); }, [this] { stop(); });
}

void OrderedWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  may_plan_.notify_all();
}

OrderedWorkers::~OrderedWorkers() {
  stop();
  for (std::thread& t : threads_) t.join();
}

void OrderedWorkers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    may_plan_.wait(
        lock, [this] { return stop_ || ended_ || (!planning_ && planned_ - released_ < slots_); });
    if (stop_ || ended_) return;
    planning_ = true;
    const int slot = static_cast<int>(planned_ % slots_);
    lock.unlock();

    bool more = false;
    std::exception_ptr failure;
    try {
      more = plan_(slot);
    } catch (...) {
      failure = std::current_exception();
    }

    lock.lock();
    planning_ = false;
    ended_ = !more;  // also after a failure
    if (more || failure) {
      ++planned_;
      done_[slot] = 0;
    }
    if (ended_)
      may_plan_.notify_all();
    else
      may_plan_.notify_one();
    if (more) {
      lock.unlock();
      try {
        work_(slot);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
    }
    if (more || failure) {
      done_[slot] = 1;
      failure_[slot] = failure;
    }
    result_.notify_one();
  }
}

int OrderedWorkers::acquire() {
  std::unique_lock lock(mutex_);
  SAT_ASSERT(acquired_ - released_ < slots_);  // or the consumer would wait for itself
  const int slot = static_cast<int>(acquired_ % slots_);
  const auto ready = [&] { return acquired_ < planned_ ? done_[slot] != 0 : ended_; };
  if (!ready()) {
    const auto start = std::chrono::steady_clock::now();
    result_.wait(lock, ready);
    waited_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  }
  if (acquired_ == planned_) return -1;
  if (failure_[slot]) std::rethrow_exception(failure_[slot]);  // stays: acquired_ does not move on
  ++acquired_;
  return slot;
}

void OrderedWorkers::release() {
  {
    const std::lock_guard lock(mutex_);
    SAT_ASSERT(released_ < acquired_);
    ++released_;
  }
  may_plan_.notify_one();
}

}  // namespace saturate::data
