// SPDX-License-Identifier: Apache-2.0
// Three programs whose device waits for the host: work between the steps, work that eight threads
// do on one core, and work that grows with every step. The device computes about 2 ms a step, which
// begins with a pass over memory, as training steps do with their input.
#include <sched.h>

#include <numeric>
#include <thread>
#include <vector>

#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

void compute(const Rig& rig, const Buffer& x, const Buffer& y) {
  launch_elementwise(rig.stream, x, y);
  for (int i = 0; i < 20; ++i) launch_arithmetic(rig.stream, x, kFullGrid, 400);
}

// What the host does in a step, timed by marks.
class HostBound : public Program {
 public:
  explicit HostBound(Device device)
      : rig_(device),
        x_(Buffer::Where::device, kGridBytes),
        y_(Buffer::Where::device, kGridBytes) {}

  void step() final {
    compute(rig_, x_, y_);
    rig_.marks.begin();
    prepare();
    rig_.marks.end();
  }

  Marks* marks() final { return &rig_.marks; }

 protected:
  virtual void prepare() = 0;

 private:
  Rig rig_;
  Buffer x_, y_;
};

class HostWork final : public HostBound {
 public:
  HostWork(Remedy remedy, Device device) : HostBound(device), remedy_(remedy) {}

 private:
  void prepare() override {
    if (remedy_ == Remedy::none) burn(5'000'000);
  }
  Remedy remedy_;
};

int64_t checksum(int64_t rounds) {
  uint64_t state = 1;
  for (int64_t i = 0; i < rounds; ++i) state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<int64_t>(state);
}

class ThrottledPool final : public HostBound {
 public:
  ThrottledPool(Remedy remedy, Device device) : HostBound(device), remedy_(remedy) {}

 private:
  static constexpr int kThreads = 8;

  void prepare() override {
    std::vector<std::thread> pool;
    std::vector<int64_t> results(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      pool.emplace_back([this, t, &results] {
        if (remedy_ == Remedy::none) stay_on_one_core();
        results[static_cast<size_t>(t)] = checksum(1'000'000);
      });
    }
    for (std::thread& t : pool) t.join();
    sum_ = sum_ + std::accumulate(results.begin(), results.end(), int64_t{0});
  }

  static void stay_on_one_core() {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int c = CPU_SETSIZE - 1; c >= 0; --c) {
      if (!CPU_ISSET(static_cast<size_t>(c), &all)) continue;
      CPU_SET(static_cast<size_t>(c), &one);
      break;
    }
    sched_setaffinity(0, sizeof one, &one);
  }

  Remedy remedy_;
  volatile int64_t sum_ = 0;
};

class GrowingStep final : public HostBound {
 public:
  GrowingStep(Remedy remedy, Device device) : HostBound(device), remedy_(remedy) {}

 private:
  void prepare() override {
    history_.insert(history_.end(), 100'000, static_cast<int64_t>(history_.size()));
    if (remedy_ == Remedy::applied) {
      sum_ = sum_ + history_.back() * 100'000;
      return;
    }
    int64_t sum = 0;
    for (const int64_t value : history_) sum += value % 7;
    sum_ = sum;
  }
  Remedy remedy_;
  std::vector<int64_t> history_;
  volatile int64_t sum_ = 0;
};

}  // namespace

std::unique_ptr<Program> make_host_work(Remedy remedy, Device device) {
  return std::make_unique<HostWork>(remedy, device);
}

std::unique_ptr<Program> make_throttled_pool(Remedy remedy, Device device) {
  return std::make_unique<ThrottledPool>(remedy, device);
}

std::unique_ptr<Program> make_growing_step(Remedy remedy, Device device) {
  return std::make_unique<GrowingStep>(remedy, device);
}

}  // namespace saturate::lab
