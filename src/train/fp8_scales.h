// SPDX-License-Identifier: Apache-2.0
// The end of a step for the scales of products in fp8.
#pragma once
#include <vector>

#include "ops/layout.h"
#include "ops/parameters.h"
#include "parallel/communicator.h"

namespace saturate::train {

/// Ranks that have the same matrices, and multiply other rows with them, give each other the sites of their
/// step, so that all have the same scales in the next. Not thread safe.
class Fp8Scales {
 public:
  // `store` is allocated. All outlive this. Errors: out_of_memory.
  Fp8Scales(const ParameterStore& store, parallel::Communicator& ranks, const Layout& layout);
  // Before finish_step(). Can be captured. Errors: collective.
  void enqueue(const Context& ctx, float token_budget, const StepState* state) const;
  // What enqueue() starts, in order.
  std::vector<parallel::Collective> collectives() const;

 private:
  struct Part {
    kernels::Fp8Site* sites;
    int64_t count;
    const parallel::Group* ranks;
    Buffer gathered;  // of several ranks
    parallel::Collective gather() const;
  };
  parallel::Communicator& ranks_;
  std::vector<Part> parts_;
};

}  // namespace saturate::train
