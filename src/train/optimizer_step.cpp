// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer_step.h"

#include <algorithm>

namespace saturate::train {

OptimizerStep::OptimizerStep(const ParameterStore& store, const OptimizerOptions& options,
                             float token_budget, const Stream& stream)
    : store_(store),
      options_(options),
      token_budget_(token_budget),
      decay_(store.device(), static_cast<size_t>(store.padded_count() / kernels::kParameterAlign)),
      norm_partial_(
          store.device(),
          static_cast<size_t>(kernels::norm_blocks(store.padded_count())) * sizeof(double)) {
  std::vector<kernels::DecayRule> decay(decay_.bytes(), kernels::DecayRule::plain);
  for (const ParameterSpec& p : store.specs()) {
    if (p.frozen || !p.decay) continue;
    const int64_t first = p.offset / kernels::kParameterAlign;
    const int64_t last = (p.offset + p.size() - 1) / kernels::kParameterAlign;
    std::fill(decay.begin() + first, decay.begin() + last + 1, kernels::DecayRule::decayed);
  }
  copy_to_device(stream, decay_.data(), decay.data(), decay.size());
  stream.synchronize();
}

void OptimizerStep::enqueue(const Context& ctx, StepState* state, StepRecord* ring,
                            int64_t ring_slots) const {
  const ParameterGroup& group = store_.trained();
  const kernels::GradientNormArgs norm{.grad = group.array(StateArray::gradient).data(),
                                       .dtype = store_.wide_type(),
                                       .count = group.count(),
                                       .ranges = group.owned(),
                                       .partial = norm_partial_.as<double>(),
                                       .state = state};
  kernels::gradient_norm_blocks(ctx, norm);
  kernels::gradient_norm_join(ctx, norm);
  kernels::adamw(ctx, {.master = group.array(StateArray::master).data(),
                       .m = group.array(StateArray::first_moment).data(),
                       .v = group.array(StateArray::second_moment).data(),
                       .grad = group.array(StateArray::gradient).data(),
                       .ema = group.array(StateArray::average).data(),
                       .compute = group.array(StateArray::compute).data(),
                       .dtype = store_.wide_type(),
                       .compute_type = store_.compute_type(),
                       .rules = decay_.as<kernels::DecayRule>(),
                       .ranges = group.owned(),
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .eps = options_.eps,
                       .weight_decay = options_.weight_decay,
                       .clip_norm = options_.clip_norm,
                       .ema_decay = options_.ema_decay,
                       .token_budget = token_budget_,
                       .schedule = options_.schedule,
                       .state = state});
  kernels::finish_step(ctx, {.state = state,
                             .ring = ring,
                             .ring_slots = ring_slots,
                             .schedule = options_.schedule,
                             .token_budget = token_budget_,
                             .dynamic_loss_scale = store_.compute_type() == DType::f16});
}

}  // namespace saturate::train
