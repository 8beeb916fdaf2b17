// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "observe/launcher/file_uses.h"
#include "observe/launcher/open_files.h"
#include "observe/launcher/thread_counts.h"
#include "observe/launcher/wait_call.h"
#include "observe/trace/record.h"

namespace saturate::observe {

// What a thread that is not on a core waits for: the file, peer or lock, from its system call, what the
// call's arguments lead to, and the memory that they point at. A mutex of the C library holds the
// thread that has it; condition variables, semaphores and Python's own locks do not, and are "another
// thread". A futex in Python's own data is the interpreter's lock. Reads what the same user may read
// of processes that it started; nothing of them is changed.
class WaitReader {
 public:
  // Memory of another process; whether all of it was read.
  using ReadMemory = std::function<bool(pid_t process, uint64_t address, void* to, size_t bytes)>;
  WaitReader(std::string proc, OpenFiles& open, FileUses& uses, std::function<int64_t()> clock,
             ReadMemory memory = {});

  struct Wait {
    SpanKind kind = SpanKind::blocked;
    std::string name = "blocked in the kernel";
    bool operator==(const Wait&) const = default;
  };
  // `state` as of /proc: D tells a wait for a disk from others. `calls`: the thread's file of that.
  Wait read(pid_t process, pid_t thread, char state, ThreadFile& calls, bool keep = false);
  void forget(pid_t process) { python_.erase(process); }
  // What may not be read here, a line each.
  std::vector<std::string> refused() const;

 private:
  struct Range {
    uint64_t begin, end;
  };
  struct Python {
    std::vector<Range> data;
    int64_t read_ns = INT64_MIN / 2;
  };
  Wait of_call(pid_t process, pid_t thread, const WaitCall& call, char state);
  Wait of_fd(pid_t process, int64_t fd, bool writes, char state);
  Wait of_file(pid_t process, const std::string& path, SpanKind kind);
  Wait of_futex(pid_t process, const WaitCall& call);
  Wait of_several(pid_t process, const std::vector<int64_t>& fds);
  std::vector<int64_t> polled(pid_t process, const WaitCall& call);
  Wait of_fault(pid_t process, pid_t thread);
  bool in_python(pid_t process, uint64_t address);
  bool memory(pid_t process, uint64_t address, void* to, size_t bytes);
  std::string text_at(pid_t process, uint64_t address);
  std::string thread_name(pid_t process, pid_t thread) const;

  std::string proc_;
  OpenFiles& open_;
  FileUses& uses_;
  std::function<int64_t()> clock_;
  ReadMemory memory_;
  std::map<pid_t, Python> python_;
  bool calls_refused_ = false, memory_refused_ = false;
};

// Writable memory of Python's library or program, and of what follows it without a gap, as
// (begin, end), of /proc/PID/maps.
std::vector<std::pair<uint64_t, uint64_t>> python_data(std::string_view maps);
// The largest mapped file that holds no code; "" when there is none of a MiB.
std::string largest_mapped_file(std::string_view maps);

}  // namespace saturate::observe
