// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <functional>
#include <optional>

namespace saturate::train {

// Joules that a rank's device has taken since some moment; nothing where its driver does not count
// them.
using EnergyCounter = std::function<std::optional<double>()>;

// Power by a counter of joules that its owner advances now and then (NVML's some ten times a
// second): from its first change to its last, so that no part of a period counts.
class PowerMeter {
 public:
  void add(double seconds, double joules) noexcept {
    if (!std::isnan(joules_) && joules > joules_) {
      if (std::isnan(first_seconds_)) {
        first_seconds_ = seconds;
        first_joules_ = joules;
      }
      last_seconds_ = seconds;
    }
    joules_ = joules;
  }
  // Nothing before the counter has changed twice.
  std::optional<double> watts() const noexcept {
    if (!(last_seconds_ > first_seconds_)) return {};
    return (joules_ - first_joules_) / (last_seconds_ - first_seconds_);
  }

 private:
  double joules_ = NAN, first_seconds_ = NAN, first_joules_ = 0, last_seconds_ = NAN;
};

}  // namespace saturate::train
