// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "observe/launcher/thread_counts.h"
#include "observe/system/processes.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// What the threads of a process tree did, from the kernel's own counts of run time and of time
// without a core. Between two samples the counts say how much a thread ran, and its neighbours say
// where: it ran next to the side on which it was running before or after. So a wait is known to
// the nanosecond when a thread stopped or went on once between two samples, as the launching
// thread of a training loop does at 100 Hz. What a running thread ran last is not
// booked yet: a sample of it counts only when the next ones find it running too.
//
// Reads only files that belong to the same user; needs no privilege. Not for several threads.
class ThreadSampler {
 public:
  // `clock`: the time on the capture's clock.
  ThreadSampler(pid_t root, std::function<int64_t()> clock, std::string proc = "/proc");

  // Reads the threads; those that rest, less often.
  void sample();

  // The spans (blocked, runnable) since the last call, added to `trace`.
  void take_spans(Trace& trace);

  // A few lines for the reader of the report: context switches, and the threads that ran most.
  std::vector<std::string> summary() const;

 private:
  struct Thread {
    ThreadCounts first, last;
    int64_t first_ns = 0, last_ns = 0;
    int64_t resting = 0;      // samples without running
    bool ran_to_end = false;  // whether it ran at the end of the last interval
    int64_t blocked_from_ns = -1;
  };
  struct Span {
    int64_t start_ns, end_ns;
    pid_t process, thread;
    SpanKind kind;
  };
  void add_interval(pid_t process, pid_t thread, Thread& t, const ThreadCounts& now,
                    int64_t now_ns);
  void end_block(pid_t process, pid_t thread, Thread& t, int64_t end_ns);

  pid_t root_;
  std::function<int64_t()> clock_;
  ProcessReader reader_;
  std::map<std::pair<pid_t, pid_t>, Thread> threads_;  // by process and thread
  std::vector<Span> spans_;
  int64_t samples_ = 0;
};

}  // namespace saturate::observe
