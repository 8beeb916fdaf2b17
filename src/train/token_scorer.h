// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "train/translation.h"

namespace saturate::train {

// What a language model thinks of one token that follows others: natural logarithms of softmax(logits),
// without temperature or cuts.
struct TokenScore {
  double log_probability = 0;
  std::vector<std::pair<int32_t, double>> likeliest = {};  // ids in the token's place, best first
};

/// Scores tokens that are known already, in one pass over all of them, on the model's device. The logits
/// of 64 tokens lie in memory at a time. One thread at a time, beside a Generator of the same thread.
class TokenScorer {
 public:
  // `model` outlives this. Errors: invalid_argument for a model that translates; out_of_memory.
  explicit TokenScorer(const LoadedModel& model);
  ~TokenScorer();

  // Of ids[from], ids[from + 1], ...: 1 <= from <= the number of ids, each given all before it; the
  // `most` likeliest of each place, of equal ones the smaller id first. `adapter`: of several side by side
  // (SamplingOptions::adapter); -1: none.
  //
  // Errors    invalid_argument for more ids than the model takes, out_of_memory, NonFiniteScores.
  // Order     a score depends on the ids before it alone (CPU: bit for bit; GPU: to the rounding of
  //           matrix products). The pass that generates may round otherwise.
  // Cost      a forward pass; on a GPU its logits come to the host.
  std::vector<TokenScore> score(std::span<const int32_t> ids, size_t from, int64_t most,
                                int32_t adapter = -1);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::train
