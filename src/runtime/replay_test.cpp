// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(Replay, AFirstRunThatFailsIsNoRun) {
  const Stream stream(Device{});
  Replay replay(true);
  EXPECT_THROW(replay.enqueue(stream, [] { throw Error(Errc::invalid_argument, "test", "no"); }),
               Error);
  EXPECT_FALSE(replay.ran());
}

}  // namespace
}  // namespace saturate
