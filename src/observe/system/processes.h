// SPDX-License-Identifier: Apache-2.0
// Processes, threads and limits as /proc and the cgroup folder show them. The root can be another
// folder, so that tests read recorded trees. Files that vanish while they are read, or that this
// user may not read, leave their values empty. Source: Linux Documentation/filesystems/proc.rst,
// scheduler/sched-stats.rst, admin-guide/cgroup-v2.rst.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::observe {

struct ThreadTimes {
  int64_t id = 0;
  std::string name;
  char state = '?';  // R running or runnable, S asleep, D in uninterruptible wait, Z, T, ...
  std::optional<int64_t> run_ns, wait_ns;         // on a core; ready, but without one (schedstat)
  std::optional<int64_t> voluntary, involuntary;  // context switches
  std::string waits_in;                           // kernel function it sleeps in; "" when not known
};

struct ProcessTimes {
  int64_t pid = 0, parent = 0;
  int64_t start_ticks = 0;  // after boot; separates a reused pid from the old process
  std::string name, command, user;
  char state = '?';
  int threads = 0;
  std::optional<int64_t> cpu_ns;                     // all threads, user and system
  std::optional<int64_t> resident_bytes;             // RSS
  std::optional<int64_t> voluntary, involuntary;     // all threads, where they were read
  std::optional<int64_t> read_bytes, written_bytes;  // storage, not page cache
  std::optional<int64_t> io_wait_ns;                 // the kernel may not count it: then 0
  std::vector<int64_t> inner_pids;  // its pid in each inner pid namespace, outermost first
};

// Of the cgroup of one process (version 2, or the cpu controller of version 1).
struct CgroupCpu {
  std::string path;             // inside the cgroup file system
  std::optional<double> cores;  // limit; empty: none
  // Of the periods in which something ran, those in which it used up its limit and was stopped.
  std::optional<int64_t> periods, throttled_periods, throttled_ns;
};

class ProcessReader {
 public:
  explicit ProcessReader(std::string proc = "/proc", std::string cgroups = "/sys/fs/cgroup");

  std::vector<int64_t> pids() const;  // ascending
  // Empty when the process is gone.
  std::optional<ProcessTimes> process(int64_t pid) const;
  std::optional<int64_t> parent(int64_t pid) const;
  // Pairs of parent and child, of all processes.
  std::multimap<int64_t, int64_t> children() const;
  // The process and its descendants, it first; children of what has ended are no longer found.
  std::vector<int64_t> tree(int64_t root) const;
  std::vector<int64_t> thread_ids(int64_t pid) const;  // ascending; empty when it has ended
  std::vector<ThreadTimes> threads(int64_t pid) const;
  std::optional<CgroupCpu> cgroup_cpu(int64_t pid) const;
  // The value of an environment variable of the process, as it was when the process started.
  std::optional<std::string> environment(int64_t pid, std::string_view name) const;
  // Whether a file whose path contains `part` is mapped into the process ("libtorch").
  std::optional<bool> maps(int64_t pid, std::string_view part) const;
  // Whether the process has the NVIDIA driver open or its library mapped; empty when this user may
  // not know.
  std::optional<bool> uses_gpu(int64_t pid) const;
  // Whether this program runs in a pid namespace of its own, as in a container; empty when unknown.
  std::optional<bool> inner_namespace() const;

  struct HostTimes {
    std::optional<int64_t> busy_ticks, total_ticks, io_wait_ticks;  // all cores
    std::optional<int64_t> memory_total, memory_available;          // bytes
    int cores = 0;
  };
  HostTimes host() const;
  // A file below the root ("driver/nvidia/params"). Empty when not readable.
  std::optional<std::string> file(const std::string& path) const;
  const std::string& root() const { return proc_; }

 private:
  std::string user_name(int64_t uid) const;
  std::string proc_, cgroups_;
};

// A file of unknown length, at most `limit` bytes of it; empty when it cannot be read.
std::optional<std::string> read_small_file(const std::string& path, size_t limit = 1 << 20);

}  // namespace saturate::observe
