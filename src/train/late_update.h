// SPDX-License-Identifier: Apache-2.0
// The update of weights of a step beside the forward pass of the next: memory bounds the one, tensor cores
// the other, and clipping needs the norm of all gradients before the first weight may change.
#pragma once
#include <vector>

#include "kernels/optimizer/step_state.h"
#include "train/micro_batches.h"
#include "train/optimizer_step.h"

namespace saturate::train {

/// Parameters in parts, in the order in which a step first reads them, each updated before that. Not thread
/// safe.
class LateUpdate {
 public:
  using Moment = MicroBatches::Moment;

  // Why steps of these cannot have it; null where they can.
  static const char* refusal(const ParameterStore& store, const OptimizerOptions& options,
                             const parallel::Communicator& ranks);

  // first_uses: those of the list. All references outlive this. Errors: out_of_memory.
  LateUpdate(const OptimizerStep& optimizer, const ParameterStore& store,
             const std::vector<Moment>& first_uses);

  // Where a step begins, on `compute`: starts the update of the step whose state was kept last, on a stream
  // of lower priority. It changes nothing where there is none.
  void begin(const Stream& compute);
  // Before an operation: those weights have changed that it reads first.
  void before(Moment next, const Stream& compute);
  // Where a step ends, its norm of gradients complete: keeps its state for the update.
  void keep(const StepState* state, const Stream& compute);

  // All of these can be captured; what follows is called between steps.
  // The update at once, on `compute`.
  void settle(const Stream& compute);
  // There is no update to come.
  void forget(const Stream& compute);

 private:
  struct Part {
    OptimizerStep::Update update;
    Moment needed;
  };
  void run(const Stream& stream, const Part& part) const;

  const OptimizerStep& optimizer_;
  std::vector<Part> parts_;
  Stream beside_;
  Event fork_;
  std::vector<Event> done_;  // by part
  size_t arrived_ = 0;
  Buffer kept_;  // StepState; without tokens, which changes no weight, where nothing is to come
};

}  // namespace saturate::train
