// SPDX-License-Identifier: Apache-2.0
#include "train/fp8_scales.h"

#include "kernels/fp8/fp8.h"

namespace saturate::train {

using kernels::Fp8Site;

Fp8Scales::Fp8Scales(const ParameterStore& store, parallel::Communicator& ranks,
                     const Layout& layout)
    : ranks_(ranks) {
  for (const ParameterGroup& group : store.groups()) {
    const Block& held = group.array(StateArray::fp8_sites);
    if (held.data() == nullptr) continue;
    const parallel::Group& same = layout.group(group.axes());
    const auto copies = static_cast<size_t>(same.size());
    parts_.push_back(
        {.sites = held.as<Fp8Site>(),
         .count = static_cast<int64_t>(held.bytes() / sizeof(Fp8Site)),
         .ranks = &same,
         .gathered = copies > 1 ? Buffer(store.device(), copies * held.bytes()) : Buffer()});
  }
}

parallel::Collective Fp8Scales::Part::gather() const {
  return {.kind = parallel::CollectiveKind::all_gather,
          .group = *ranks,
          .dtype = DType::f32,
          .count = count * static_cast<int64_t>(sizeof(Fp8Site) / sizeof(float))};
}

std::vector<parallel::Collective> Fp8Scales::collectives() const {
  std::vector<parallel::Collective> list;
  for (const Part& part : parts_)
    if (part.ranks->size() > 1) list.push_back(part.gather());
  return list;
}

void Fp8Scales::enqueue(const Context& ctx, float token_budget, const StepState* state) const {
  for (const Part& part : parts_) {
    if (part.ranks->size() > 1)
      ranks_.wait(ranks_.start(part.gather(), part.sites, part.gathered.data(), ctx), ctx);
    kernels::fp8_roll(ctx, {.sites = part.sites,
                            .gathered = part.gathered.as<Fp8Site>(),
                            .count = part.count,
                            .ranks = part.ranks->size(),
                            .token_budget = token_budget,
                            .state = state});
  }
}

}  // namespace saturate::train
