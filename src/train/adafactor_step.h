// SPDX-License-Identifier: Apache-2.0
// Adafactor on one group of parameters, whose state ranks may share.
#pragma once
#include "kernels/optimizer/adafactor.h"
#include "ops/parameters.h"
#include "parallel/communicator.h"

namespace saturate::train {

struct OptimizerOptions;

/// Factors are the same on every rank: those that share the group add up what they are made of, which is
/// a number for each row and column, so weights, gradients and EMA may be cut anywhere. Not thread safe.
class AdafactorStep {
 public:
  // `store` is allocated, without tp and ep. All but `stream` outlive this. Errors: out_of_memory.
  AdafactorStep(const ParameterStore& store, int32_t group, const Stream& stream,
                parallel::Communicator& ranks);

  // Device memory beside the state; `store` need not be allocated.
  static size_t scratch_bytes(const ParameterStore& store, int32_t group);

  // Enqueues a step; refreshes the compute copy. Can be captured. Errors: collective.
  void enqueue(const Context& ctx, const OptimizerOptions& options, float token_budget,
               const StepState* state) const;
  // The sums over ranks that enqueue() starts, in order.
  std::vector<parallel::Collective> collectives() const;

 private:
  const ParameterGroup& group_;
  bool rounds_;  // to a copy in 16 bits
  parallel::Communicator& ranks_;
  kernels::AdafactorArgs args_;  // what does not change
  Buffer tensors_, pieces_, sums_, totals_, scratch_;
};

}  // namespace saturate::train
