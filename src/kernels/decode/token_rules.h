// SPDX-License-Identifier: Apache-2.0
// What a sequence may not say next, as changes to its logits before anything is chosen or drawn.
#pragma once
#include <cstdint>

namespace saturate::kernels {

// Of one sequence; what every default leaves alone costs nothing. In this order, on the logits, so
// that what is left shares all of the probability, as CTranslate2 4 does:
//
//   repetition_penalty  z / penalty where z > 0, else z * penalty, once for each token that the
//                       sequence holds
//   presence_penalty,   z - presence - n frequency for each token that the sequence said n > 0 times,
//   frequency_penalty   its prompt not counted, as OpenAI's interface has it
//   no_repeat_ngram     n: minus infinity for each token that would end n tokens which the sequence
//                       holds already; 1: no token twice
//   least               minus infinity for every end while the sequence has fewer tokens
//
// What the sequence said begins at a place that its caller gives.
//
// Source  Keskar et al., arXiv:1909.05858 (penalty); Paulus et al., arXiv:1705.04304 (n-grams).
struct TokenRules {
  float repetition_penalty = 1.0f;  // positive
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int32_t no_repeat_ngram = 0;  // 0: any may be repeated
  int32_t least = 0;
};

// What is added to one token's logit.
struct TokenBias {
  int32_t id = 0;
  float bias = 0;
};

// What one sequence asks of its logits by id. Memory that the device reads.
//
//   biases   added before the rules above, each id once
//   allowed  a bit for each id, 32 a word, the lowest first: minus infinity for all others, after the
//            rules; null: all are
struct TokenChoice {
  const TokenBias* biases = nullptr;
  int64_t bias_count = 0;
  const uint32_t* allowed = nullptr;
};

// Tokens that no sequence may have: minus infinity, after the above. In device memory; none is an
// end.
struct SuppressedTokens {
  const int32_t* ids = nullptr;
  int64_t count = 0;
};

}  // namespace saturate::kernels
