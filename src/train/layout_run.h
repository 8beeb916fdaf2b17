// SPDX-License-Identifier: Apache-2.0
// A few steps of a model over ranks that share it in some layout, and what they computed as the
// whole model has it, so that layouts can be compared with each other.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/training_step.h"

namespace saturate::train {

struct LayoutTask {
  model::ModelConfig model;
  Device device = {};
  DType type = DType::f64;  // of matrix products; f64 on the CPU only
  kernels::KernelOptions kernels = {};
  StepOptions options;  // but for accumulate, slots and parallel
  ParallelConfig parallel;
  int64_t micro_batches = 1;  // of one step, over all data-parallel ranks, which must divide it
  int64_t steps = 1;
  uint64_t seed = 1;  // of the first weights
  // Writes micro-batch `number` of the global sequence.
  float perturbation = 0;  // relative, of the first fp32 weights, up or down
  std::function<void(const data::BatchLayout&, int64_t number, int32_t* words)> fill;
  std::function<void(const StepRecord&)> after_step = {};  // or none; on every rank
};

// One tensor of the model, by its name in a checkpoint.
struct WholeTensor {
  std::string name;
  std::vector<double> values;
  double spread = 0;  // between ranks, see WholeParameter
};

struct LayoutResult {
  std::vector<StepRecord> steps;
  double grad_square_sum = 0;  // of the last step, as stored
  // In the order of the model, without frozen parameters. Gradients are those of the first step as
  // the optimizer takes them (divided by the tokens, clipped): its first moments.
  std::vector<WholeTensor> gradients, weights;
};

// How far two results lie apart, in the order in which a step computes them: the first loss, the
// gradients of the model from its first layer to its last, further losses, the last norm, weights.
struct LayoutDistance {
  std::string what;  // "loss of step 1", "gradient of encoder.layers.0.self.qkv.weight", ...
  // Norm of the difference over the norm of `reference`: of each tensor its own, so that a small one
  // cannot be wrong by a factor unseen. Of ranks that disagree, their distance from each other.
  double relative = 0;
};
std::vector<LayoutDistance> distances(const LayoutResult& reference, const LayoutResult& other);

// Collective. Every rank gets the result. Errors: those of check_layout() and TrainingStep.
LayoutResult run_layout(parallel::Communicator& ranks, const LayoutTask& task);

}  // namespace saturate::train
