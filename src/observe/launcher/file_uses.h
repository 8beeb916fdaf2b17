// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "observe/launcher/open_files.h"
#include "observe/trace/host_use.h"

namespace saturate::observe {

// What was read and written, by file: bytes from the counts of each process (/proc/PID/io), shared out
// among its open files by how far their positions moved. Files that are read at given offsets
// (pread) or mapped keep their position; their bytes go to the one that a thread of the process was
// last seen to wait for. A file that is opened and closed between two looks is not seen.
class FileUses {
 public:
  FileUses(std::string proc, OpenFiles& open) : proc_(std::move(proc)), open_(open) {}

  // The name under which a file's use is summed up. Paths that differ only in digits share one from
  // the second on; beyond kMostNames, all files of a folder.
  std::string name_of(const std::string& path);

  // A thread of the process was seen to wait for the file.
  void saw_wait(pid_t process, SpanKind kind, const std::string& path, int64_t now_ns);
  // Reads the counts of the process and, if they moved by more than a little, its files.
  void look(pid_t process, int64_t now_ns);
  // Time that a thread spent in `kind` on `name`.
  void add_time(SpanKind kind, const std::string& name, pid_t thread,
                const std::string& thread_name, int64_t start_ns, int64_t end_ns);

  // What a thread that was running copied to or from the page cache.
  struct Copied {
    SpanKind kind;
    std::string name;
    bool whole;  // so much that whatever it ran meanwhile made what it wrote
  };
  // Of a thread that moved so many bytes by calls while it ran for `run_ns`; empty when they were few
  // or no open file accounts for them.
  std::optional<Copied> copied(pid_t process, int64_t read, int64_t written, int64_t run_ns,
                               int64_t now_ns);

  // "" when the process was not seen to write a file.
  std::string last_written(pid_t process) { return processes_[process].written.path; }
  void forget(pid_t process);
  std::vector<HostUse> uses() const;
  // Why nothing is known of a process's files; empty while it is.
  const std::string& refused() const { return refused_; }

 private:
  static constexpr size_t kMostNames = 200;
  struct Counts {
    int64_t read = 0, written = 0, from_storage = 0;
  };
  struct Recent {  // a file that a process read or wrote last
    std::string path;
    int64_t seen_ns = INT64_MIN / 2;
    double explains = 0;  // share of the process's bytes in that look
  };
  struct Process {
    bool begun = false;
    Counts counts;
    int64_t looked_ns = INT64_MIN / 2;
    int unexplained = 0;  // looks in a row that did not say where bytes go
    std::map<int64_t, std::pair<std::string, int64_t>> positions;  // path, position; by descriptor
    Recent read, written;                                          // by position
    Recent read_wait;                                              // by what a thread waited in
    Recent write_wait;
  };
  struct Use {
    HostUse sum;
    std::map<pid_t, std::pair<int64_t, std::string>> threads;  // time and name
  };
  struct Name {
    std::string first;
    std::set<std::string> paths;  // at most 1,000
  };
  std::optional<Counts> counts(pid_t process);
  Use& use(SpanKind kind, const std::string& name);
  void add_bytes(pid_t process, SpanKind kind, const std::string& path, int64_t bytes,
                 int64_t from_storage, int64_t from_ns, int64_t to_ns);
  static void touch(HostUse& use, int64_t from_ns, int64_t to_ns);

  std::string proc_;
  OpenFiles& open_;
  std::map<pid_t, Process> processes_;
  std::map<std::pair<SpanKind, std::string>, Use> uses_;
  std::map<std::string, Name> names_;  // by pattern
  std::string refused_;
};

// "/data/shard-#.tar": every run of digits in a path as one mark.
std::string path_pattern(const std::string& path);

}  // namespace saturate::observe
