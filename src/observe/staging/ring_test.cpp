// SPDX-License-Identifier: Apache-2.0
#include "observe/staging/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <memory>
#include <vector>

namespace saturate::observe::staging {
namespace {

// Copies nothing before somebody waits for an event that comes after: blocks that are filled again
// too early show in what arrives.
class LateDevice : public Device {
 public:
  void* pinned(size_t bytes) override {
    if (refuse) return nullptr;
    memory_.push_back(std::make_unique<char[]>(bytes));
    return memory_.back().get();
  }
  void* make_event() override {
    events_.push_back(0);
    return &events_.back();
  }
  int copy(void* to, const void* from, size_t bytes, void*) override {
    late_.push_back({to, from, bytes});
    ++copies;
    return copies == fails_at ? 719 : 0;
  }
  int record(void* event, void*) override {
    *static_cast<size_t*>(event) = late_.size();
    return 0;
  }
  int wait(void* event) override {
    run(*static_cast<size_t*>(event));
    return 0;
  }
  void run(size_t until) {
    for (; done_ < until; ++done_)
      std::memcpy(late_[done_].to, late_[done_].from, late_[done_].bytes);
  }
  void finish() { run(late_.size()); }

  bool refuse = false;
  int copies = 0, fails_at = -1;

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::list<std::unique_ptr<char[]>> memory_;
  std::list<size_t> events_;
  std::vector<Copy> late_;
  size_t done_ = 0;
};

std::vector<char> pattern(size_t bytes, unsigned seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<char>((i * 2654435761u >> 13) + seed + i / Ring::kBlock);
  return data;
}

// Rings live as long as their threads: to the end of the process.
struct Ringed {
  LateDevice& device = *new LateDevice;
  Ring& ring;
  explicit Ringed(int threads) : ring(*new Ring(device, threads)) {}
};

TEST(Ring, WhatArrivesIsWhatWasThereWhenTheCopyReturned) {
  for (const int threads : {1, 3}) {
    Ringed r(threads);
    ASSERT_TRUE(r.ring.ready());
    unsigned seed = 0;
    for (const size_t bytes :
         {size_t{1}, Ring::kPiece + 3, Ring::kBlock, 2 * Ring::kBlock + 1, 9 * Ring::kBlock - 5}) {
      std::vector<char> from = pattern(bytes, ++seed), to(bytes + 1, 'x');
      const std::vector<char> expected = from;
      EXPECT_EQ(r.ring.copy(to.data(), from.data(), bytes, nullptr), 0);
      std::fill(from.begin(), from.end(), 0);  // as a program may
      r.device.finish();
      EXPECT_EQ(std::memcmp(to.data(), expected.data(), bytes), 0) << bytes << ", " << threads;
      EXPECT_EQ(to[bytes], 'x');
    }
  }
}

TEST(Ring, TheDevicesFirstErrorIsReturned) {
  Ringed r(2);
  r.device.fails_at = 2;
  std::vector<char> from(3 * Ring::kBlock), to(from.size());
  EXPECT_EQ(r.ring.copy(to.data(), from.data(), from.size(), nullptr), 719);
  EXPECT_EQ(r.ring.copy(to.data(), from.data(), from.size(), nullptr), 0);
}

TEST(Ring, NoPinnedMemoryIsTold) {
  LateDevice device;
  device.refuse = true;
  EXPECT_FALSE(Ring(device, 2).ready());
}

}  // namespace
}  // namespace saturate::observe::staging
