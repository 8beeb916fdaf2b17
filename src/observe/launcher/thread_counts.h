// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace saturate::observe {

// What the kernel counts for a thread. ProcessReader::threads reads more and takes several times as
// long, too long for a hundred samples a second.
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
