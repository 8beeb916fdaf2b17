// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/allocations.h"

#include <gtest/gtest.h>

namespace saturate::observe::cupti {
namespace {

constexpr uint64_t kMs = 1'000'000;

MemoryActivity record(MemoryOperation operation, uint64_t ms, uint64_t address, uint64_t bytes) {
  MemoryActivity m{};
  m.kind = kMemory2;
  m.operation = operation;
  m.memory = kDeviceMemory;
  m.address = address;
  m.bytes = bytes;
  m.time = ms * kMs;
  return m;
}

std::vector<MemorySample> write(Allocations& a) {
  std::vector<MemorySample> samples;
  a.write(samples);
  return samples;
}

TEST(Allocations, AreSummedInOrderOfTime) {
  Allocations a;
  a.add(record(kRelease, 30, 0x100, 0));  // of another thread's buffer
  a.add(record(kAllocation, 10, 0x100, 1000));
  a.add(record(kAllocation, 20, 0x200, 500));
  const std::vector<MemorySample> samples = write(a);
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0], (MemorySample{10 * kMs, 1000, 1000, 0}));
  EXPECT_EQ(samples[1], (MemorySample{20 * kMs, 1500, 1500, 0}));
  EXPECT_EQ(samples[2], (MemorySample{30 * kMs, 500, 500, 0}));
  EXPECT_EQ(a.records(), 3);
  EXPECT_TRUE(write(a).empty());
}

TEST(Allocations, OfAStretchTheMostAndTheLast) {
  Allocations a;
  for (uint64_t i = 0; i < 100; ++i) {
    a.add(record(kAllocation, 1, 0x1000 + i, 10));
    a.add(record(kRelease, 2, 0x1000 + i, 10));
  }
  const std::vector<MemorySample> samples = write(a);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].allocated, 1000);
  EXPECT_EQ(samples[1].allocated, 0);
}

TEST(Allocations, PoolsKeepWhatTheyAreGivenBack) {
  Allocations a;
  MemoryActivity m = record(kAllocation, 10, 0x100, 1000);
  m.pool.type = kLocalPool;
  m.pool.address = 7;
  m.pool.size = 4096;
  a.add(m);
  m.operation = kRelease;
  m.time = 20 * kMs;
  a.add(m);
  const std::vector<MemorySample> samples = write(a);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0], (MemorySample{10 * kMs, 1000, 4096, 0}));
  EXPECT_EQ(samples[1], (MemorySample{20 * kMs, 0, 4096, 0}));
}

TEST(Allocations, DevicesApartAndTheHostsNotAtAll) {
  Allocations a;
  MemoryActivity other = record(kAllocation, 10, 0x100, 1000), pinned = other;
  other.device = 3;
  a.add(other);
  pinned.memory = 2;
  pinned.address = 0x200;
  a.add(pinned);
  a.add(record(kRelease, 30, 0x300, 50));  // taken before the capture: not known
  a.add(record(kAllocation, 40, 0x400, 8));
  a.add(record(kAllocation, 50, 0x400, 16));  // given back in between without a record
  const std::vector<MemorySample> samples = write(a);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0], (MemorySample{30 * kMs, 0, 0, 0}));
  EXPECT_EQ(samples[1], (MemorySample{40 * kMs, 8, 8, 0}));
  EXPECT_EQ(samples[2], (MemorySample{50 * kMs, 16, 16, 0}));
  EXPECT_EQ(samples[3], (MemorySample{10 * kMs, 1000, 1000, 3}));
}

}  // namespace
}  // namespace saturate::observe::cupti
