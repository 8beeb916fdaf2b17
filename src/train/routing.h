// SPDX-License-Identifier: Apache-2.0
// What the experts of a model were given to compute, counted on the device by every step.
#pragma once
#include <vector>

#include "model/model_config.h"
#include "parallel/communicator.h"
#include "runtime/memory.h"
#include "train/metrics_log.h"

namespace saturate::train {

/// Counts of all layers with experts, in device memory. Steps add to them; the host takes them when
/// it wants to tell. Not thread safe.
class RoutingTotals {
 public:
  // Nothing is allocated for a model without experts.
  RoutingTotals(const model::ModelConfig& config, Device device, const Stream& stream);
  static size_t bytes(const model::ModelConfig& config) noexcept;

  // AuxiliaryLosses::routing; null without experts.
  double* counts() const noexcept { return counts_.as<double>(); }

  // Collective. A row for each layer that has been given tokens since the last call, the same on
  // every rank; then counting begins anew. Waits for `stream`. Errors: collective, device.
  std::vector<RoutingRow> take(int64_t step, const Stream& stream, parallel::Communicator& ranks);

 private:
  const model::ModelConfig config_;
  Buffer counts_;
};

// "busiest expert 1.42 times its share (decoder 3), 2.1% dropped"; of rows that there are.
std::string routing_text(const std::vector<RoutingRow>& rows);

}  // namespace saturate::train
