// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "observe/launcher/file_uses.h"
#include "observe/launcher/open_files.h"
#include "observe/launcher/thread_counts.h"
#include "observe/launcher/wait_reader.h"
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
// What a thread waits for is read where it is found asleep; a wait that no sample met is of the kind
// of the one before. Time in which a running thread copies files to or from the page cache is a wait
// for the file too: the system's share of what it ran while its bytes grew, and all of it above
// 100 MB/s of writing.
//
// Reads only files that belong to the same user; needs no privilege. Not for several threads.
class ThreadSampler {
 public:
  // `clock`: the time on the capture's clock. `own_folder`: of the capture, absolute.
  ThreadSampler(pid_t root, std::function<int64_t()> clock, std::string proc = "/proc",
                WaitReader::ReadMemory memory = {}, const std::string& own_folder = "");

  // Reads the threads; those that rest, less often.
  void sample();

  // The spans (waits, runnable) since the last call, added to `trace`.
  void take_spans(Trace& trace);
  // Ends the waits that go on.
  void finish();

  // What was read, written and waited for from the beginning on.
  std::vector<HostUse> uses() const { return uses_.uses(); }
  // A few lines for the reader of the report: context switches, the threads that ran most, and what
  // could not be had.
  std::vector<std::string> summary() const;

 private:
  struct Thread {
    ThreadFiles files;
    ThreadCounts first, last;
    int64_t first_ns = 0, last_ns = 0;
    int64_t resting = 0;      // samples without running
    bool ran_to_end = false;  // whether it ran at the end of the last interval
    int64_t blocked_from_ns = -1;
    bool woke = false;         // since then
    WaitReader::Wait wait;     // seen last
    int64_t wait_run_ns = -1;  // what it had run by then
    int64_t wait_seen_ns = INT64_MIN / 2;
    WaitReader::Wait block;  // of the span that is open
    ThreadIo io;
    bool io_read = false;
    int64_t tick_user = 0, tick_system = 0;  // when the share was reckoned
    double system_share = 0.5;               // of what it ran lately; at first not known
  };
  struct Span {
    int64_t start_ns, end_ns;
    pid_t process, thread;
    SpanKind kind;
    std::string name;
  };
  void add_interval(pid_t process, pid_t thread, Thread& t, const ThreadCounts& now,
                    int64_t now_ns);
  void find_threads(int64_t now_ns);
  void close_files(Thread& t);
  void read_wait(pid_t process, pid_t thread, Thread& t, const ThreadCounts& now, int64_t now_ns);
  struct Copies {
    WaitReader::Wait wait;
    int64_t ns = 0;
  };
  Copies copies(pid_t process, pid_t thread, Thread& t, const ThreadCounts& now, int64_t now_ns,
                int64_t run);
  static void begin_block(Thread& t, int64_t start_ns, const WaitReader::Wait& wait);
  void end_block(pid_t process, pid_t thread, Thread& t, int64_t end_ns);

  pid_t root_;
  std::function<int64_t()> clock_;
  ProcessReader reader_;
  OpenFiles open_;
  FileUses uses_;
  WaitReader waits_;
  std::set<pid_t> processes_;
  std::map<std::pair<pid_t, pid_t>, Thread> threads_;  // by process and thread
  std::vector<Span> spans_;
  int64_t samples_ = 0;
  size_t kept_ = 0, most_kept_;  // threads whose files are kept open
};

}  // namespace saturate::observe
