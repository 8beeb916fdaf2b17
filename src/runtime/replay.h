// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "runtime/stream.h"

namespace saturate {

// Work that is enqueued again and again, with the same shapes and addresses: a training step, a step
// of generation.
class Replay {
 public:
  // `graph`: replay as a CUDA graph; no effect on the CPU. The names are those of the first run and
  // of the capture under SATURATE_VERBOSE=load (base/timed_part.h); null: not reported.
  explicit Replay(bool graph, const char* first = nullptr, const char* capture = nullptr)
      : wanted_(graph), first_(first), capture_(capture) {}

  // Enqueues what `body` enqueues on `stream`. The first time it runs as it is, so that nothing
  // loads lazily under capture; the second time it is captured, and from then on the graph is
  // launched and `body` not called. Never synchronises. Errors: those of `body`; device.
  void enqueue(const Stream& stream, const std::function<void()>& body);
  bool ran() const noexcept { return ran_; }
  size_t nodes() const noexcept { return graph_.nodes(); }  // of the graph; 0 before the capture

 private:
  bool wanted_, ran_ = false;
  const char* first_;
  const char* capture_;
  Graph graph_;
};

}  // namespace saturate
