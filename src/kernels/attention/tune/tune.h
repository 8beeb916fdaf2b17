// SPDX-License-Identifier: Apache-2.0
// Finds the fastest implementation of attention for one shape and direction by measuring.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/impl.h"
#include "kernels/attention/tune/table.h"
#include "runtime/stream.h"

namespace saturate::kernels {

struct AttentionTuneRow {
  std::string impl;
  double ms = 0;  // median
};
struct AttentionTuneRefusal {
  std::string impl, reason;
};
struct AttentionTuneResult {
  AttentionKey key;
  std::vector<AttentionTuneRow> rows;  // fastest first
  std::vector<AttentionTuneRefusal> refused;
  AttentionChoice choice;
};

// Measures every implementation that fits `key`, after its results have been found near those of
// what runs without a table (a relative distance of all elements together of at most four units of
// the type), and chooses the fastest; a winner less than 2% ahead of what would run anyway is not
// worth a changed result. The time of a direction is that of graph replays over inputs that leave
// the L2 cache, as in training. Sequences have the mean length, but for one that has the longest.
//
// Stream    works on `stream` (ctx.stream is its handle) and waits for it; not during a capture.
// Order     which one wins may change from call to call; results of each implementation do not.
// Errors    unsupported when nothing fits, or the key has features (only plain shapes are
//           measured); invalid_argument for lengths that contradict each other; out_of_memory;
//           device.
AttentionTuneResult tune_attention(const Context& ctx, const Stream& stream,
                                   const AttentionKey& key);

}  // namespace saturate::kernels
