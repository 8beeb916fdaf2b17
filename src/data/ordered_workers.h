// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace saturate::data {

// Threads that fill a ring of slots; one consumer takes the results in order.
//
// plan(slot) runs one call at a time, in order, and returns false at the end; work(slot) then runs
// on the same thread, beside other calls. What plan left for a slot, its work sees. At most `slots`
// results are planned and not yet released: a bounded queue. Errors: an exception of plan or work
// reaches the consumer at its turn, and at every later acquire. Threads: acquire and release from
// the consumer's thread only.
class OrderedWorkers {
 public:
  // Errors: out_of_memory when the system gives no more threads.
  OrderedWorkers(int threads, int slots, std::function<bool(int)> plan,
                 std::function<void(int)> work);
  ~OrderedWorkers();  // stops after the calls in progress
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // The slot of the next result, or -1 after the last. Several may be held at once.
  int acquire();
  // Gives the oldest slot held back.
  void release();
  // Time acquire spent waiting, since the start.
  int64_t waited_ns() const noexcept { return waited_ns_; }

 private:
  void run();
  void stop();

  const int slots_;
  const std::function<bool(int)> plan_;
  const std::function<void(int)> work_;
  std::mutex mutex_;
  std::condition_variable may_plan_, result_;
  // Guarded by mutex_. Results planned, handed to the consumer, and given back: released_ <=
  // acquired_
  // <= planned_ <= released_ + slots_.
  int64_t planned_ = 0, acquired_ = 0, released_ = 0;
  bool planning_ = false, ended_ = false, stop_ = false;
  std::vector<char> done_;                   // per slot
  std::vector<std::exception_ptr> failure_;  // per slot
  int64_t waited_ns_ = 0;                    // the consumer's
  std::vector<std::thread> threads_;         // last: they use all of the above
};

}  // namespace saturate::data
