// SPDX-License-Identifier: Apache-2.0
#include "observe/top/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <string_view>

#include "base/error.h"

namespace saturate::observe {
namespace {

// Alternate screen, no cursor, no line wrap; and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
// Ours to die of: the terminal first, then what would have happened anyway.
constexpr std::array kCrashing = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

termios g_before;
volatile std::sig_atomic_t g_active = 0, g_ended = 0, g_stale = 0;
int g_wake[2] = {-1, -1};

void write_all(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd out{STDOUT_FILENO, POLLOUT, 0};
      if (poll(&out, 1, 1000) <= 0) return;
      continue;
    }
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Safe in a signal handler: write and tcsetattr only.
void restore() noexcept {
  if (!g_active) return;
  g_active = 0;
  write_all(kLeave);
  tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
}

void raw_mode() {
  termios raw = g_before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN);
  raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  g_active = 1;
  write_all(kEnter);
}

void wake(int signal) {
  const int saved = errno;
  if (signal == SIGWINCH || signal == SIGCONT) {
    g_stale = 1;
  } else {
    g_ended = signal;
  }
  const char byte = static_cast<char>(signal);
  [[maybe_unused]] const ssize_t n = write(g_wake[1], &byte, 1);
  errno = saved;
}

void crash(int signal) {
  restore();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// Ctrl-Z: the shell gets its terminal as it was.
void stop(int) {
  const int saved = errno;
  restore();
  raise(SIGSTOP);
  raw_mode();
  wake(SIGCONT);
  errno = saved;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

Terminal::Terminal() {
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &g_before) != 0)
    throw Error(
        Errc::unsupported, "top",
        "standard input and output are no terminal; --once prints one view, --json its data");
  if (pipe2(g_wake, O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(Errc::io, "top", "cannot open a pipe; is the limit of open files reached?");
  g_ended = 0;
  for (const int s : kEnding) handle(s, wake);
  for (const int s : kCrashing) handle(s, crash);
  handle(SIGWINCH, wake);
  handle(SIGTSTP, stop);
  handle(SIGPIPE, SIG_IGN);
  raw_mode();
}

Terminal::~Terminal() {
  restore();
  for (const int s : kEnding) handle(s, SIG_DFL);
  for (const int s : kCrashing) handle(s, SIG_DFL);
  handle(SIGWINCH, SIG_DFL);
  handle(SIGTSTP, SIG_DFL);
  for (int& end : g_wake) {
    close(end);
    end = -1;
  }
}

bool Terminal::redraw() {
  const bool stale = g_stale != 0;
  g_stale = 0;
  return stale;
}

Terminal::Size Terminal::size() const {
  winsize size{};
  Size s;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    s.width = size.ws_col;
    s.height = size.ws_row;
  }
  return s;
}

void Terminal::draw(const std::vector<std::string>& lines) {
  // Each line is overwritten and only its rest cleared, so that nothing flickers.
  std::string frame = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) {
    frame += lines[i] + "\x1b[0m\x1b[K";
    if (i + 1 < lines.size()) frame += "\r\n";
  }
  write_all(frame + "\x1b[J");
}

std::string Terminal::wait(double seconds) {
  pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {g_wake[0], POLLIN, 0}};
  const int ms = static_cast<int>(std::clamp(std::ceil(seconds * 1000), 0.0, 3.6e6));
  if (poll(ready, 2, ms) <= 0) return "";
  char bytes[256];
  while (read(g_wake[0], bytes, sizeof bytes) > 0) {
  }
  if (!(ready[0].revents & (POLLIN | POLLHUP | POLLERR))) return "";
  const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
  if (n <= 0) gone_ = n == 0 || errno != EINTR;
  return n > 0 ? std::string(bytes, static_cast<size_t>(n)) : "";
}

int Terminal::ended_by() const { return g_ended ? g_ended : gone_ ? SIGHUP : 0; }

}  // namespace saturate::observe
