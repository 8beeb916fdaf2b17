// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/program_end.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "observe/capture/import_table.h"

namespace saturate::observe::cupti {
namespace {

constexpr std::array kSignals = {SIGHUP,  SIGINT,  SIGQUIT, SIGILL,  SIGABRT, SIGBUS, SIGFPE,
                                 SIGSEGV, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};

void (*notify)(Ending, int) = nullptr;
pid_t owner = 0;  // a child that shares our memory (vfork) or a copy of it is another process

void about_to(Ending ending, int signal) {
  if (getpid() == owner) notify(ending, signal);
}

void set_default(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
}

void on_signal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  about_to(Ending::signal, signal);
  set_default(signal);
  // A fault happens again at its instruction when we return, and its core is of there. Anything else
  // comes once: again then, for this thread, as soon as the handler is left.
  const bool fault = info->si_code > 0 && (signal == SIGSEGV || signal == SIGBUS ||
                                           signal == SIGFPE || signal == SIGILL);
  if (!fault) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
  errno = error;
}

[[noreturn]] void leave(int code) {
  about_to(Ending::leave, 0);
  _exit(code);
}
int exec_v(const char* path, char* const* arguments) {
  about_to(Ending::exec, 0);
  return execv(path, arguments);
}
int exec_vp(const char* file, char* const* arguments) {
  about_to(Ending::exec, 0);
  return execvp(file, arguments);
}
int exec_ve(const char* path, char* const* arguments, char* const* environment) {
  about_to(Ending::exec, 0);
  return execve(path, arguments, environment);
}

// Whether the process ends by it as soon as it gets it.
bool ends_process(int signal) {
  if (signal == SIGKILL) return true;
  struct sigaction now {};
  for (const int known : kSignals) {
    if (known == signal)
      return sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
             now.sa_handler == SIG_DFL;
  }
  return false;
}
// Python ends so when it was interrupted: with the signal's default restored.
int send(pid_t process, int signal) {
  if (process == getpid() && ends_process(signal)) about_to(Ending::leave, signal);
  return kill(process, signal);
}
int send_self(int signal) {
  if (ends_process(signal)) about_to(Ending::leave, signal);
  return raise(signal);
}

template <auto Function>
void* instead(void*) {
  return reinterpret_cast<void*>(Function);
}
constexpr Redirection kRedirections[] = {
    {"_exit", instead<&leave>},     {"_Exit", instead<&leave>},  {"kill", instead<&send>},
    {"raise", instead<&send_self>}, {"execv", instead<&exec_v>}, {"execvp", instead<&exec_vp>},
    {"execve", instead<&exec_ve>}};
SeenLibraries seen;

}  // namespace

void watch_endings(void (*to_call)(Ending, int)) {
  if (owner == 0) {
    notify = to_call;
    owner = getpid();
    at_quick_exit([] { about_to(Ending::leave, 0); });
    for (const int signal : kSignals) {
      struct sigaction now {};
      if (sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
          now.sa_handler != SIG_DFL)
        continue;
      struct sigaction ours {};
      ours.sa_sigaction = on_signal;
      ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigaction(signal, &ours, nullptr);
    }
  }
  redirect_imports(kRedirections, std::size(kRedirections), seen);
}

void forget_endings() {
  for (const int signal : kSignals) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
        now.sa_sigaction == on_signal)
      set_default(signal);
  }
}

}  // namespace saturate::observe::cupti
