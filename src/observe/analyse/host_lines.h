// SPDX-License-Identifier: Apache-2.0
// Which lines of the program the host was in while a device waited for it, from samples of stacks.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
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
  // As shares: of the backward pass, what this line's part of the forward pass has of it; and all
  // lines of the function, where those hold most of the time.
  double backward = 0, function_share = 0;
  bool compiles = false;       // it makes code, most of its time
  bool runs_backward = false;  // it waits for a backward pass, most of its time
  bool idle_worker = false;    // of a loader, without work
  int64_t samples = 0;
  Leaf leaf = Leaf::host_code;  // that it falls in most
};

struct HostLines {
  double idle_ns = 0;           // of the device, for the host: what shares are of
  int64_t samples = 0;          // in it
  std::vector<HostLine> lines;  // the largest first
  // The same, with all that a model does in the line that calls it: where a step is put together.
  std::vector<HostLine> calls;
  double model_ns = 0;  // of `idle_ns`, in models and in backward passes
  // In stretches of a millisecond and more, longer than what lies between launches: shares of their
  // samples.
  std::vector<HostLine> long_lines;
  int64_t long_samples = 0;
  // Of the processes that the program started and that issue no work, while the device waited.
  std::vector<HostLine> workers;
  int64_t worker_processes = 0, worker_samples = 0;
  // Of the idle time, by leaf: what the host spent on making code, on making the next batch where it
  // was asked for, and on reading values of arrays beside what is known to be a wait for the device.
  std::array<double, kLeaves> compiling_ns{}, making_ns{}, reading_ns{};
  // Lines in which it made code: shares of that time.
  std::vector<HostLine> compiling;
  int64_t compiling_samples = 0;
  // Lines in which the host waited for the device, idle or not: shares of those samples.
  std::vector<HostLine> waits;
  int64_t wait_samples = 0;
  // Lines that held the interpreter's lock while the host waited for it: shares of those samples.
  std::vector<HostLine> holders;
  int64_t holder_samples = 0;
  // Of the host code after a wait: what works on the value waited for, in lines that wait
  // themselves, in what the two lines below them call, or where values are printed.
  double needs_value_ns = 0;
  bool empty() const { return samples == 0; }
};

// Lines that gave a device work of some kind; shares are of the time of what is known.
struct WorkLines {
  std::vector<HostLine> lines;  // the largest first
  std::vector<HostLine> calls;  // the same, with all that a model does in the line that calls it
  int64_t samples = 0;
  double ns = 0, known = 0;  // of that work, and the share of it whose line is known
};

// Below, a line's share is chance: with 20 samples it is known to about a tenth.
constexpr int64_t kFewSamples = 20;

// Collects samples of a trace in stretches of idle time, which come in order. Points that several
// samples alike stand for lie at even distances. Where the thread that issues the next work runs no
// Python, as autograd's does, the thread of its process that issues most counts, for it waits for
// that one. Cost: O(stretches + samples).
class HostLineCounts {
 public:
  HostLineCounts();
  ~HostLineCounts();
  HostLineCounts(HostLineCounts&&) noexcept;
  void add(const Trace& trace, int64_t start_ns, int64_t end_ns, Leaf leaf, uint32_t thread);
  // The thread waited for the device.
  void add_wait(const Trace& trace, int64_t start_ns, int64_t end_ns, uint32_t thread);
  // `idle`: the budget that the stretches came from; `forward` as of group_lines(), for `lines` and
  // for `calls`.
  using Shares = std::map<std::pair<uint32_t, uint32_t>, double>;
  HostLines finish(const Trace& trace, const Budget& idle, const Shares& forward = {},
                   const Shares& forward_calls = {}) const;

 private:
  struct Counts;
  std::unique_ptr<Counts> counts_;
};

}  // namespace saturate::observe
