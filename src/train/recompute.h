// SPDX-License-Identifier: Apache-2.0
// What the backward pass computes again rather than keep, chosen by what memory it frees for its
// time. Results do not change, not in their last bit.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/tape.h"
#include "runtime/device.h"

namespace saturate::train {

// Rates by which operations are compared: a roofline of the device's kind, the same on all ranks of
// one kind of GPU, since ranks must choose alike. They are guides, not measurements: within a factor
// of two of what kernels reach.
struct ModelledRates {
  double flops_per_us = 1e5, bytes_per_us = 2e4, link_bytes_per_us = 1e4, launch_us = 0;
};
ModelledRates modelled_rates(const Capability& device, DType compute);

// Results of a training tape in the order in which it pays not to keep them.
//
// A unit is one operation of a layer (or several that work in place), chosen when its results live
// on into the backward pass. Units stand in the order of bytes freed for each microsecond that they
// take again, the cheapest first: norms and activations, then products, then attention. Behind them
// comes one unit for each layer that makes it run again as a whole, from its input alone.
class RecomputeUnits {
 public:
  // `probe` is a tape on which nothing is computed again: recorded, with its backward pass, and not
  // planned. Cost: a pass over its operations.
  RecomputeUnits(const Tape& probe, const ModelledRates& rates);

  int64_t count() const noexcept { return static_cast<int64_t>(units_.size()); }
  // How many of the first take at most this share of the step's modelled time together.
  int64_t within(double share) const;
  // Makes the first `count` units of a tape run again that has been recorded as the probe was, but
  // has no backward pass yet.
  void apply(Tape& tape, int64_t count) const;

  // Modelled time of a micro-batch, forward and backward, and how much the first `count` units add.
  double step_us() const noexcept { return step_us_; }
  double added_us(int64_t count) const;
  // Memory whose contents those units make again.
  int64_t bytes(int64_t count) const;

 private:
  using Choice = std::pair<int32_t, Recompute>;  // operation, how
  struct Unit {
    std::vector<Choice> choices;
    int64_t bytes = 0;
    double us = 0;
    double value() const { return static_cast<double>(bytes) / us; }
  };
  class Region;

  std::vector<Unit> units_;
  double step_us_ = 0;
};

// What a tape computes again, and what that is modelled to cost in a micro-batch.
struct RecomputeChoice {
  int64_t units = 0, of = 0;
  int64_t bytes = 0;  // made again instead of kept
  double added_ms = 0, micro_batch_ms = 0;
};
// "the backward pass computes 1.2 GiB again (36 of 84 units), about 0.8 ms of 24.1 ms a micro-batch"
std::string text_of(const RecomputeChoice& choice);

// Chooses what a tape computes again, between its forward and its backward pass: the first `units`
// of RecomputeUnits, or where that is not given what parallel.recompute says: none (and auto, which
// leaves it to the memory there is), all (full), or what takes 3% of a micro-batch's time at most
// (selective). `forward` records the same forward pass on another tape.
RecomputeChoice choose_recomputation(Tape& tape, const std::string& recompute,
                                     std::optional<int64_t> units,
                                     const std::function<void(Tape&)>& forward);

}  // namespace saturate::train
