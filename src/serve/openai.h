// SPDX-License-Identifier: Apache-2.0
// What /v1/completions and /v1/chat/completions take and answer.  Source: OpenAI API reference,
// "Completions" and "Chat", fields of models that continue text.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "model/generator.h"
#include "serve/chat_template.h"
#include "serve/request_error.h"
#include "serve/response_format.h"

namespace saturate::serve {

struct CompletionRequest {
  std::string model;
  // Texts, or their ids. Empty for a chat.
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  std::vector<ChatMessage> messages;  // of a chat
  std::optional<int64_t> max_tokens;
  double temperature = 1, top_p = 1, presence_penalty = 0, frequency_penalty = 0;
  int64_t samples = 1;
  int64_t draws = 1;  // at least samples: of so many the likeliest are the answer
  // Not OpenAI's, by the names that vLLM has for them.
  int64_t top_k = 0, min_tokens = 0, no_repeat_ngram_size = 0;
  double repetition_penalty = 1, min_p = 0;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  std::vector<std::pair<int32_t, float>> biases;  // of logits by token id, each once
  // Log-probabilities of the tokens, with so many of the likeliest in each place.
  std::optional<int64_t> logprobs;
  bool chat = false, stream = false, include_usage = false, echo = false;
  bool usage_in_pieces = false;  // of a stream; not OpenAI's, continuous_usage_stats of vLLM
  std::shared_ptr<const ResponseFormat> format;  // none: text
  std::shared_ptr<const Tools> tools;            // of a chat; none: there are none
  std::optional<bool>
      thinks;  // of a chat: whether the model may reason first, where its template has a switch
  bool ignore_eos = false;  // not OpenAI's: for measurements of equal lengths
};

// Errors: invalid_argument, naming the field, what it holds and what it may hold. A field that asks
// for what is not done here (images, sound) is refused, never passed over.
CompletionRequest parse_completion(const Json& body);
CompletionRequest parse_chat(const Json& body);

// What the answers of one request have in common.
struct CompletionHead {
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
  bool chat = false;
};
struct CompletionUsage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};
struct CompletionChoice {
  std::string text, finish_reason;  // "stop", "length" or "tool_calls"
  Json logprobs = {};               // null, or as log_probabilities.h makes it
  Json tool_calls = {};             // null, or as tools.h makes them
};

Json usage_json(const CompletionUsage& usage);
Json completion_answer(const CompletionHead& head, const std::vector<CompletionChoice>& choices,
                       const CompletionUsage& usage);
// A piece of a stream. `role`: the first of a chat. finish_reason "": it goes on.
Json completion_piece(const CompletionHead& head, size_t index, const std::string& text,
                      const std::string& finish_reason, bool role, Json logprobs = {});
Json tool_calls_piece(const CompletionHead& head, size_t index, Json calls, bool role);
Json completion_usage_piece(const CompletionHead& head, const CompletionUsage& usage);

// {"error": {"message", "type", "param", "code"}}; the last two null where nothing is known. Without a
// code of its own a refused key is "invalid_api_key", a full queue "rate_limit_exceeded".
Json openai_error(int status, const std::string& message, const ErrorDetail& detail = {});

}  // namespace saturate::serve
