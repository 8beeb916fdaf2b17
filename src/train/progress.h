// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "train/metrics_log.h"

namespace saturate::train {

// What one progress line says. Values that are not finite are left out.
struct ProgressState {
  int64_t step = 0, total_steps = 0;  // total_steps 0: open end
  int64_t epoch = 0;
  double loss = kNotMeasured;
  double target_tokens_per_s = kNotMeasured;
  double data_wait = kNotMeasured;         // 0 to 1
  double device_busy = kNotMeasured;       // 0 to 1
  double flop_utilisation = kNotMeasured;  // 0 to 1
  double memory_bytes = kNotMeasured, memory_total_bytes = kNotMeasured;
  double seconds_left = kNotMeasured;
};

// "step 1200/3000  epoch 4  loss 3.412  728k tok/s  wait 0.3%  mfu 41.2%  mem 12.3/139.8 GiB  eta
// 0:42" ASCII without control characters, so that bytes are columns.
std::string format_progress(const ProgressState& state);

// How the line is shown.
enum class ProgressStyle {
  quiet,     // nothing at all
  plain,     // a line now and then: log files, pipes
  terminal,  // one line in place
};
// From the command line, isatty(fd) and TERM (dumb is plain).
ProgressStyle detect_progress_style(int fd, bool quiet);

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::plain;
  bool color = false;                         // of the label "step"; see detect_color
  std::chrono::milliseconds redraw{100};      // least time between two drawings in place
  std::chrono::milliseconds interval{10000};  // between two plain lines
};
// Whether colour is wanted on a terminal: NO_COLOR is unset or empty (no-color.org).
bool detect_color();

// Shows the progress of one run and estimates the time left. One thread. Writing never fails
// loudly: a closed terminal must not end a training run.
class Progress {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  using Write = std::function<void(std::string_view)>;
  using Columns = std::function<int()>;  // width of the terminal now

  // Writes to stderr, with the real clock and terminal width.
  explicit Progress(const ProgressOptions& options);
  Progress(const ProgressOptions& options, Write write, Columns columns, Clock clock);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap enough for every step. Fills in state.seconds_left where total_steps is known.
  void update(ProgressState state);
  // What is done before the first step: "tokenizer: 120k lines read". In place on a terminal;
  // plain, once a phase has lasted a second, and then at each interval.
  void phase(std::string_view name, std::string_view detail);
  // Takes the line in place away, for what others write.
  void clear();
  // A line of its own above the progress line: validation scores, checkpoints, warnings. Control
  // characters in it become spaces. Not shown when quiet.
  void message(std::string_view line);
  // Shows the last state, if it was not yet, and leaves the line. Also done by the destructor.
  void finish();

 private:
  void draw();
  void put(std::string line);
  void erase();
  void estimate(std::chrono::steady_clock::time_point now);

  ProgressOptions options_;
  Write write_;
  Columns columns_;
  Clock clock_;
  ProgressState state_;
  bool pending_ = false;  // state_ is newer than what is shown
  bool started_ = false;
  std::string phase_;
  std::chrono::steady_clock::time_point phase_told_{};
  std::string shown_;         // the line in place
  size_t drawn_columns_ = 0;  // of it
  std::chrono::steady_clock::time_point last_draw_{}, last_rate_{};
  int64_t last_rate_step_ = 0;
  double rate_ = 0, rate_weight_ = 0;  // steps/s, exponential mean with a memory of 30 s
};

}  // namespace saturate::train
