// SPDX-License-Identifier: Apache-2.0
#include "serve/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "serve/held_text.h"

namespace saturate::serve {
namespace {

constexpr std::string_view kUnsupported = "it is not supported; leave it out";

// Fields that say nothing of what is generated.
constexpr std::array<std::string_view, 8> kWithoutEffect = {"user",
                                                            "store",
                                                            "metadata",
                                                            "service_tier",
                                                            "safety_identifier",
                                                            "prompt_cache_key",
                                                            "prompt_cache_retention",
                                                            "verbosity"};

constexpr int64_t kMostSamples = 128;  // of one request

// Fields of vLLM, SGLang and llama.cpp's server, with the value that asks for what is done here in any case.
struct HarmlessField {
  std::string_view key;
  const char* value;  // as JSON; null: any
};
constexpr HarmlessField kHarmless[] = {
    {"add_generation_prompt", "true"},
    {"cache_prompt", nullptr},
    {"continue_final_message", "false"},
    {"detokenize", "true"},
    {"documents", "[]"},
    {"include_stop_str_in_output", "false"},
    {"length_penalty", "1"},
    {"priority", "0"},
    {"return_token_ids", "false"},
    {"skip_special_tokens", "true"},
    {"spaces_between_special_tokens", "true"},
    {"stop_token_ids", "[]"},
    {"typical_p", "1"},
    {"use_beam_search", "false"},
};

// A field that may be there, but only with the value that asks for nothing.
void refuse_unless(JsonFields& fields, std::string_view key, bool nothing, std::string_view why) {
  if (fields.has(key) && !nothing) fields.fail(key, why);
}

std::string text_of(JsonFields& fields, std::string_view key, const Json& value) {
  if (const std::string* text = value.if_string()) return *text;
  // Parts, of which only those of text can be read.
  const Json::Array* parts = value.if_array();
  if (parts == nullptr) fields.fail(key, "the content of a message must be a string");
  std::string text;
  for (const Json& part : *parts) {
    const std::string* type = part["type"].if_string();
    const std::string* piece = part["text"].if_string();
    if (type == nullptr || *type != "text" || piece == nullptr)
      fields.fail(key, "parts of a content must be {\"type\": \"text\", \"text\": ...}");
    text += *piece;
  }
  return text;
}

// What is held to a form ends when it is complete, and nowhere else; but strings that stop a text cut it off, as
// max_tokens does, since agents send theirs with every request. `why`: the field that asks for the form.
void refuse_other_ends(JsonFields& fields, const CompletionRequest& r, std::string_view why) {
  const std::pair<const char*, bool> asked[] = {
      {"min_tokens", r.min_tokens > 0},
      {"no_repeat_ngram_size", r.no_repeat_ngram_size > 0},
      {"ignore_eos", r.ignore_eos}};
  for (const auto& [key, is_asked] : asked)
    if (is_asked)
      fields.fail(key,
                  fmt::format("it cannot go with {}, which would not hold; leave one out", why));
}

// {"50256": -100}
void parse_biases(JsonFields& fields, const Json& biases, CompletionRequest& r) {
  const Json::Object* all = biases.if_object();
  if (all == nullptr) fields.fail("logit_bias", "it must be an object of token id: bias");
  if (std::ssize(*all) > model::kMostBiases)
    fields.fail("logit_bias", fmt::format("it has {} ids; at most {} are taken", all->size(),
                                          model::kMostBiases));
  for (const auto& [key, value] : *all) {
    int32_t id = -1;
    const char* const last = key.data() + key.size();
    // One spelling for each id, so that none is there twice.
    if (std::from_chars(key.data(), last, id).ptr != last || id < 0 || std::to_string(id) != key)
      fields.fail("logit_bias", fmt::format("\"{}\" is no token id", key));
    const std::optional<double> bias = value.number();
    if (!bias || !(*bias >= -100 && *bias <= 100))
      fields.fail("logit_bias", fmt::format("the bias of {} must be a number in -100 .. 100", id));
    r.biases.emplace_back(id, static_cast<float>(*bias));
  }
}

void parse_sampling(JsonFields& fields, const Json& body, CompletionRequest& r) {
  const auto within = [&](std::string_view key, double value, double least, double most) {
    if (!(value >= least && value <= most))
      fields.fail(key, fmt::format("it must be in {:g} .. {:g}", least, most));
    return value;
  };
  r.temperature = within("temperature", fields.number_or("temperature", 1), 0, 100);
  // 0: the likeliest alone.
  r.top_p = std::max(within("top_p", fields.number_or("top_p", 1), 0, 1), 1e-6);
  r.top_k = fields.integer_or("top_k", 0);
  within("top_k", static_cast<double>(r.top_k), -1, 1 << 20);
  r.top_k = std::max<int64_t>(r.top_k, 0);  // -1 is vLLM's none
  r.min_tokens = fields.integer_or("min_tokens", 0);
  within("min_tokens", static_cast<double>(r.min_tokens), 0, 1 << 20);
  r.no_repeat_ngram_size = fields.integer_or("no_repeat_ngram_size", 0);
  within("no_repeat_ngram_size", static_cast<double>(r.no_repeat_ngram_size), 0, 1 << 20);
  r.repetition_penalty =
      within("repetition_penalty", fields.number_or("repetition_penalty", 1), 0.01, 100);
  r.samples = fields.integer_or("n", 1);
  within("n", static_cast<double>(r.samples), 1, kMostSamples);
  if (fields.has("seed")) r.seed = static_cast<uint64_t>(fields.integer("seed"));
  r.draws = r.samples;
  r.stream = fields.boolean_or("stream", false);
  r.ignore_eos = fields.boolean_or("ignore_eos", false);
  if (fields.has("stream_options")) {
    JsonFields options(body["stream_options"], "request", "stream_options");
    r.include_usage = options.boolean_or("include_usage", false);
    r.usage_in_pieces =
        options.boolean_or("continuous_usage_stats", false) && r.include_usage;  // as vLLM
    static_cast<void>(options.boolean_or("include_obfuscation", false));
    options.reject_others();
  }
  if (fields.has("stop")) {
    const Json& stop = body["stop"];
    const Json::Array one = {stop};
    for (const Json& each : stop.if_array() != nullptr ? *stop.if_array() : one) {
      const std::string* text = each.if_string();
      if (text == nullptr || text->empty() || r.stops.size() == 16)
        fields.fail("stop", "it must be a string, or a list of at most 16, none empty");
      r.stops.push_back(*text);
    }
  }
  r.presence_penalty = within("presence_penalty", fields.number_or("presence_penalty", 0), -2, 2);
  r.frequency_penalty =
      within("frequency_penalty", fields.number_or("frequency_penalty", 0), -2, 2);
  r.min_p = within("min_p", fields.number_or("min_p", 0), 0, 1);
  if (fields.has("logit_bias")) parse_biases(fields, body["logit_bias"], r);
  if (fields.has("response_format")) r.format = parse_response_format(body["response_format"]);
  if (auto held = parse_held_text(fields, body)) {
    if (r.format)
      fields.fail(held->field, "response_format asks for JSON already; give one of the two");
    r.format = std::move(held);
  }
  if (r.format) refuse_other_ends(fields, r, r.format->field);
  for (const std::string_view key : kWithoutEffect) static_cast<void>(fields.has(key));
  for (const auto& [key, value] : kHarmless) {
    if (!fields.has(key) || value == nullptr) continue;
    const Json only = parse_json(value, "a field");
    // 1 and 1.0 are one number.
    const bool same = only.number() ? body[key].number() == only.number() : body[key] == only;
    refuse_unless(fields, key, same, fmt::format("only {} is done here", value));
  }
}

// Of a chat: what its template may be told of reasoning. As vLLM has it an effort of "none" is none.
void parse_reasoning(JsonFields& fields, const Json& body, CompletionRequest& r) {
  constexpr std::string_view kEffort = "reasoning_effort", kVariables = "chat_template_kwargs";
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
  if (fields.has(kEffort)) r.thinks = fields.choice(kEffort, kEfforts) > 0;
  if (!fields.has(kVariables)) return;
  try {
    const Json& all = body[kVariables];
    JsonFields variables(all, "request", std::string(kVariables));
    if (variables.has(kEffort)) r.thinks = variables.choice(kEffort, kEfforts) > 0;
    for (const std::string_view key : {"thinking", "enable_thinking"})
      if (variables.has(key)) r.thinks = variables.boolean(key);
    for (const auto& [key, value] : *all.if_object())
      if (key != kEffort && key != "thinking" && key != "enable_thinking" && !value.is_null())
        variables.fail(key,
                       "no chat template here has it, but enable_thinking, thinking and "
                       "reasoning_effort; leave it out");
  } catch (const Error& e) {
    throw FieldError("request", message_of(e.what()), kVariables);
  }
}

// max_tokens under either of two names.
void parse_length(JsonFields& fields, CompletionRequest& r, std::string_view key) {
  if (!fields.has(key)) return;
  r.max_tokens = fields.integer(key);
  // Nothing, for the log-probabilities of a prompt alone.
  const int64_t least = r.echo ? 0 : 1;
  if (*r.max_tokens < least || *r.max_tokens > int64_t{1} << 20)
    fields.fail(key, fmt::format("it must be in {} .. 1048576{}", least,
                                 least > 0 && !r.chat ? " (0 only with echo)" : ""));
}

// With what is known of max_tokens.
void check_lengths(JsonFields& fields, const CompletionRequest& r) {
  if (r.max_tokens && r.min_tokens > *r.max_tokens)
    fields.fail("min_tokens",
                fmt::format("max_tokens is {}: raise it, or lower this one", *r.max_tokens));
}

void parse_logprobs(JsonFields& fields, CompletionRequest& r, std::string_view key) {
  constexpr int64_t kMost = 20;  // as OpenAI's chats
  r.logprobs = fields.integer_or(key, 0);
  if (*r.logprobs < 0 || *r.logprobs > kMost)
    fields.fail(key, fmt::format("it must be in 0 .. {}", kMost));
}

void parse_prompts(JsonFields& fields, const Json& body, CompletionRequest& r) {
  constexpr std::string_view kForm =
      "it must be a string, a list of strings, or token ids: a list or a list of lists";
  const Json& prompt = body["prompt"];
  const auto ids_of = [&](const Json::Array& list) {
    std::vector<int32_t> ids;
    for (const Json& id : list) {
      const int64_t* value = id.if_int();
      if (value == nullptr || *value < 0 || *value > INT32_MAX) fields.fail("prompt", kForm);
      ids.push_back(static_cast<int32_t>(*value));
    }
    return ids;
  };
  if (!fields.has("prompt")) fields.fail("prompt", "give the text to continue");
  if (const std::string* text = prompt.if_string()) {
    r.prompts.emplace_back(*text);
    return;
  }
  const Json::Array* list = prompt.if_array();
  if (list == nullptr || list->empty()) fields.fail("prompt", kForm);
  if (list->front().if_int() != nullptr) {
    r.prompts.emplace_back(ids_of(*list));
    return;
  }
  for (const Json& each : *list) {
    if (const std::string* text = each.if_string()) {
      r.prompts.emplace_back(*text);
    } else if (const Json::Array* ids = each.if_array()) {
      r.prompts.emplace_back(ids_of(*ids));
    } else {
      fields.fail("prompt", kForm);
    }
  }
  if (std::ssize(r.prompts) * r.draws > kMostSamples)
    fields.fail("prompt", fmt::format("prompts times {} is more than {}; ask for fewer at a time",
                                      r.draws > r.samples ? "best_of" : "n", kMostSamples));
}

Json head_json(const CompletionHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

const char* piece_object(const CompletionHead& head) {
  return head.chat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

Json usage_json(const CompletionUsage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens}};
}

CompletionRequest parse_completion(const Json& body) {
  JsonFields fields(body, "request", "the body");
  CompletionRequest r;
  r.model = fields.text_or("model", "");
  parse_sampling(fields, body, r);
  r.draws = fields.integer_or("best_of", r.samples);
  if (r.draws < r.samples || r.draws > kMostSamples)
    fields.fail("best_of", fmt::format("it must be in {} .. {}: n of it are the answer", r.samples,
                                       kMostSamples));
  if (r.draws > r.samples && r.stream)
    fields.fail("best_of",
                "which is best shows at the end; ask without \"stream\", or for n alone");
  parse_prompts(fields, body, r);
  r.echo = fields.boolean_or("echo", false);
  parse_length(fields, r, "max_tokens");
  if (!r.max_tokens) r.max_tokens = 16;  // as OpenAI
  check_lengths(fields, r);
  if (fields.has("logprobs")) parse_logprobs(fields, r, "logprobs");
  refuse_unless(fields, "suffix", body["suffix"].is_null(), kUnsupported);
  refuse_unless(fields, "chat_template_kwargs",
                body["chat_template_kwargs"] == Json(Json::Object{}),
                "a completion has no chat template; leave it out");
  fields.reject_others();
  return r;
}

CompletionRequest parse_chat(const Json& body) {
  JsonFields fields(body, "request", "the body");
  CompletionRequest r;
  r.chat = true;
  r.model = fields.text_or("model", "");
  parse_sampling(fields, body, r);
  for (const Json& message : fields.list("messages")) {
    JsonFields parts(message, "request", "messages");
    std::string role = parts.text("role");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool")
      parts.fail("role", "it must be system, developer, user, assistant or tool");
    std::vector<ToolCall> calls;
    if (parts.has("tool_calls")) calls = parse_calls(message["tool_calls"]);
    if (!calls.empty() && role != "assistant")
      parts.fail("tool_calls", "only an assistant's message has them");
    if (!parts.has("content") && calls.empty())
      parts.fail("content", "give the text of the message");
    r.messages.push_back({role,
                          parts.has("content") ? text_of(parts, "content", message["content"]) : "",
                          std::move(calls), parts.text_or("tool_call_id", "")});
    static_cast<void>(parts.has("name"));
    refuse_unless(parts, "refusal", message["refusal"].is_null(), "it must be null");
    for (const char* key : {"audio", "function_call", "annotations"})
      refuse_unless(parts, key, message[key].size() == 0, "it must be null");
    parts.reject_others();
  }
  if (r.messages.empty()) fields.fail("messages", "it is empty; give at least one message");
  parse_length(fields, r, "max_tokens");
  parse_length(fields, r, "max_completion_tokens");
  check_lengths(fields, r);
  const bool logprobs = fields.boolean_or("logprobs", false);
  if (fields.has("top_logprobs") && !logprobs && body["top_logprobs"] != Json(0))
    fields.fail("top_logprobs", "it needs \"logprobs\": true");
  if (logprobs) parse_logprobs(fields, r, "top_logprobs");
  for (const char* key : {"tools", "tool_choice", "parallel_tool_calls"})
    static_cast<void>(fields.has(key));
  r.tools = parse_tools(body);
  if (r.tools && r.tools->must_call) refuse_other_ends(fields, r, "tool_choice");
  parse_reasoning(fields, body, r);
  for (const char* key : {"function_call", "audio", "prediction", "web_search_options"})
    refuse_unless(fields, key, body[key].is_null() || body[key] == Json("none"), kUnsupported);
  refuse_unless(fields, "echo", body["echo"] == Json(false), "only false is done here");
  refuse_unless(fields, "best_of", body["best_of"] == Json(r.samples),
                "chats answer all that they draw; give n alone");
  refuse_unless(fields, "functions", body["functions"].size() == 0, kUnsupported);
  refuse_unless(fields, "modalities", body["modalities"] == Json(Json::Array{"text"}),
                "only [\"text\"] is implemented here");
  fields.reject_others();
  return r;
}

Json completion_answer(const CompletionHead& head, const std::vector<CompletionChoice>& choices,
                       const CompletionUsage& usage) {
  Json answer = head_json(head, head.chat ? "chat.completion" : "text_completion");
  Json list{Json::Array{}};
  for (size_t i = 0; i < choices.size(); ++i) {
    Json choice = {{"index", i}};
    if (head.chat) {
      const bool calls = !choices[i].tool_calls.is_null();
      choice["message"] = {
          {"role", "assistant"},
          {"content", calls && choices[i].text.empty() ? Json() : Json(choices[i].text)}};
      if (calls) choice["message"]["tool_calls"] = choices[i].tool_calls;
    } else {
      choice["text"] = choices[i].text;
    }
    choice["logprobs"] = choices[i].logprobs;
    choice["finish_reason"] = choices[i].finish_reason;
    list.push_back(std::move(choice));
  }
  answer["choices"] = std::move(list);
  answer["usage"] = usage_json(usage);
  return answer;
}

Json completion_piece(const CompletionHead& head, size_t index, const std::string& text,
                      const std::string& finish_reason, bool role, Json logprobs) {
  Json choice = {{"index", index}};
  if (head.chat) {
    Json delta{Json::Object{}};
    if (role) delta["role"] = "assistant";
    if (role || !text.empty()) delta["content"] = text;
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = finish_reason.empty() ? Json() : Json(finish_reason);
  Json answer = head_json(head, piece_object(head));
  answer["choices"] = Json(Json::Array{std::move(choice)});
  return answer;
}

Json tool_calls_piece(const CompletionHead& head, size_t index, Json calls, bool role) {
  Json answer = completion_piece(head, index, "", "", false);
  Json delta{Json::Object{}};
  if (role) {
    delta["role"] = "assistant";
    delta["content"] = nullptr;
  }
  delta["tool_calls"] = std::move(calls);
  Json choice = answer["choices"][0];
  choice["delta"] = std::move(delta);
  answer["choices"] = Json(Json::Array{std::move(choice)});
  return answer;
}

Json completion_usage_piece(const CompletionHead& head, const CompletionUsage& usage) {
  Json answer = head_json(head, piece_object(head));
  answer["choices"] = Json(Json::Array{});
  answer["usage"] = usage_json(usage);
  return answer;
}

Json openai_error(int status, const std::string& message, const ErrorDetail& detail) {
  const char* type = status == 401 || status == 403 ? "authentication_error"
                     : status == 429                ? "rate_limit_error"
                     : status >= 500                ? "server_error"
                                                    : "invalid_request_error";
  std::string code = detail.code;
  if (code.empty() && status == 401) code = "invalid_api_key";
  if (code.empty() && status == 429) code = "rate_limit_exceeded";
  const auto or_null = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  return {{"error", Json{{"message", message},
                         {"type", type},
                         {"param", or_null(detail.param)},
                         {"code", or_null(code)}}}};
}

}  // namespace saturate::serve
