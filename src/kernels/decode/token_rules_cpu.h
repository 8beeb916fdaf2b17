// SPDX-License-Identifier: Apache-2.0
// The rules of token_rules.h on one row of logits. Include from *_cpu.cpp.
#pragma once
#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "kernels/decode/token_rules.h"

namespace saturate::kernels {

// token(j) is the sequence's j-th token, j < length, said from `begin` on; `ends` the ids that end it; logit(id) points to what
// the token has, null for one that cannot come.
template <class T, class Token, class Logit>
void apply_rules(const TokenRules& rules, const SuppressedTokens& suppressed,
                 std::span<const int32_t> ends, int64_t begin, int64_t length, const Token& token,
                 const Logit& logit) {
  const auto never = [&](int32_t id) {
    if (T* const z = logit(id)) *z = -std::numeric_limits<T>::infinity();
  };
  const int64_t n = rules.no_repeat_ngram;
  const bool repeats = rules.repetition_penalty != 1.0f;
  const bool counts = rules.presence_penalty != 0.0f || rules.frequency_penalty != 0.0f;
  if ((repeats || counts || n > 0) && length > 0) {
    std::vector<int32_t> said(static_cast<size_t>(length));
    for (int64_t j = 0; j < length; ++j) said[static_cast<size_t>(j)] = token(j);
    std::vector<int32_t> banned;
    for (int64_t j = 0; n > 0 && j + n <= length; ++j) {
      if (std::equal(said.begin() + j, said.begin() + j + n - 1, said.end() - (n - 1)))
        banned.push_back(said[static_cast<size_t>(j + n - 1)]);
    }
    std::vector<int32_t> counted(said.begin() + std::min(begin, length), said.end());
    if (repeats) {
      std::sort(said.begin(), said.end());
      said.erase(std::unique(said.begin(), said.end()), said.end());
      const T penalty = static_cast<T>(rules.repetition_penalty);
      for (const int32_t id : said) {
        if (T* const z = logit(id)) *z = *z > 0 ? *z / penalty : *z * penalty;
      }
    }
    if (counts) {
      std::sort(counted.begin(), counted.end());
      for (auto at = counted.begin(); at != counted.end();) {
        const auto end = std::upper_bound(at, counted.end(), *at);
        if (T* const z = logit(*at))
          *z -= static_cast<T>(rules.presence_penalty) +
                static_cast<T>(end - at) * static_cast<T>(rules.frequency_penalty);
        at = end;
      }
    }
    for (const int32_t id : banned) never(id);
  }
  if (length < rules.least) {
    for (const int32_t id : ends) never(id);
  }
  for (int64_t i = 0; i < suppressed.count; ++i) never(suppressed.ids[i]);
}

// What stands before the rules, and behind them.
template <class T>
void apply_biases(const TokenChoice& choice, int64_t vocab, T* z) {
  for (int64_t i = 0; i < choice.bias_count; ++i)
    if (choice.biases[i].id < vocab)
      z[choice.biases[i].id] += static_cast<T>(choice.biases[i].bias);
}
template <class T>
void apply_allowed(const TokenChoice& choice, int64_t vocab, T* z) {
  if (choice.allowed == nullptr) return;
  for (int64_t id = 0; id < vocab; ++id)
    if ((choice.allowed[id / 32] >> (id % 32) & 1u) == 0)
      z[id] = -std::numeric_limits<T>::infinity();
}

}  // namespace saturate::kernels
