// SPDX-License-Identifier: Apache-2.0
// Samples of stacks for traces that a test makes.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "observe/trace/trace.h"

namespace saturate::observe::testing {

struct Frame {
  const char *function, *file;
  uint32_t line;
  const char* text = "";
};

inline uint32_t stack_of(Trace& t, const std::vector<Frame>& outermost_first) {
  uint32_t node = kNoStack;
  for (const Frame& f : outermost_first)
    node = t.stacks.add(
        {node, t.names.add(f.function), t.names.add(f.file), f.line, t.names.add(f.text)});
  return node;
}

// A sample of the thread each `every_ns` from the first call to the end of the last work, of what
// `stack_at` says the thread was in; kNoStack: none.
inline void add_samples(Trace& t, uint32_t thread, int64_t every_ns,
                        const std::function<uint32_t(int64_t)>& stack_at,
                        HostState state = HostState::running) {
  for (int64_t at = t.calls.front().start_ns; at < t.ops.back().end_ns; at += every_ns) {
    const uint32_t stack = stack_at(at);
    if (stack == kNoStack) continue;
    t.samples.push_back({at, at, 1, thread, stack, 0, 0, kNoStack, state});
  }
}

}  // namespace saturate::observe::testing
