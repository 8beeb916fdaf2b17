// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of tokens, as OpenAI's completions and chats give them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "data/tokenizer.h"
#include "train/token_scorer.h"

namespace saturate::serve {

struct TokenText {
  std::string
      text;  // of part of a character its bytes' names ("<0xE2>"), of what adds nothing its own
  std::string bytes;  // that it adds to the text
};
struct ScoredToken {
  TokenText token;
  bool first = false;  // of a text: nothing stands before it that could say how likely it is
  double log_probability = 0;
  std::vector<std::pair<TokenText, double>> likeliest =
      {};  // best first, other tokens in its place
};

// The tokens ids[from], ids[from + 1], ... and what each adds to the text of those before it. `scores` are
// those of the last of them; a token more than there are scores is a text's first.
std::vector<ScoredToken> scored_tokens(const data::Tokenizer& tokenizer,
                                       std::span<const int32_t> ids, size_t from,
                                       std::span<const train::TokenScore> scores);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; top_logprobs is null where none were asked
// for. The token itself is among those in its place, as OpenAI has it. Offsets are characters of the text.
// `before`: the bytes of tokens that stood before these and that were given already.
Json completion_logprobs(std::span<const ScoredToken> tokens, bool likeliest,
                         const std::string& before = "");
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}; bytes are null of
// what adds nothing to a text.
Json chat_logprobs(std::span<const ScoredToken> tokens);

}  // namespace saturate::serve
