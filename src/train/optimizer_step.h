// SPDX-License-Identifier: Apache-2.0
// What follows the backward pass: the norm of the gradients over all ranks, AdamW on the own ranges
// of each group of parameters, the end of the step.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "ops/layout.h"
#include "ops/parameters.h"
#include "train/adafactor_step.h"
#include "train/fp8_scales.h"
#include "train/state_stream.h"

namespace saturate::train {

struct OptimizerOptions {
  using Kind = ParameterGroup::Update;
  // muon: state is not shared (zero = 0, no tp or ep) and moments are wide; adafactor: the same, but
  // state may be shared; see check_optimizer().
  Kind kind = Kind::adamw;
  float momentum = 0.95f;  // Muon's
  bool relative = false;   // Adafactor's
  float beta1 = 0.9f, beta2 = 0.98f, eps = 1e-9f, weight_decay = 0.0f;
  float clip_norm = 1.0f;  // 0: no clipping
  float ema_decay = 0.0f;  // 0: no average
  // How moments are held; other than wide not together with offloaded state.
  kernels::MomentType moments = kernels::MomentType::wide;
  Schedule schedule = {};

  // What a store must hold to train with these options.
  Purpose purpose() const noexcept {
    return ema_decay > 0 ? Purpose::averaged_training : Purpose::training;
  }
};

class OptimizerStep {
 public:
  // `store` is allocated for options.purpose(); `layout` is over all of `ranks`. All three outlive
  // this. token_budget: what the loss was divided by. Errors: out_of_memory.
  OptimizerStep(const ParameterStore& store, const OptimizerOptions& options, float token_budget,
                const Stream& stream, parallel::Communicator& ranks, const Layout& layout);

  // Device memory that steps take beside the state.
  static size_t scratch_bytes(const ParameterStore& store);

  // Enqueues a step on the gradients, each summed over the ranks of its group; the record goes to
  // `ring`. `stream` is that of `ctx`. Can be captured. Errors: collective.
  void enqueue(const Context& ctx, const Stream& stream, StepState* state, StepRecord* ring,
               int64_t ring_slots) const;

  // The sums over ranks that enqueue() starts, in order.
  std::vector<parallel::Collective> collectives() const;

 private:
  // A group that trains.
  struct Part {
    const ParameterGroup* group;
    Buffer rules;
    Buffer pieces;        // PieceName of each, where moments are rounded
    int64_t first_block;  // of its blocks among those of all groups
    // Whose squares this rank adds up: over all ranks each element of the model is in one of these
    // ranges once.
    std::vector<OwnedRange> counted;
    std::unique_ptr<AdafactorStep> adafactor = {};  // where it changes the group
  };
  void enqueue_muon(const Context& ctx, const Part& part, const StepState* state) const;
  // Of some of the own ranges, whose state is in `memory`; with the compute copy.
  void enqueue_adamw(const Context& ctx, const Part& part, std::span<const OwnedRange> ranges,
                     const StateMemory& memory, const StepState* state) const;
  void enqueue_norm(const Context& ctx, StepState* state) const;

  const ParameterStore& store_;
  OptimizerOptions options_;
  float token_budget_;
  parallel::Communicator& ranks_;
  const Layout& layout_;
  std::vector<Part> parts_;
  bool every_rank_has_all_;  // of the sums that the norm is made of
  int64_t blocks_ = 0;
  Buffer norm_partial_;
  Buffer scratch_;
  Fp8Scales fp8_;
  std::unique_ptr<StateStream> streamed_;  // null: all state is on the device
};

}  // namespace saturate::train
