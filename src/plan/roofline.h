// SPDX-License-Identifier: Apache-2.0
// How far a step is from the least time that its work could take on a machine.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "ops/tape.h"
#include "plan/machine.h"

namespace saturate::plan {

// The least microseconds of each operation of the list, from a machine's rates alone: no launch, no
// half-full device. The list is cut into groups that one kernel could run: a product, an attention,
// a norm or an embedding, and whatever only reads or writes elements beside it (activation, column
// sums, loss, casts), which goes with the last of those whose results it reads. A group takes the
// longer of its multiplications at their rate and of the bytes that cross its border, each value
// once, at the bandwidth; what its first operation takes alone is that one's, what the others
// make it longer is theirs.
std::vector<double> floors_us(const Machine& machine, const Tape& tape);

// "products", "norms", ...: what an operation of this name is counted with.
std::string_view class_of(std::string_view operation);

struct RooflineRow {
  std::string key;        // operation_key
  std::string_view kind;  // class_of
  int64_t count = 0;
  double us = 0, floor_us = 0;  // of all of them
  double gap_us() const noexcept { return us - floor_us; }
};
struct Roofline {
  std::vector<RooflineRow> operations,
      classes;  // largest gap first; the key of a class is its name
  double us = 0, floor_us = 0;
  int64_t target_tokens = 0;
};

// Measures this rank's list alone on the device, and the optimizer behind it, against the rates of
// `machine` (measure_device()). Errors: out_of_memory; invalid_argument for the configuration.
Roofline measure_roofline(const Machine& machine, const RunConfig& config, int64_t length,
                          Device device);

}  // namespace saturate::plan
