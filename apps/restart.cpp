// SPDX-License-Identifier: Apache-2.0
#include "apps/restart.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "parallel/control_channel.h"
#include "parallel/launch.h"

namespace saturate::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP};
constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::seconds kPause{1};  // a device or a port that was just let go

std::atomic<pid_t> g_child{0};
std::atomic<bool> g_asked{false};  // to end
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void pass_on(int number) {
  g_asked = true;
  if (g_child > 0) ::kill(g_child, number);
}

// nohup and the like let a run outlive its terminal by ignoring the signal.
void handle_signals(void (*handler)(int)) {
  for (const int s : kPassedOn)
    if (std::signal(s, handler) == SIG_IGN) std::signal(s, SIG_IGN);
}

bool launcher_started_again() {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    const char* const count = std::getenv(name);
    if (count != nullptr && std::atoi(count) > 0) return true;
  }
  return false;
}

// How the child ended, as waitpid() says it.
int end_of_child(pid_t child, bool others_wait) {
  const auto limit = std::chrono::duration<double>(parallel::heartbeat_limit_s());
  bool stopped = false;
  Clock::time_point since;
  for (;;) {
    int status = 0;
    const pid_t changed = ::waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (changed == child) {
      if (WIFEXITED(status) || WIFSIGNALED(status)) return status;
      stopped = WIFSTOPPED(status);
      since = Clock::now();
      continue;
    }
    if (stopped && others_wait && Clock::now() - since > limit) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(kPoll);
  }
}

[[noreturn]] void end_like(int status) {
  std::fflush(nullptr);
  if (WIFSIGNALED(status)) {
    std::signal(WTERMSIG(status), SIG_DFL);
    ::kill(::getpid(), WTERMSIG(status));
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : kExitMachine);
}

std::string text_of(int status) {
  return WIFSIGNALED(status) ? fmt::format("was ended by SIG{}", sigabbrev_np(WTERMSIG(status)))
                             : fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

bool restarted_child(int64_t most) {
  const parallel::LaunchInfo launch = parallel::restartable(parallel::current_launch());
  bool again = launcher_started_again();
  handle_signals(pass_on);
  for (int64_t restarts = 0;; ++restarts, again = true) {
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0)
      throw Error(Errc::io, "restart",
                  fmt::format("no process for the training can be made: {}; raise the limit of "
                              "processes (ulimit -u), or leave train.restart out",
                              std::strerror(errno)));
    if (child == 0) {
      handle_signals(SIG_DFL);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kExitMachine);  // it ended before the line above
      return again;
    }
    g_child = child;
    if (g_asked) ::kill(child, SIGTERM);  // a signal that came in between
    const int status = end_of_child(child, launch.size > 1);
    g_child = 0;
    const bool failed = WIFSIGNALED(status) || WEXITSTATUS(status) == kExitMachine;
    if (!failed || g_asked || restarts == most) end_like(status);
    if (launch.rank == 0)
      log_warning(fmt::format("the training process {}; restart {} of {} from the last checkpoint",
                              text_of(status), restarts + 1, most));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace saturate::apps
