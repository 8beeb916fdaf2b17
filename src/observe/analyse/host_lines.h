// SPDX-License-Identifier: Apache-2.0
// Which lines of the program the host was in while a device waited for it, from samples of stacks.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "observe/analyse/leaf.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// A frame in words; empty where there is none.
struct CodePlace {
  std::string function, file;  // the file from its package or last folder on
  uint32_t line = 0;           // 0: not known
  std::string text;            // what stands there in the source: the expression, or the line
  bool known() const { return !function.empty(); }
  // "dataset.py:41"
  std::string where() const;
};

// A line of the program's own code, with all that it called.
struct HostLine {
  CodePlace at;             // the nearest frame that is neither a library's nor Python's own
  CodePlace innermost;      // where a library or another function was, below that; may be `at`
  CodePlace caller;         // the program's next frame further out
  CodePlace native;         // the function of native code that it ran most, where that was seen
  double native_share = 0;  // of the line's samples
  std::string via;          // known machinery between the two: "DataLoader.__next__"
  std::string thread;       // "main thread", "thread 4711"
  std::string wait;         // what it was blocked in, most of the time; empty: it ran
  std::string remark;       // what the frames show of the cause: "num_workers=0"
  CodePlace holder;         // of the interpreter's lock, where the line waited for that
  std::string holder_thread;
  double ns = 0;     // of the device's idle time; of a worker: 0
  double share = 0;  // of the idle time that the host is to blame for; workers: of their samples
  int64_t samples = 0;
  Leaf leaf = Leaf::host_code;  // that it falls in most
};

struct HostLines {
  double idle_ns = 0;           // of the device, for the host: what shares are of
  int64_t samples = 0;          // in it
  std::vector<HostLine> lines;  // the largest first
  // Of the processes that the program started and that issue no work, while the device waited.
  std::vector<HostLine> workers;
  int64_t worker_processes = 0, worker_samples = 0;
  bool empty() const { return samples == 0; }
};

// Below, a line's share is chance: with 20 samples it is known to about a tenth.
constexpr int64_t kFewSamples = 20;

// Collects samples of a trace in stretches of idle time, which come in order. Points that several
// samples alike stand for lie at even distances. Where the thread that issues the next work runs no
// Python, as autograd's does, the thread of its process that issues most counts, for it waits for
// that one. Cost: O(stretches + samples).
class HostLineCounts {
 public:
  void add(const Trace& trace, int64_t start_ns, int64_t end_ns, Leaf leaf, uint32_t thread);
  // `idle`: the budget that the stretches came from.
  HostLines finish(const Trace& trace, const Budget& idle) const;

 private:
  struct Key {
    Leaf leaf;
    uint32_t thread, stack, wait, holder, holder_stack;
    HostState state;
    auto operator<=>(const Key&) const = default;
  };
  struct Cursor {
    size_t begin = 0, end = 0, at = 0;
  };
  void index(const Trace& trace);
  int64_t count(const Trace& trace, uint32_t thread, int64_t start_ns, int64_t end_ns, Leaf leaf,
                std::map<Key, int64_t>& into);

  size_t indexed_ = 0, threads_ = 0;                   // samples and threads that the index is of
  std::vector<Cursor> cursors_;                        // by thread
  std::map<uint32_t, uint32_t> program_thread_;        // of processes that issue work
  std::map<uint32_t, std::vector<uint32_t>> workers_;  // threads, by process that they work for
  std::map<Key, int64_t> points_, worker_points_;
};

}  // namespace saturate::observe
