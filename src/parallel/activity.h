// SPDX-License-Identifier: Apache-2.0
// What each rank is at: carried by heartbeats, named when a rank fails or when none goes on.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/collective.h"

namespace saturate::parallel {

// Whether the ranks are expected to go on all the time: `steady` in training, where a minute without
// any progress is told; `any` where one works long while the others wait (validation, checkpoints).
enum class Pace : uint8_t { steady, any };

// A rank at one moment.
struct Whereabouts {
  int64_t step = 0;
  uint64_t moves = 0;  // grows with all that begins or ends
  Pace pace = Pace::any;
  bool waits = false;  // inside a collective
  std::string text;    // "while training, in all_reduce of 100 f32 over ranks 0, 2"
};

// Written by the threads that work, read by the watcher. Thread safe.
class Activity {
 public:
  void set_step(int64_t step);
  void set_action(const char* action, Pace pace);  // the text lives for ever
  void begin(const Collective& c);
  void begin(const char* what);  // for what is no Collective; the text lives for ever
  void end();
  Whereabouts now() const;

 private:
  mutable std::mutex mutex_;
  Whereabouts at_;
  const char* action_ = "starting";
  std::optional<Collective> collective_;
  const char* what_ = nullptr;
};

/// Notices that no rank goes on although all should. One watcher calls it.
class StallWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Finding {
    std::string told;      // a warning; empty: nothing new
    int failed_rank = -1;  // the ranks have stood still too long, because of this one
  };
  // `ranks`: the latest known of each rank. A first warning after a minute, then after twice the
  // time each; a failure after ten minutes, or ten times the longest that they ever took before they
  // went on, if that is more: a slow machine is no stall.
  Finding look(std::span<const Whereabouts> ranks, Clock::time_point now);

 private:
  uint64_t moves_ = 0;
  bool counts_ = false;
  Clock::time_point since_{};
  Clock::duration longest_{}, next_{};
};

// What each rank is at, ranks that are at the same together: "ranks 0, 2 at step 7 while training, in
// ...; rank 1 at ...".
std::string text_of(std::span<const Whereabouts> ranks);

}  // namespace saturate::parallel
