// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/text.h"

namespace saturate::train {
namespace {

using Seconds = std::chrono::duration<double>;

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

std::string format_progress(const ProgressState& s) {
  std::string line = s.total_steps > 0 ? fmt::format("step {}/{}", s.step, s.total_steps)
                                       : fmt::format("step {}", s.step);
  line += fmt::format("  epoch {}", s.epoch);
  const auto add = [&](double value, auto text) {
    if (std::isfinite(value)) line += "  " + text(value);
  };
  add(s.loss, [](double v) { return fmt::format("loss {:.3f}", v); });
  add(s.target_tokens_per_s, [](double v) { return format_count(v) + " tok/s"; });
  add(s.data_wait, [](double v) { return fmt::format("wait {:.1f}%", 100 * v); });
  add(s.device_busy, [](double v) { return fmt::format("gpu {:.1f}%", 100 * v); });
  add(s.flop_utilisation, [](double v) { return fmt::format("mfu {:.1f}%", 100 * v); });
  add(s.memory_bytes, [&](double v) {
    if (!std::isfinite(s.memory_total_bytes)) return "mem " + format_bytes(v);
    return fmt::format("mem {:.1f}/{:.1f} GiB", v / 0x1p30, s.memory_total_bytes / 0x1p30);
  });
  add(s.seconds_left, [](double v) { return "eta " + format_duration(v); });
  return line;
}

ProgressStyle detect_progress_style(int fd, bool quiet) {
  if (quiet) return ProgressStyle::quiet;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return isatty(fd) == 1 && !dumb ? ProgressStyle::terminal : ProgressStyle::plain;
}

bool detect_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

Progress::Progress(const ProgressOptions& options)
    : Progress(options, write_stderr, terminal_columns, std::chrono::steady_clock::now) {}

Progress::Progress(const ProgressOptions& options, Write write, Columns columns, Clock clock)
    : options_(options),
      write_(std::move(write)),
      columns_(std::move(columns)),
      clock_(std::move(clock)) {}

Progress::~Progress() { finish(); }

void Progress::estimate(std::chrono::steady_clock::time_point now) {
  constexpr double kMemorySeconds = 30;
  const double elapsed = Seconds(now - last_rate_).count();
  if (started_ && elapsed > 0 && state_.step > last_rate_step_) {
    const double weight = 1 - std::exp(-elapsed / kMemorySeconds);
    const double rate = static_cast<double>(state_.step - last_rate_step_) / elapsed;
    rate_ += weight * (rate - rate_);
    rate_weight_ += weight * (1 - rate_weight_);  // corrects the start at 0
  }
  if (!started_ || state_.step != last_rate_step_) {
    last_rate_ = now;
    last_rate_step_ = state_.step;
  }
  if (state_.total_steps > 0 && rate_ > 0) {
    const auto left = static_cast<double>(std::max<int64_t>(0, state_.total_steps - state_.step));
    state_.seconds_left = left * rate_weight_ / rate_;
  }
}

void Progress::update(ProgressState state) {
  if (options_.style == ProgressStyle::quiet) return;
  const auto now = clock_();
  state_ = state;
  const auto period =
      options_.style == ProgressStyle::terminal ? options_.redraw : options_.interval;
  const bool due = !started_ || now - last_draw_ >= period;
  pending_ = true;
  if (!due) return;
  estimate(now);
  started_ = true;
  last_draw_ = now;
  draw();
}

void Progress::draw() {
  pending_ = false;
  put(format_progress(state_));
}

void Progress::put(std::string line) {
  if (options_.style == ProgressStyle::plain) {
    write_(line + '\n');
    return;
  }
  shown_ = line;
  // The last column stays free: some terminals wrap when it is filled.
  const auto width = static_cast<size_t>(std::max(columns_() - 1, 1));
  line.resize(std::min(line.size(), width));
  const size_t columns = line.size();
  const size_t blanks = std::min(width, drawn_columns_) - std::min(columns, drawn_columns_);
  drawn_columns_ = columns;
  if (options_.color && line.starts_with("step")) line = "\033[1mstep\033[0m" + line.substr(4);
  write_('\r' + line + std::string(blanks, ' '));
}

void Progress::erase() {
  if (drawn_columns_ > 0) write_('\r' + std::string(drawn_columns_, ' ') + '\r');
  drawn_columns_ = 0;
}

void Progress::message(std::string_view line) {
  if (options_.style == ProgressStyle::quiet) return;
  std::string text(line);
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  const bool redraw = drawn_columns_ > 0;
  erase();
  write_(text + '\n');
  if (!redraw) return;
  if (started_)
    draw();
  else
    put(shown_);
}

void Progress::clear() {
  if (options_.style == ProgressStyle::terminal) erase();
}

void Progress::phase(std::string_view name, std::string_view detail) {
  if (options_.style == ProgressStyle::quiet) return;
  const auto now = clock_();
  const bool plain = options_.style == ProgressStyle::plain;
  const auto period = plain ? options_.interval : options_.redraw;
  if (phase_ != name) {
    phase_ = name;
    phase_told_ = now - period + (plain ? std::chrono::seconds(1) : std::chrono::seconds(0));
  }
  if (now - phase_told_ < period) return;
  phase_told_ = now;
  put(fmt::format("{}: {}", name, detail));
}

void Progress::finish() {
  if (options_.style == ProgressStyle::quiet) return;
  if (!started_) return erase();  // a phase that was not finished
  if (pending_) {
    estimate(clock_());
    draw();
  }
  if (drawn_columns_ > 0) write_("\n");
  drawn_columns_ = 0;
  started_ = false;
}

}  // namespace saturate::train
