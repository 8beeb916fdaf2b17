// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "ops/tape.h"
#include "runtime/memory.h"
#include "runtime/replay.h"
#include "runtime/stream.h"

namespace saturate::model {

/// Operations recorded once for a number of rows, with the memory between them; replayed as a graph
/// on a GPU.
class RecordedPlan {
 public:
  // The names are those of the first run and of the capture (runtime/replay.h). `stream` outlives
  // this.
  RecordedPlan(const ParameterStore& store, const Stream& stream, bool graph, const char* first,
               const char* capture);

  Tape& tape() noexcept { return tape_; }
  // Memory that the operations use and no other plan. Errors: out_of_memory.
  void* scratch(size_t bytes);
  // When all operations are recorded. Errors: out_of_memory.
  void finish();

  // Enqueues them on the stream. On the CPU, where plans take turns, their values lie in `shared`,
  // which grows as they need.
  void run(const Context& ctx, Buffer& shared);

 private:
  Tape tape_;
  const Stream& stream_;
  std::vector<Buffer> scratch_;
  Buffer arena_;
  size_t arena_bytes_ = 0;
  Replay replay_;
};

// How many of `all` rows (or groups of rows) a step computes, of which the first `taken` are in use:
// on the CPU just these, but `least`; on a GPU one of a few sizes, powers of four and all, since each
// is a graph.
int64_t step_size(Device device, int64_t all, int64_t taken, int64_t least, bool always_all);

// What kernels of a GPU are chosen for: a bound of at most `most` on what is `needed`.
int64_t position_bound(Device device, int64_t most, int64_t needed, bool always_most);

constexpr int64_t kPromptRows = 2048;
// Tokens of prompts that are read together on a GPU, of which each takes `row_bytes` of memory meanwhile:
// kPromptRows, or four times as many where these fill a large device better and take a sixty-fourth of
// its memory at most. Sequences under way stand still meanwhile.
int64_t usual_prompt_rows(int multiprocessors, size_t memory_bytes, int64_t row_bytes);

// How many of `all` rows that are read together a pass computes for `tokens` of them.
int64_t pass_size(Device device, int64_t all, int64_t tokens, bool always_all);
// The same for prompts, with halves above kPromptRows too: one of 3,000 tokens alone is waited for.
int64_t prompt_pass_size(Device device, int64_t all, int64_t tokens, bool always_all);

}  // namespace saturate::model
