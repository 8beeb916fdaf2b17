// SPDX-License-Identifier: Apache-2.0
// `saturate top`: the live view, one view, its data, or metrics for a collector.
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "apps/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "observe/system/background.h"
#include "observe/top/json.h"
#include "observe/top/metrics_server.h"
#include "observe/top/screen.h"
#include "observe/top/terminal.h"

namespace saturate::apps {
namespace {

using observe::Snapshot;
using Clock = std::chrono::steady_clock;

constexpr size_t kHistory = 1024;  // samples; more than two a column of any terminal
// Rates need two moments; one view waits this long between them, above what GPM needs.
constexpr double kOnceInterval = 0.5;

observe::Sampler make_sampler(const TopOptions& o) {
  std::string why;
  auto monitor = observe::GpuMonitor::open(why);
  if (monitor) {
    for (const int gpu : o.gpus) {
      const auto count = static_cast<int>(monitor->gpus().size());
      if (gpu >= count)
        throw Error(Errc::invalid_argument, "top",
                    fmt::format("there is no GPU {}; there are {}, counted from 0", gpu, count));
    }
    if (monitor->gpus().empty()) why = "the driver shows none to this process";
  }
  return observe::Sampler(std::move(monitor), why, observe::ProcessReader(o.proc),
                          {.gpus = o.gpus, .also = {}});
}

bool has_colour(const TopOptions& o) {
  const char* none = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return !o.no_colour && !(none && *none) && isatty(STDOUT_FILENO) &&
         !(terminal && std::strcmp(terminal, "dumb") == 0);
}

// Braille needs a terminal that reads UTF-8.
bool needs_ascii(const TopOptions& o) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string locale = value;
    return o.ascii ||
           (locale.find("UTF-8") == std::string::npos && locale.find("utf8") == std::string::npos);
  }
  return o.ascii || isatty(STDOUT_FILENO);
}

// Only the processes that were asked for; the GPUs stay.
void keep_asked(Snapshot& s, const TopOptions& o) {
  // In the live view the filter is the user's to change.
  const std::string filter = o.json || !o.prometheus.empty() ? o.filter : "";
  if (o.pids.empty() && o.users.empty() && filter.empty()) return;
  bool keep = true;
  std::erase_if(s.processes, [&](const observe::ProcessView& p) {
    if (!p.worker)
      keep =
          (o.pids.empty() || std::find(o.pids.begin(), o.pids.end(), p.pid) != o.pids.end()) &&
          (o.users.empty() || std::find(o.users.begin(), o.users.end(), p.user) != o.users.end()) &&
          observe::matches_filter(p, filter);
    return !keep;
  });
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Error(Errc::io, "top", "cannot write to standard output; is the disk full?");
}

std::string kill_process(const observe::Action& a, const std::string& proc) {
  // The pid may have been given to another process since it was drawn.
  const auto now = observe::ProcessReader(proc).process(a.kill_pid);
  if (!now || now->start_ticks != a.kill_start_ticks)
    return fmt::format("process {} is gone already", a.kill_pid);
  if (kill(static_cast<pid_t>(a.kill_pid), a.signal) == 0)
    return fmt::format("signal {} sent to {}", a.signal, a.kill_pid);
  return fmt::format("cannot send signal {} to {}: {}", a.signal, a.kill_pid, std::strerror(errno));
}

void remember(std::vector<observe::GpuHistory>& history, const Snapshot& s) {
  history.resize(s.gpus.size());
  for (size_t i = 0; i < s.gpus.size(); ++i) {
    const observe::GpuReading& r = s.gpus[i].reading;
    std::optional<double> load, memory;
    if (r.utilisation) load = *r.utilisation / 100.0;
    if (r.memory_used && r.memory_total && *r.memory_total > 0)
      memory = static_cast<double>(*r.memory_used) / static_cast<double>(*r.memory_total);
    history[i].utilisation.push_back(load);
    history[i].memory.push_back(memory);
    for (auto* values : {&history[i].utilisation, &history[i].memory}) {
      if (values->size() > kHistory) values->pop_front();
    }
  }
}

// How long a key or a new sample may wait to be seen.
constexpr double kReaction = 0.1;
// For a driver that is in the middle of an answer.
constexpr double kPatience = 2;

int run_live(const TopOptions& o, observe::View view, observe::Sampler sampler) {
  std::vector<observe::GpuHistory> history;
  int ended = 0;
  auto terminal = std::make_unique<observe::Terminal>();
  observe::BackgroundSampler background(std::move(sampler), view.interval_s);
  Snapshot s;
  bool quit = false;
  std::vector<std::string> drawn;
  while (!quit && !(ended = terminal->ended_by())) {
    if (auto newest = background.newest()) {
      s = std::move(*newest);
      keep_asked(s, o);
      remember(history, s);
    }
    const auto [width, height] = terminal->size();
    std::vector<std::string> lines = observe::draw_screen(s, history, view, width, height);
    if (lines != drawn || terminal->redraw()) terminal->draw(lines);
    drawn = std::move(lines);
    for (const observe::KeyPress& key : observe::decode_keys(terminal->wait(kReaction))) {
      const observe::Action action = observe::press(view, s, key);
      if (action.kill_pid > 0) view.message = kill_process(action, o.proc);
      quit = quit || action.quit;
    }
    background.set(view.interval_s, view.paused);
  }
  const int code = ended == 0 || ended == SIGINT ? 0 : 128 + ended;
  terminal.reset();
  if (!background.stop(kPatience)) _exit(code);
  return code;
}

volatile std::sig_atomic_t g_stop = 0;

int run_metrics(const TopOptions& o, observe::Sampler sampler) {
  const observe::ListenAddress address = observe::parse_listen_address(o.prometheus);
  observe::MetricsServer server(address);
  std::signal(SIGINT, [](int) { g_stop = 1; });
  std::signal(SIGTERM, [](int) { g_stop = 1; });
  log_info(fmt::format(
      "[top] metrics at http://{}:{}/metrics; Ctrl-C ends",
      address.host.find(':') == std::string::npos ? address.host : "[" + address.host + "]",
      server.port()));
  observe::BackgroundSampler background(std::move(sampler), o.interval);
  Snapshot s;
  const auto metrics = [&] {
    if (auto newest = background.newest()) {
      s = std::move(*newest);
      keep_asked(s, o);
    }
    return observe::snapshot_prometheus(s);
  };
  while (!g_stop) server.run(3600, metrics, [] { return g_stop != 0; });
  if (!background.stop(kPatience)) _exit(0);
  return 0;
}

int run_json(const TopOptions& o, observe::Sampler& sampler) {
  sampler.take();
  double wait = o.follow ? o.interval : kOnceInterval;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    Snapshot s = sampler.take();
    keep_asked(s, o);
    print(observe::snapshot_json(s, !o.follow));
    if (!o.follow) return 0;
  }
}

}  // namespace

int run_top(const TopOptions& o) {
  observe::View view;
  view.ascii = needs_ascii(o);
  view.colour = has_colour(o);
  // Pids of another /proc are not those that kill() means.
  view.read_only = o.read_only || o.proc != "/proc";
  view.tree = o.tree;
  view.interval_s = o.interval;
  view.filter = o.filter;
  observe::Sampler sampler = make_sampler(o);
  if (!o.prometheus.empty()) return run_metrics(o, std::move(sampler));
  if (o.json) return run_json(o, sampler);
  if (!o.once && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO))
    return run_live(o, view, std::move(sampler));
  sampler.take();
  std::this_thread::sleep_for(std::chrono::duration<double>(kOnceInterval));
  Snapshot s = sampler.take();
  keep_asked(s, o);
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  view.whole_command = !known;
  print(observe::draw_once(s, view, known ? size.ws_col : 160));
  return 0;
}

}  // namespace saturate::apps
