// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "lab/program.h"

namespace saturate::lab {

struct Measured {
  std::string program;
  Remedy remedy = Remedy::none;
  int64_t steps = 0;
  double seconds = 0;     // all of the steps
  double step_ms = 0;     // mean, wall time
  double planted_ms = 0;  // a step, what the planted part cost; 0 where nothing is planted
  double device_ms = -1;  // a step with nothing to wait for; -1: the program has no such part
  double voluntary = 0, involuntary = 0;  // context switches of this process a step
};

// Runs 10 steps to warm up, then `steps` measured ones, and waits for the device.
// Errors    as make_program's; invalid_argument when steps < 1.
Measured measure(std::string_view program, Remedy remedy, int64_t steps, Device device);

// One object on one line, keys as the fields above.
std::string to_json(const Measured& measured);

}  // namespace saturate::lab
