// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <thread>

#include "observe/system/snapshot.h"

namespace saturate::observe {

// Takes samples in a thread of its own: a driver may take its time, or never come back from a GPU
// that fell off the bus. Signals go to the other threads.
class BackgroundSampler {
 public:
  // The second sample, the first with rates, comes after at most 0.25 s.
  BackgroundSampler(Sampler sampler, double interval_s);
  ~BackgroundSampler();  // as stop() with a second's patience; leaves a hanging thread alone

  void set(double interval_s, bool paused);
  // The newest sample if there is one since the last call.
  std::optional<Snapshot> newest();
  // False when the thread does not end within `patience_s`: it hangs in the driver. Then nothing of
  // it is freed, and the program should end by _exit.
  bool stop(double patience_s);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace saturate::observe
