// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/memory.h"

namespace saturate {
namespace {

// Each run doubles a buffer's bytes in the next: what is replayed must do the same work.
TEST(Replay, RunsOnceCapturesOnceAndThenLaunchesTheGraph) {
  for (const bool cuda : {false, true}) {
    if (cuda && cuda_device_count() == 0) continue;
    for (const bool graph : {false, true}) {
      const Stream stream(Device{cuda ? DeviceKind::cuda : DeviceKind::cpu, 0});
      const Buffer from(stream.device(), 64), to(stream.device(), 64);
      Replay replay(graph);
      int calls = 0;
      EXPECT_FALSE(replay.ran());
      for (int i = 1; i <= 4; ++i) {
        fill_bytes(stream, from.data(), i, 64);
        replay.enqueue(stream, [&] {
          ++calls;
          copy_on_device(stream, to.data(), from.data(), 64);
        });
        char got[64] = {};
        copy_to_host(stream, got, to.data(), 64);
        stream.synchronize();
        EXPECT_EQ(got[63], i);
        EXPECT_EQ(calls, graph && cuda ? std::min(i, 2) : i);
        EXPECT_TRUE(replay.ran());
      }
      EXPECT_EQ(replay.nodes(), graph && cuda ? 1u : 0u);
    }
  }
}

// Fills of few bytes, of many, and of a number that is no multiple of four, each between two copies of
// what it changes: in the graph they come in the order of the calls.
TEST(Replay, FillsComeBetweenWhatWasEnqueuedBeforeAndAfterThem) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const Stream stream(Device{DeviceKind::cuda, 0});
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{13}, size_t{4096}, size_t{65536},
                             (size_t{64} << 10) + 4, size_t{3} << 20}) {
    const Buffer cell(stream.device(), bytes), first(stream.device(), bytes),
        second(stream.device(), bytes);
    Replay replay(true);
    for (int run = 0; run < 4; ++run) {
      fill_bytes(stream, first.data(), 77, bytes);
      fill_bytes(stream, second.data(), 77, bytes);
      replay.enqueue(stream, [&] {
        fill_bytes(stream, cell.data(), 5, bytes);
        copy_on_device(stream, first.data(), cell.data(), bytes);
        fill_bytes(stream, cell.data(), 0, bytes);
        copy_on_device(stream, second.data(), cell.data(), bytes);
        fill_bytes(stream, cell.data(), 200, bytes);
      });
      for (const auto& [from, value] :
           {std::pair{&first, 5}, std::pair{&second, 0}, std::pair{&cell, 200}}) {
        std::vector<unsigned char> got(bytes);
        copy_to_host(stream, got.data(), from->data(), bytes);
        stream.synchronize();
        EXPECT_EQ(std::count(got.begin(), got.end(), value), static_cast<ptrdiff_t>(bytes))
            << bytes << " bytes, run " << run;
      }
    }
    EXPECT_EQ(replay.nodes(), 5u);
  }
}

TEST(Replay, AFirstRunThatFailsIsNoRun) {
  const Stream stream(Device{});
  Replay replay(true);
  EXPECT_THROW(replay.enqueue(stream, [] { throw Error(Errc::invalid_argument, "test", "no"); }),
               Error);
  EXPECT_FALSE(replay.ran());
}

}  // namespace
}  // namespace saturate
