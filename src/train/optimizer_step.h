// SPDX-License-Identifier: Apache-2.0
// What follows the backward pass: the norm of the gradients, AdamW on the own ranges, the end of
// the step.
#pragma once
#include <cstdint>

#include "kernels/optimizer/optimizer.h"
#include "ops/parameters.h"

namespace saturate::train {

struct OptimizerOptions {
  float beta1 = 0.9f, beta2 = 0.98f, eps = 1e-9f, weight_decay = 0.0f;
  float clip_norm = 1.0f;  // 0: no clipping
  float ema_decay = 0.0f;  // 0: no average
  Schedule schedule = {};

  // What a store must hold to train with these options.
  Purpose purpose() const noexcept {
    return ema_decay > 0 ? Purpose::averaged_training : Purpose::training;
  }
};

class OptimizerStep {
 public:
  // `store` is allocated for options.purpose() and outlives this. token_budget: what the loss was
  // divided by. Errors: out_of_memory.
  OptimizerStep(const ParameterStore& store, const OptimizerOptions& options, float token_budget,
                const Stream& stream);

  // Enqueues a step on the gradients as they are; the record goes to `ring`. Can be captured.
  void enqueue(const Context& ctx, StepState* state, StepRecord* ring, int64_t ring_slots) const;

 private:
  const ParameterStore& store_;
  OptimizerOptions options_;
  float token_budget_;
  Buffer decay_, norm_partial_;
};

}  // namespace saturate::train
