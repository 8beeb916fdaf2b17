// SPDX-License-Identifier: Apache-2.0
// The weights that ranks ship, brought together on the first of them where none holds all: what is
// cut (tensor, expert parallel) or lies on other ranks (pipelines).
#pragma once
#include <functional>
#include <vector>

#include "ops/held_runs.h"
#include "runtime/memory.h"
#include "train/checkpoint.h"

namespace saturate::train {

/// Knows who sends what. The store it reads stays allocated where it is while this lives.
class GatheredWeights {
 public:
  // Collective over `ranks`: exchanges which elements each of them sends.
  GatheredWeights(const StateOfRanks& state, parallel::Communicator& ranks);

  // Collective. On the first rank calls take(number of the parameter in state.all, its values on the
  // host in the wide type, without rows that pad a vocabulary, and their bytes) for every parameter;
  // the values live for the call. Reads training's arrays and changes none. Synchronises.
  // Cost: each weight crosses once, and the first rank holds one parameter at a time.
  void gather(const Stream& stream,
              const std::function<void(size_t number, const void* values, size_t bytes)>& take);

 private:
  struct Chunk {
    size_t number = 0;
    char* memory = nullptr;  // of the rank that sends
    int64_t elements = 0;
    std::vector<HeldRun> runs;
  };
  std::vector<Chunk> own_chunks(const StateOfRanks& state, const Together& ranks) const;

  const ParameterStore& all_;
  parallel::Communicator& ranks_;
  std::vector<std::vector<Chunk>> chunks_;  // by rank, in the order of parameters
};

}  // namespace saturate::train
