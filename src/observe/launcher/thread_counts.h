// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace saturate::observe {

// A small file of a thread below /proc, kept open from read to read where asked: opening costs several
// times as much as reading. Of a thread that has ended reads fail, also when its number is used again.
class ThreadFile {
 public:
  ThreadFile() = default;
  ~ThreadFile();
  ThreadFile(const ThreadFile&) = delete;
  ThreadFile& operator=(const ThreadFile&) = delete;

  // At most 4 KiB; valid until the next read of any. Empty when it cannot be read: then errno says why.
  std::string_view read(const std::string& proc, pid_t process, pid_t thread, const char* name,
                        bool keep);
  void close();

 private:
  int fd_ = -1;
};

struct ThreadFiles {
  bool keep = false;
  ThreadFile schedstat, stat, syscall, io;
  void close();
};

// What the kernel counts for a thread. ProcessReader::threads reads more and takes several times as
// long, too long for a hundred samples a second.
struct ThreadCounts {
  int64_t run_ns = 0, wait_ns = 0;         // on a core; ready but without one
  int64_t slices = 0;                      // times on a core
  int64_t voluntary = 0, involuntary = 0;  // context switches
  int64_t may_use = 0;                     // cores that it may run on; 0: not known
  int64_t user_ticks = 0, system_ticks = 0;
  char state = '?';  // R, S, D, ...
  std::string name;
};
// Whether the thread was there. Context switches and the cores that it may use are read only when
// `with_switches`: they cost as much as all the rest. Of a thread that is asleep in `asleep` and was on no core since, the rest is
// taken from there.
bool read_thread(pid_t pid, pid_t thread, bool with_switches, ThreadCounts& counts,
                 const std::string& proc, ThreadFiles& files, const ThreadCounts* asleep = nullptr);

// Cores in a list of the kernel's: "0-3,8" has five.
int64_t cores_in(std::string_view list);
// Cores of the machine that are on; 0: not known.
int64_t cores_of_machine(const std::string& proc);

// Bytes that the thread moved by read and write calls, cached or not; files, pipes and the like.
struct ThreadIo {
  int64_t read = 0, written = 0;
};
// Whether they could be read.
bool read_thread_io(pid_t pid, pid_t thread, ThreadIo& io, const std::string& proc,
                    ThreadFiles& files);

}  // namespace saturate::observe
