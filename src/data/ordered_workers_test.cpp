// SPDX-License-Identifier: Apache-2.0
#include "data/ordered_workers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

namespace saturate::data {
namespace {

TEST(OrderedWorkers, DeliverInOrderWhateverTheThreads) {
  for (const int threads : {1, 2, 5}) {
    constexpr int kSlots = 4;
    std::vector<int> input(kSlots), output(kSlots);
    int planned = 0;
    OrderedWorkers workers(
        threads, kSlots,
        [&](int slot) {
          input[slot] = planned;
          return planned++ < 1000;
        },
        [&](int slot) { output[slot] = input[slot] * input[slot]; });
    int n = 0;
    for (int slot; (slot = workers.acquire()) >= 0; ++n) {
      EXPECT_EQ(output[slot], n * n);
      workers.release();
    }
    EXPECT_EQ(n, 1000);
    EXPECT_EQ(workers.acquire(), -1);
  }
}

TEST(OrderedWorkers, HoldSeveralResultsAtOnce) {
  int planned = 0;
  std::vector<int> value(3);
  OrderedWorkers workers(
      2, 3, [&](int slot) { return value[slot] = planned++, true; }, [](int) {});
  int slots[3];
  for (int& s : slots) s = workers.acquire();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(value[slots[i]], i);
  workers.release();
  EXPECT_EQ(value[workers.acquire()], 3);
}

TEST(OrderedWorkers, FailuresReachTheConsumerAtTheirTurn) {
  for (const bool in_plan : {false, true}) {
    int planned = 0;
    std::vector<int> value(3);
    OrderedWorkers workers(
        2, 3,
        [&](int slot) {
          value[slot] = planned;
          if (in_plan && planned == 7) throw std::runtime_error("seven");
          ++planned;
          return true;
        },
        [&](int slot) {
          if (value[slot] == 7) throw std::runtime_error("seven");
        });
    for (int i = 0; i < 7; ++i) {
      ASSERT_GE(workers.acquire(), 0);
      workers.release();
    }
    EXPECT_THROW(workers.acquire(), std::runtime_error);
    EXPECT_THROW(workers.acquire(), std::runtime_error);
  }
}

TEST(OrderedWorkers, StopWithoutBeingEmptied) {
  for (int i = 0; i < 50; ++i) {
    OrderedWorkers workers(
        3, 4, [](int) { return true; }, [](int) {});
    if (i % 2) {
      EXPECT_GE(workers.acquire(), 0);
    }
  }
}

TEST(OrderedWorkers, CountTheTimeTheConsumerWaited) {
  OrderedWorkers workers(
      1, 1, [](int) { return true; },
      [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  workers.acquire();
  EXPECT_GT(workers.waited_ns(), 1'000'000);
}

}  // namespace
}  // namespace saturate::data
