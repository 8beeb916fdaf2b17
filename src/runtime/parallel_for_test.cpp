// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/long_loops.h"

namespace saturate {
namespace {

TEST(ParallelFor, CoversEachIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    set_cpu_threads(threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1001}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      parallel_for(count, 3, [&](int64_t b, int64_t e) {
        for (int64_t i = b; i < e; ++i) hits[static_cast<size_t>(i)]++;
      });
      for (auto& h : hits) EXPECT_EQ(h.load(), 1);
    }
  }
  set_cpu_threads(2);
}

TEST(ParallelFor, ThrowsWhatAChunkThrew) {
  set_cpu_threads(4);
  EXPECT_THROW(parallel_for(100, 1,
                            [](int64_t b, int64_t) {
                              if (b > 0) throw std::runtime_error("chunk");
                            }),
               std::runtime_error);
  int64_t sum = 0;  // and works afterwards
  parallel_for(4, 8, [&](int64_t b, int64_t e) { sum += e - b; });
  EXPECT_EQ(sum, 4);
  set_cpu_threads(2);
}

TEST(ParallelFor, NestedCallsRunInTheCaller) {
  set_cpu_threads(4);
  std::atomic<int64_t> total{0};
  parallel_for(8, 1, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      parallel_for(16, 1, [&](int64_t b2, int64_t e2) { total += e2 - b2; });
    }
  });
  EXPECT_EQ(total.load(), 8 * 16);
  set_cpu_threads(2);
}

TEST(ParallelFor, ThreadsOfTheirOwnShareNothing) {
  set_cpu_threads(4);
  const auto borders = [] {
    std::vector<std::thread::id> where;
    parallel_for(64, 1, [&](int64_t, int64_t) {
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      where.push_back(std::this_thread::get_id());
    });
    return where;
  };
  EXPECT_EQ(threads_here(), 4);
  {
    const InOneThread alone;
    EXPECT_EQ(threads_here(), 1);
    { const InOneThread again; }
    EXPECT_EQ(borders(), std::vector{std::this_thread::get_id()});
  }
  EXPECT_EQ(threads_here(), 4);
  EXPECT_EQ(borders().size(), 4u);
  set_cpu_threads(2);
}

TEST(ParallelFor, LongLoopsAreSharedByAThreadThatIsAloneAtWork) {
  set_cpu_threads(4);
  const auto chunks = [](const auto& loop) {
    std::atomic<int> count{0}, inner{0};
    loop(64, 1, [&](int64_t, int64_t) {
      ++count;
      parallel_for_long(64, 1, [&](int64_t, int64_t) { ++inner; });  // as a loop within a loop
    });
    EXPECT_EQ(inner.load(), count.load());
    return count.load();
  };
  EXPECT_EQ(chunks(parallel_for_long), 4);
  const InOneThread alone;
  EXPECT_EQ(chunks(parallel_for_long), 1);
  {
    const LongLoopsShared shared;
    EXPECT_EQ(chunks(parallel_for_long), 4);
    EXPECT_EQ(chunks(parallel_for_long), 4) << "what it was is put back";
    EXPECT_EQ(threads_here(), 1) << "short loops stay where they are";
    EXPECT_THROW(parallel_for_long(64, 1,
                                   [](int64_t b, int64_t) {
                                     if (b == 0) throw 1;
                                   }),
                 int);
    EXPECT_EQ(threads_here(), 1);
  }
  EXPECT_EQ(chunks(parallel_for_long), 1);
  set_cpu_threads(2);
}

TEST(ParallelFor, ManyShortJobs) {
  set_cpu_threads(4);
  for (int i = 0; i < 2000; ++i) {
    std::atomic<int64_t> sum{0};
    parallel_for(64, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    ASSERT_EQ(sum.load(), 64);
  }
  set_cpu_threads(2);
}

}  // namespace
}  // namespace saturate
