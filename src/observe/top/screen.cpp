// SPDX-License-Identifier: Apache-2.0
#include "observe/top/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/text.h"
#include "observe/top/gpu_lines.h"
#include "observe/top/line.h"

namespace saturate::observe {
namespace {

constexpr int kFewestProcessLines = 4;

const char* verdict_style(std::string_view word) {
  if (word == "busy") return kGreen;
  if (word == "unknown" || word == "idle") return kDim;
  return word == "lost" || word == "throttled" || word == "cpu-starved" ? kRed : kYellow;
}

struct Column {
  const char* name;
  int width;
  int needs;  // shown from this width of the terminal on
  bool right;
};
constexpr Column kColumns[] = {
    {"PID", 8, 0, true},       {"USER", 9, 90, false},       {"GPU", 4, 50, true},
    {"GPU MEM", 10, 40, true}, {"GPU%", 5, 46, true},        {"CPU%", 6, 60, true},
    {"RSS", 10, 100, true},    {"CSW/s v/i", 13, 110, true}, {"VERDICT", 14, 30, false},
};

std::string cell(const ProcessView& p, size_t column) {
  switch (column) {
    case 0:
      return p.pid > 0 ? fmt::format("{}{}", p.guessed ? "~" : "", p.pid)
                       : fmt::format("({})", -p.pid);
    case 1:
      return p.seen ? p.user : "?";
    case 2: {
      if (p.gpus.size() > 2) return fmt::format("{}x", p.gpus.size());
      std::string text;
      for (const GpuUse& g : p.gpus) text += fmt::format("{}{}", text.empty() ? "" : ",", g.gpu);
      return text;
    }
    case 3: {
      std::optional<int64_t> sum;
      for (const GpuUse& g : p.gpus) {
        if (g.memory) sum = sum.value_or(0) + *g.memory;
      }
      return sum ? format_bytes(static_cast<double>(*sum)) : p.worker ? "" : "N/A";
    }
    case 4: {
      std::optional<int> most;
      for (const GpuUse& g : p.gpus) {
        if (g.utilisation) most = std::max(most.value_or(0), *g.utilisation);
      }
      return most ? std::to_string(*most) : p.worker ? "" : "N/A";
    }
    case 5:
      return p.cpu ? fmt::format("{:.0f}", *p.cpu * 100) : "N/A";
    case 6:
      return p.resident ? format_bytes(static_cast<double>(*p.resident)) : "N/A";
    case 7:
      return p.voluntary && p.involuntary
                 ? format_count(*p.voluntary) + "/" + format_count(*p.involuntary)
                 : "N/A";
    default:
      return p.worker ? "" : p.verdict.word;
  }
}

std::string table_head(const View& view, int width) {
  Line line(view, width);
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    const Column& c = kColumns[i];
    if (width < c.needs) continue;
    const std::string name =
        c.right ? fmt::format("{:>{}} ", c.name, c.width - 1) : std::string(c.name);
    line.add(name, c.width, kReversed);
  }
  return line.add("COMMAND", line.left(), kReversed).take();
}

std::string process_line(const ProcessView& p, const View& view, int width, bool last_worker) {
  const bool chosen = p.pid == view.selected && view.selected != 0;
  Line line(view, width);
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    const Column& c = kColumns[i];
    if (width < c.needs) continue;
    const std::string text = cell(p, i);
    line.add(c.right ? fmt::format("{:>{}} ", text, c.width - 1) : text, c.width,
             chosen     ? kReversed
             : i == 8   ? verdict_style(p.verdict.word)
             : p.worker ? kDim
                        : kPlain);
  }
  std::string command = p.seen ? p.command : "(not visible here)";
  if (!view.whole_command) {
    // The program without its folder.
    const size_t end = std::min(command.find(' '), command.size());
    const size_t slash = command.rfind('/', end);
    if (slash != std::string::npos && slash < end) command.erase(0, slash + 1);
  }
  if (p.worker)
    command =
        std::string(view.ascii ? (last_worker ? "`- " : "|- ") : (last_worker ? "└─ " : "├─ ")) +
        command;
  if (!view.tree && p.workers > 0) command = fmt::format("{}  [+{}]", command, p.workers);
  return line.add(command, line.left(), chosen ? kReversed : p.worker ? kDim : kPlain).take();
}

std::string head_line(const Snapshot& s, const View& view, int width) {
  char clock[16] = "";
  const auto seconds = static_cast<std::time_t>(s.unix_s);
  std::tm local{};
  if (localtime_r(&seconds, &local)) std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
  Line line(view, width);
  line.add("saturate top", -1, kBold).add(fmt::format("  {}", clock));
  if (view.paused) line.add("  PAUSED", -1, kYellow);
  if (!s.driver.empty()) line.add("  driver " + s.driver);
  if (s.cuda) line.add(fmt::format("  CUDA {}.{}", *s.cuda / 1000, *s.cuda % 1000 / 10));
  line.add(s.host_cpu ? fmt::format("  CPU {:.0f}% of {}", *s.host_cpu * 100, s.cores)
                      : fmt::format("  {} cores", s.cores));
  if (s.memory_total && s.memory_available)
    line.add(fmt::format("  RAM {} of {}",
                         format_bytes(static_cast<double>(*s.memory_total - *s.memory_available)),
                         format_bytes(static_cast<double>(*s.memory_total))));
  return line.take();
}

std::string foot_line(const Snapshot& s, const View& view, int width) {
  Line line(view, width);
  if (view.mode == View::Mode::filter)
    return line.add("filter: ", -1, kBold)
        .add(view.filter + "_")
        .add("  Enter keeps, Esc clears")
        .take();
  if (view.mode == View::Mode::choose_signal)
    return line.add("signal: t TERM, k KILL, i INT, any other key: none", -1, kYellow).take();
  if (view.mode == View::Mode::confirm)
    return line
        .add(fmt::format("send signal {} to process {}? y / any other key: no", view.signal,
                         view.selected),
             -1, kRed)
        .take();
  if (!view.message.empty()) return line.add(view.message, -1, kYellow).take();
  for (const ProcessView& p : s.processes) {
    if (p.pid == view.selected && !p.worker && view.selected != 0)
      return line.add(p.verdict.word + ": ", -1, kBold).add(p.verdict.evidence).take();
  }
  line.add(fmt::format("q quit  h help  sort: {}{}  f filter{}  t tree  k kill  {:g} s",
                       sort_name(view.sort), view.reverse ? " (reversed)" : "",
                       view.filter.empty() ? "" : ": " + view.filter, view.interval_s),
           -1, kDim);
  return line.take();
}

std::vector<std::string> help_lines() {
  return {"Keys",
          "  q, F10, Ctrl-C   quit                 h, ?, F1   this help",
          "  Up Down PgUp PgDn Home End            select a process; the last line says why",
          "  < > , . F6       sort column          r          reverse",
          "  f / F4           filter               Esc        clear filter and selection",
          "  t, F5            workers as a tree    c          whole command",
          "  k, F9            choose a signal      T K I      TERM, KILL, INT, each with y",
          "  p, space         pause                + -        longer or shorter interval",
          "",
          "Verdicts, from counters alone; ? marks a guess that a trace can settle",
          "  busy           the GPU has work 90% of the time or more",
          "  narrow?        so it has, but on few SMs: small grids",
          "  launch-bound?  GPU gaps while one host thread runs all the time",
          "  starved?       GPU gaps while it sleeps and its workers compute or read",
          "  waiting        GPU gaps while it sleeps, on what is not known",
          "  cpu-starved    its threads are ready but get no core, or hit their CPU limit",
          "  throttled      heat or the power supply hold the clocks down",
          "  idle, lost, unknown",
          "Whose pid is ~N: matched by being the only one; (N): known to the driver alone"};
}

// Draws all GPUs in the richest form that fits `lines`.
std::vector<std::string> gpu_block(const Snapshot& s, const std::vector<GpuHistory>& history,
                                   const View& view, int width, int lines) {
  std::vector<std::string> out;
  if (!s.no_gpu.empty()) {
    out.push_back(Line(view, width).add("no GPU: " + s.no_gpu, -1, kYellow).take());
    return out;
  }
  const int count = static_cast<int>(s.gpus.size());
  const bool plots = count * (kGpuFullLines + kPlotLines) <= lines && width >= 50;
  const bool full = count * kGpuFullLines <= lines && width >= 50;
  for (int i = 0; i < count; ++i) {
    const GpuView& g = s.gpus[static_cast<size_t>(i)];
    if (!full) {
      if (i == lines - 1 && count > lines) {
        out.push_back(
            fmt::format("... {} more GPUs", count - i).substr(0, static_cast<size_t>(width)));
        break;
      }
      out.push_back(gpu_compact_line(g, view, width));
      continue;
    }
    for (std::string& l : gpu_full_lines(g, view, width)) out.push_back(std::move(l));
    if (!plots || static_cast<size_t>(i) >= history.size()) continue;
    for (std::string& l : gpu_plot(history[static_cast<size_t>(i)], view, width))
      out.push_back(std::move(l));
  }
  return out;
}

void add_processes(std::vector<std::string>& out, const Snapshot& s, const View& view, int width,
                   size_t room) {
  const auto shown = visible_processes(view, s);
  size_t from = 0;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (shown[i]->pid == view.selected && room > 0 && i >= room) from = i - room + 1;
  }
  for (size_t i = from; i < shown.size() && i - from < room; ++i) {
    const bool last = i + 1 == shown.size() || !shown[i + 1]->worker;
    out.push_back(process_line(*shown[i], view, width, last));
  }
  if (shown.empty() && room > 0)
    out.push_back(Line(view, width)
                      .add(view.filter.empty() ? "  no process on a GPU is visible"
                                               : "  no process matches the filter",
                           -1, kDim)
                      .take());
}

}  // namespace

std::vector<std::string> draw_screen(const Snapshot& s, const std::vector<GpuHistory>& history,
                                     const View& view, int width, int height) {
  std::vector<std::string> out;
  if (width <= 0 || height <= 0) return out;
  const auto rows = static_cast<size_t>(height);
  if (view.help) {
    for (const std::string& l : help_lines()) out.push_back(fit_columns(l, width, view.ascii));
    out.resize(rows);
    return out;
  }
  out.push_back(head_line(s, view, width));
  const int spare = height - 3 - kFewestProcessLines;  // head, table head, foot
  for (std::string& l : gpu_block(s, history, view, width, std::max(spare, 1)))
    out.push_back(std::move(l));
  if (out.size() + 2 < rows) {
    out.push_back(table_head(view, width));
    add_processes(out, s, view, width, rows - out.size() - 1);
  }
  out.resize(rows - 1);
  out.push_back(foot_line(s, view, width));
  return out;
}

std::string draw_once(const Snapshot& s, const View& view, int width) {
  std::vector<std::string> out = {head_line(s, view, width)};
  for (std::string& l : gpu_block(s, {}, view, width, 1 << 20)) out.push_back(std::move(l));
  out.push_back(table_head(view, width));
  add_processes(out, s, view, width, 1 << 20);
  for (const ProcessView* p : visible_processes(view, s)) {
    if (!p->worker)
      out.push_back(
          Line(view, 4096)
              .add(fmt::format("  {} {}: {}", p->pid, p->verdict.word, p->verdict.evidence))
              .take());
  }
  std::string text;
  for (std::string& l : out) {
    l.resize(l.find_last_not_of(' ') + 1);
    text += l + "\n";
  }
  return text;
}

}  // namespace saturate::observe
