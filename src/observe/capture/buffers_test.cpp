// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/buffers.h"

#include <gtest/gtest.h>

#include <vector>

namespace saturate::observe::cupti {
namespace {

TEST(Buffers, GoRound) {
  Buffers buffers;
  const Buffer b = buffers.request(0);
  ASSERT_NE(b.data, nullptr);
  EXPECT_EQ(buffers.handed_out(), 1);
  EXPECT_TRUE(buffers.completed(b.data, 100));
  uint8_t foreign = 0;
  EXPECT_FALSE(buffers.completed(&foreign, 1));
  const std::vector<Buffer> filled = buffers.take_filled();
  ASSERT_EQ(filled.size(), 1u);
  EXPECT_EQ(filled[0].bytes, 100u);
  buffers.give_back(filled);
  EXPECT_EQ(buffers.request(1).data, b.data);
}

TEST(Buffers, MemoryIsBounded) {
  Buffers buffers;
  std::vector<Buffer> out;
  for (size_t i = 0; i < Buffers::kMost + 5; ++i) out.push_back(buffers.request(0));
  EXPECT_EQ(out.back().bytes, Buffers::kWasteSize);
  for (const Buffer& b : out) EXPECT_TRUE(buffers.completed(b.data, 1'000));
  EXPECT_EQ(buffers.wasted_bytes(), 5'000);
  EXPECT_EQ(buffers.take_filled().size(), Buffers::kMost);
  EXPECT_EQ(buffers.handed_out(), 0);
}

TEST(Buffers, SizeFollowsTheRate) {
  Buffers buffers;
  const auto next = [&](int64_t now) {
    const Buffer b = buffers.request(now);
    buffers.completed(b.data, 0);
    buffers.give_back(buffers.take_filled());
    return b.bytes;
  };
  int64_t now = 1'000'000'000;
  for (int i = 0; i < 20; ++i) next(now += 1'000'000);
  EXPECT_EQ(next(now += 1'000'000), Buffers::kSize);
  for (int i = 0; i < 20; ++i) next(now += 1'000'000'000);
  EXPECT_EQ(next(now += 1'000'000'000), Buffers::kLeastSize);
}

}  // namespace
}  // namespace saturate::observe::cupti
