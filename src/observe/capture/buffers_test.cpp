// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/buffers.h"

#include <gtest/gtest.h>

#include <vector>

namespace saturate::observe::cupti {
namespace {

TEST(Buffers, GoRound) {
  Buffers buffers;
  const Buffer b = buffers.request();
  ASSERT_NE(b.data, nullptr);
  EXPECT_TRUE(buffers.completed(b.data, 100));
  uint8_t foreign = 0;
  EXPECT_FALSE(buffers.completed(&foreign, 1));
  const std::vector<Buffer> filled = buffers.take_filled();
  ASSERT_EQ(filled.size(), 1u);
  EXPECT_EQ(filled[0].bytes, 100u);
  buffers.give_back(filled);
  EXPECT_EQ(buffers.request().data, b.data);
}

TEST(Buffers, MemoryIsBounded) {
  Buffers buffers;
  std::vector<Buffer> out, waste;
  size_t bytes = 0;
  while (waste.size() < 5) {
    const Buffer b = buffers.request();
    (bytes + b.bytes <= Buffers::kMostBytes ? out : waste).push_back(b);
    if (waste.empty()) bytes += b.bytes;
  }
  EXPECT_GT(bytes, Buffers::kMostBytes - Buffers::kSize);
  for (const Buffer& b : waste) EXPECT_EQ(b.bytes, Buffers::kWasteSize);
  for (const Buffer& b : out) EXPECT_TRUE(buffers.completed(b.data, 1'000));
  for (const Buffer& b : waste) EXPECT_TRUE(buffers.completed(b.data, 1'000));
  EXPECT_EQ(buffers.wasted_bytes(), 5'000);
  const std::vector<Buffer> filled = buffers.take_filled();
  EXPECT_EQ(filled.size(), out.size());
  buffers.give_back(filled);
  EXPECT_EQ(buffers.request().bytes, Buffers::kLeastSize);  // all of it is there again
}

// What a buffer may keep from the writer is a small part of what was recorded since its last turn.
TEST(Buffers, OneIsASmallPartOfAll) {
  Buffers buffers;
  size_t used = 0;
  int requests = 0;
  std::vector<Buffer> out;
  for (; used < 4 * Buffers::kSize; ++requests) {
    out.push_back(buffers.request());
    EXPECT_LE(out.back().bytes, std::max(used / Buffers::kShare, size_t{Buffers::kLeastSize}));
    used += out.back().bytes;
  }
  EXPECT_LT(requests, 120);  // 150,000 launches a second and a turn of 100 ms
  for (const Buffer& b : out) buffers.completed(b.data, 0);
  const Buffer next = buffers.request();
  EXPECT_GT(next.bytes, Buffers::kLeastSize);  // they are filled, not yet written
  buffers.completed(next.data, 0);
  buffers.give_back(buffers.take_filled());
  EXPECT_EQ(buffers.request().bytes, Buffers::kLeastSize);
}

}  // namespace
}  // namespace saturate::observe::cupti
