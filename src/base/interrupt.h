// SPDX-License-Identifier: Apache-2.0
// A signal's request to stop, for work that takes long before the first step.
#pragma once
#include <atomic>
#include <stdexcept>

namespace saturate {

// Thrown by work that was asked to stop; no failure, so no Error.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted by a signal") {}
};

// Reads the flag that a signal handler sets. A value; the default one never asks to stop.
class Interrupt {
 public:
  Interrupt() = default;
  // `signal`: the signal that came, 0 for none; it must outlive this.
  explicit Interrupt(const std::atomic<int>& signal) : signal_(&signal) {}
  bool requested() const noexcept { return signal_ != nullptr && *signal_ != 0; }
  void check() const {
    if (requested()) throw Interrupted();
  }

 private:
  const std::atomic<int>* signal_ = nullptr;
};

}  // namespace saturate
