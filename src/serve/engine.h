// SPDX-License-Identifier: Apache-2.0
// What the engines of both kinds of models say of themselves.
#pragma once
#include <cstdint>

namespace saturate::serve {

enum class Admission { accepted, full, broken };

// What an engine has done and has before it.
struct EngineCounts {
  int64_t waiting = 0, running = 0;  // lines or sequences
  uint64_t done = 0, tokens_in = 0, tokens_out = 0, steps = 0;
  bool broken = false;
};

}  // namespace saturate::serve
