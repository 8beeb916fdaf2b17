// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/process_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "observe/system/processes.h"

namespace saturate::observe {
namespace {

bool reap_until_none(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended > 0) continue;
    if (ended < 0) return true;  // no child is left
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

bool signal_descendants(int signal) {
  bool any = false;
  for (const int64_t pid : ProcessReader().tree(getpid())) {
    if (pid == getpid()) continue;
    any = kill(static_cast<pid_t>(pid), signal) == 0 || any;
  }
  return any;
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

void end_descendants(double grace_s) {
  if (reap_until_none(0)) return;
  signal_descendants(SIGTERM);
  if (reap_until_none(grace_s)) return;
  signal_descendants(SIGKILL);
  reap_until_none(2);
}

}  // namespace saturate::observe
