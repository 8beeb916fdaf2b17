// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay.h"

#include <optional>

#include "base/timed_part.h"

namespace saturate {

void Replay::enqueue(const Stream& stream, const std::function<void()>& body) {
  std::optional<TimedPart> part;
  if (!ran_ || !wanted_ || !stream.device().is_cuda()) {
    if (!ran_ && first_ != nullptr) part.emplace(first_);
    body();
    ran_ = true;
    return;
  }
  if (!graph_) {
    if (capture_ != nullptr) part.emplace(capture_);
    graph_ = Graph::capture(stream, body);
    part.reset();
  }
  graph_.launch(stream);
}

}  // namespace saturate
