// SPDX-License-Identifier: Apache-2.0
// What a model thinks of text that is given, not made by it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "train/translation.h"

namespace saturate::train {

// Source and target of a translation; for a language model `target` alone. Both end with their
// end-of-sentence id.
struct ScoredText {
  std::vector<int32_t> source, target;
};

struct TextScore {
  double log_probability = 0;  // natural logarithm, a sum over `tokens`
  int64_t tokens = 0;          // that were predicted, end-of-sentence among them
};

// The log-probability of every target given its source: what beam search sums up, before it divides
// by the length. Of a language model's text the first token is given and the others count, as in
// training; text longer than the model takes is scored in pieces that do not see each other, as in
// training too.
//
// Errors    invalid_argument, naming the text (from 1), for a side of a translation that is longer
//           than the model takes; out_of_memory.
// Order     a score does not depend on the other texts (CPU: exactly; GPU: to the rounding of
//           matrix products).
std::vector<TextScore> score_texts(const LoadedModel& model, int64_t batch_tokens,
                                   std::span<const ScoredText> texts);

}  // namespace saturate::train
