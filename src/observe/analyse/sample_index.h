// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "observe/trace/trace.h"

namespace saturate::observe {

// The samples of a trace by thread, for stretches of time that come nearly in order.
class SampleIndex {
 public:
  // Again where the trace has more samples or threads than before.
  void update(const Trace& trace);

  // Hands out the samples of the thread in [start_ns, end_ns) with the number of their points
  // there, and returns the sum. Points that several samples alike stand for lie at even distances.
  int64_t each(const Trace& trace, uint32_t thread, int64_t start_ns, int64_t end_ns,
               const std::function<void(const HostSample&, int64_t points)>& take);
  bool has(uint32_t thread) const { return cursors_[thread].end > 0; }
  // Of the threads with samples of a process that issues work the one that makes most calls; of
  // those that make as many, none perhaps, the oldest: the main thread. kNone where none has
  // samples.
  uint32_t program_thread(uint32_t process) const;
  // Threads with samples of processes that a process started and that issue no work.
  const std::vector<uint32_t>& workers(uint32_t process) const;

 private:
  struct Cursor {
    size_t begin = 0, end = 0, at = 0;
  };
  size_t indexed_ = 0, threads_ = 0;  // samples and threads that the index is of
  std::vector<Cursor> cursors_;       // by thread
  std::map<uint32_t, uint32_t> program_thread_;
  std::map<uint32_t, std::vector<uint32_t>> workers_;
};

}  // namespace saturate::observe
