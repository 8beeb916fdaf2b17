// SPDX-License-Identifier: Apache-2.0
// What a hypothesis still owes of the phrases that its translation must hold. Include from *_cpu.cpp.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/decode/beam_step.h"

namespace saturate::kernels {

class OwedPhrases {
 public:
  // `said`: the tokens of the translation so far, which the phrases' owner and this outlive.
  OwedPhrases(const TokenPhrases& phrases, std::span<const int32_t> said) {
    const int32_t* at = phrases.tokens;
    for (int64_t p = 0; p < phrases.count; at += phrases.lengths[p++]) {
      const std::span<const int32_t> phrase(at, static_cast<size_t>(phrases.lengths[p]));
      if (!std::ranges::search(said, phrase).empty()) continue;
      size_t done = std::min(phrase.size() - 1, said.size());
      while (!std::ranges::equal(phrase.first(done), said.last(done))) --done;
      next_.push_back(phrase[done]);
      owed_ += static_cast<int64_t>(phrase.size());
      furthest_ = std::max(furthest_, static_cast<int64_t>(done));
    }
  }
  // Tokens enough to hold them all: the phrase that is furthest is carried on, then come the others. 0:
  // all are there.
  int64_t tokens() const { return owed_ - furthest_; }
  // The same after a token that carries no phrase on.
  int64_t tokens_after_others() const { return owed_; }
  // What carries the phrases on that are not there, one for each.
  const std::vector<int32_t>& next() const { return next_; }

 private:
  int64_t owed_ = 0, furthest_ = 0;
  std::vector<int32_t> next_;
};

}  // namespace saturate::kernels
