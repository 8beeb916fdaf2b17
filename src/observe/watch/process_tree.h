// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::observe {

// The processes that descend from `root`, itself included, while they live; children of processes
// that have ended are no longer found. `proc` is where procfs is mounted. Cost       one small file
// for each process of the machine.
std::vector<pid_t> process_tree(pid_t root, const std::string& proc = "/proc");

// The threads of a process; empty when it has ended.
std::vector<pid_t> threads_of(pid_t pid, const std::string& proc = "/proc");

// What the kernel counts for a thread.
struct ThreadCounts {
  int64_t run_ns = 0, wait_ns = 0;         // on a core; ready but without one
  int64_t voluntary = 0, involuntary = 0;  // context switches
  char state = '?';                        // R, S, D, ...
  std::string name;
};
// Whether the thread was there. Context switches are read only when `with_switches`: they cost as
// much as all the rest.
bool read_thread(pid_t pid, pid_t thread, bool with_switches, ThreadCounts& counts,
                 const std::string& proc = "/proc");

}  // namespace saturate::observe
