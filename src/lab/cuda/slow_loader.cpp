// SPDX-License-Identifier: Apache-2.0
// Threads prepare batches, 8 ms each, and hand them over by a queue of four; a step takes about
// 2 ms of the device.
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

constexpr int64_t kPrepareNs = 8'000'000;
constexpr int kReady = 4, kWorkers = 8;

class SlowLoader final : public Program {
 public:
  SlowLoader(Remedy remedy, Device device)
      : rig_(device),
        x_(Buffer::Where::device, kGridBytes),
        batch_(Buffer::Where::pinned, kGridBytes) {
    for (int i = 0; i < (remedy == Remedy::applied ? kWorkers : 1); ++i)
      workers_.emplace_back([this] { work(); });
  }

  ~SlowLoader() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& t : workers_) t.join();
  }

  void step() override {
    rig_.marks.begin();
    {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [this] { return ready_ > 0; });
      --ready_;
    }
    room_.notify_one();
    rig_.marks.end();
    copy_to_device(rig_.stream, x_, batch_.data(), batch_.bytes());
    for (int i = 0; i < 20; ++i) launch_arithmetic(rig_.stream, x_, kFullGrid, 400);
  }

  Marks* marks() override { return &rig_.marks; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [this] { return stop_ || ready_ < kReady; });
      if (stop_) return;
      lock.unlock();
      burn(kPrepareNs);
      lock.lock();
      ++ready_;
      filled_.notify_one();
    }
  }

  Rig rig_;
  Buffer x_, batch_;
  std::mutex mutex_;
  std::condition_variable room_, filled_;
  int ready_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Program> make_slow_loader(Remedy remedy, Device device) {
  return std::make_unique<SlowLoader>(remedy, device);
}

}  // namespace saturate::lab
