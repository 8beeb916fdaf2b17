// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/stream.h"

namespace saturate::lab {

// Pairs of events around the planted parts of steps. The first of a pair is reached when the queue
// of the stream has run empty, the second when the host has come to it: between them the device
// waited, by its own clock. What runs beside queued work counts nothing.
class Marks {
 public:
  explicit Marks(const Stream& stream) : stream_(stream) {}

  void clear() { used_ = 0; }
  void begin();
  void end();
  // Sum over all pairs since clear(); waits for the last. Milliseconds.
  double total_ms() const;

 private:
  const Stream& stream_;
  std::vector<std::pair<Event, Event>> pairs_;
  size_t used_ = 0;
};

}  // namespace saturate::lab
