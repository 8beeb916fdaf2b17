// SPDX-License-Identifier: Apache-2.0
// /v1/completions and /v1/chat/completions, whole or streamed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "serve/generated_text.h"
#include "serve/log_probabilities.h"
#include "serve/openai.h"
#include "serve/request_error.h"
#include "serve/server.h"
#include "serve/tool_format.h"

namespace saturate::serve {
namespace {

std::string event(const Json& data) { return "data: " + data.dump() + "\n\n"; }

// What becomes of one request. Its methods: from the engine's thread.
class Completion {
 public:
  struct Choice {
    GeneratedText text;
    int64_t limit;  // tokens
    std::string whole = {}, reason = {};
    size_t prompt_tokens = 0;
    Json logprobs = {};
    int64_t tokens = 0;
    std::string answer = {};  // where there are tools: all of it,
    size_t certain = 0;       // of which so much is known to be content and was shown
    Json tool_calls = {};
    double log_probability = 0;              // of all tokens, where the best are chosen
    bool begun = false;                      // its text: a space before it is left out of a chat
    bool said = false, scored_once = false;  // a piece, and scores, were sent
    std::string unsent = {},
                scored = {};  // of a stream with scores: what waits for them, and had them
  };

  Completion(std::shared_ptr<Exchange> exchange, CompletionHead head, const CompletionRequest& r,
             ToolFormat calls)
      : exchange_(std::move(exchange)),
        head_(std::move(head)),
        logprobs_(r.logprobs),
        tools_(r.tools),
        calls_(calls),
        samples_(static_cast<size_t>(r.samples)),
        draws_(static_cast<size_t>(r.draws)),
        trims_(r.chat && !(r.format && r.format->schema.is_text)),
        echo_(r.echo),
        stream_(r.stream),
        include_usage_(r.include_usage),
        usage_in_pieces_(r.usage_in_pieces) {}

  void add(Choice choice) { choices_.push_back(std::move(choice)); }
  void count_prompt(size_t tokens) { prompt_tokens_ += static_cast<int64_t>(tokens); }
  // Echoed text stands before what is generated.
  void echo(size_t choice, const std::string& text) { echoes_.emplace_back(choice, text); }

  bool token(size_t i, int32_t id, float log_probability) {
    begin();
    Choice& c = choices_[i];
    ++c.tokens;
    c.log_probability += static_cast<double>(log_probability);
    show(i, c.text.add(id));
    if (!c.text.stopped()) return true;
    // Its last scores are still to come.
    if (!stream_ || !logprobs_) end(i, "stop");
    return false;
  }

  void scored(size_t i, const data::Tokenizer& tokenizer, std::span<const int32_t> ids,
              std::span<const train::TokenScore> scores) {
    begin();
    Choice& c = choices_[i];
    const size_t first = echo_ ? 0 : c.prompt_tokens;
    const auto tokens =
        scored_tokens(tokenizer, ids, c.scored_once ? ids.size() - scores.size() : first, scores);
    c.scored_once = true;
    c.logprobs = head_.chat ? chat_logprobs(tokens)
                            : completion_logprobs(tokens, logprobs_.value_or(0) > 0, c.scored);
    if (!stream_) return;
    for (const ScoredToken& t : tokens) c.scored += t.token.bytes;
    send(completion_piece(head_, i, std::exchange(c.unsent, {}), "", !std::exchange(c.said, true),
                          std::move(c.logprobs)));
  }

  void done() {
    begin();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      if (!c.reason.empty()) continue;
      show(i, c.text.finish());
      end(i, c.tokens < c.limit || c.text.stopped() ? "stop" : "length");
    }
    const CompletionUsage usage = used();
    if (!stream_) {
      if (draws_ > samples_) keep_best();
      std::vector<CompletionChoice> all;
      for (Choice& c : choices_)
        all.push_back(
            {std::move(c.whole), c.reason, std::move(c.logprobs), std::move(c.tool_calls)});
      return exchange_->reply({.body = completion_answer(head_, all, usage).dump() + "\n"});
    }
    if (include_usage_) exchange_->send(event(completion_usage_piece(head_, usage)));
    exchange_->send("data: [DONE]\n\n");
    exchange_->finish();
  }

  void failed(const std::string& why) {
    if (!stream_ || !begun_)
      return exchange_->reply(error_reply(exchange_->request().path, 503, why));
    exchange_->send(event(openai_error(503, why)) + "data: [DONE]\n\n");
    exchange_->finish();
  }

 private:
  // So far, of all choices.
  CompletionUsage used() const {
    CompletionUsage usage{.prompt_tokens = prompt_tokens_};
    for (const Choice& c : choices_) usage.completion_tokens += c.tokens;
    return usage;
  }

  void send(Json piece) {
    if (usage_in_pieces_) piece["usage"] = usage_json(used());
    exchange_->send(event(piece));
  }

  // A stream begins with its first token, so that what fails before has a status of its own.
  void begin() {
    if (std::exchange(begun_, true)) return;
    if (stream_)
      exchange_->start(
          {.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}},
          event(openai_error(504, "the time of this request is over")) + "data: [DONE]\n\n");
    for (const auto& [choice, text] : echoes_) show(choice, text);
  }

  void show(size_t i, std::string piece) {
    Choice& c = choices_[i];
    // Templates end before the space that many models begin an answer with; one of a given form begins as that says.
    if (trims_ && !c.begun)
      piece = piece.substr(std::min(piece.find_first_not_of(" \n"), piece.size()));
    if (piece.empty()) return;
    c.begun = true;
    if (tools_) {
      c.answer += piece;
      const size_t certain = certain_content(*tools_, calls_, c.answer);
      piece = c.answer.substr(c.certain, std::max(certain, c.certain) - c.certain);
      c.certain += piece.size();
    }
    say(i, piece);
  }

  void say(size_t i, const std::string& piece) {
    Choice& c = choices_[i];
    if (piece.empty()) return;
    if (!stream_) {
      c.whole += piece;
    } else if (logprobs_) {
      c.unsent += piece;
    } else {
      send(completion_piece(head_, i, piece, "", !std::exchange(c.said, true)));
    }
  }

  // Of each prompt's draws those with the highest mean log-probability of a token, the best first. A text
  // without a token has none, and comes last.
  void keep_best() {
    const auto mean = [](const Choice& c) {
      return c.tokens > 0 ? c.log_probability / static_cast<double>(c.tokens)
                          : -std::numeric_limits<double>::infinity();
    };
    std::vector<Choice> best;
    for (auto at = choices_.begin(); at != choices_.end();) {
      const auto last = at + static_cast<std::ptrdiff_t>(draws_);
      std::stable_sort(at, last,
                       [&](const Choice& a, const Choice& b) { return mean(a) > mean(b); });
      std::move(at, at + static_cast<std::ptrdiff_t>(samples_), std::back_inserter(best));
      at = last;
    }
    choices_ = std::move(best);
  }

  void end(size_t i, const char* reason) {
    Choice& c = choices_[i];
    if (tools_) reason = end_of_calls(i, reason);
    c.reason = reason;
    if (stream_)
      send(completion_piece(head_, i, std::exchange(c.unsent, {}), reason,
                            !std::exchange(c.said, true)));
  }

  // What is left of an answer that may hold calls, and why it ended.
  const char* end_of_calls(size_t i, const char* reason) {
    Choice& c = choices_[i];
    const bool cut = std::string_view(reason) == "length";
    const SaidCalls said = cut ? SaidCalls{c.answer, {}} : said_calls(*tools_, calls_, c.answer);
    say(i, said.content.substr(std::min(c.certain, said.content.size())));
    if (said.calls.empty()) return reason;
    c.tool_calls = calls_json(said.calls, calls_, fmt::format("{}-{}", head_.id, i), stream_);
    if (!stream_) return "tool_calls";
    if (!c.unsent.empty())  // content comes before calls
      send(completion_piece(head_, i, std::exchange(c.unsent, {}), "",
                            !std::exchange(c.said, true)));
    send(tool_calls_piece(head_, i, std::move(c.tool_calls), !std::exchange(c.said, true)));
    return "tool_calls";
  }

  const std::shared_ptr<Exchange> exchange_;
  const CompletionHead head_;
  const std::optional<int64_t> logprobs_;
  const std::shared_ptr<const Tools> tools_;  // none: there are none
  const ToolFormat calls_;                    // how they are written
  const size_t samples_, draws_;              // of each prompt
  const bool trims_;                          // spaces before an answer
  const bool echo_, stream_, include_usage_, usage_in_pieces_;
  bool begun_ = false;
  std::vector<Choice> choices_;
  std::vector<std::pair<size_t, std::string>> echoes_;
  int64_t prompt_tokens_ = 0;
};

// `param`: the field that they came in.
void check_ids(const std::vector<int32_t>& ids, const GenerationEngine& engine,
               const std::string& param) {
  const int64_t vocabulary = engine.model().config.vocab_target;
  for (const int32_t id : ids) {
    if (id < vocabulary) continue;
    throw RequestError(400,
                       fmt::format("the prompt holds the id {} and ids of this model are below {}",
                                   id, vocabulary),
                       {.param = param, .code = {}});
  }
  if (std::ssize(ids) < engine.max_length()) return;
  throw RequestError(400,
                     // Its first words are those by which litellm and LangChain know it.
                     fmt::format("this model's maximum context length is {} tokens, of prompt and "
                                 "answer together, and the prompt has {}; shorten it",
                                 engine.max_length(), ids.size()),
                     {.param = param, .code = "context_length_exceeded"});
}

// What an answer is held to; none: it is free.
std::shared_ptr<model::TokenConstraint> constraint_of(ServedModel& model,
                                                      const CompletionRequest& r) {
  const bool must_call = r.tools && r.tools->must_call;
  if (!r.format && !must_call) return nullptr;
  if (!model.formats) model.formats = std::make_unique<ResponseFormats>(model.generation->model());
  const auto call = r.tools ? held_call(*r.tools, model.chat->tools) : nullptr;
  try {
    if (must_call) return model.formats->constraint(*call);
    if (!r.tools) return model.formats->constraint(*r.format);
    // Llama's mark is before calls of tools that are not given here.
    const bool marked = model.chat->tools != ToolFormat::llama;
    return model.formats->value_or_call(*r.format, *call,
                                        marked ? call_mark(model.chat->tools) : "");
  } catch (const Error& e) {
    throw RequestError(400, message_of(e.what()),
                       {.param = must_call ? "tools" : r.format->field, .code = {}});
  }
}

}  // namespace

void Server::complete(const Shared& exchange, bool chat) {
  const auto begun = std::chrono::steady_clock::now();
  const Json body = parse_body(exchange->request().body, options_.json);
  CompletionRequest r = chat ? parse_chat(body) : parse_completion(body);
  const GenerationTarget target = generation_model(r.model);
  ServedModel& model = target.model;
  GenerationEngine& engine = *model.generation;
  const data::Tokenizer& tokenizer = engine.model().tokenizers.target;
  if (chat) {
    const bool calls = r.tools || std::ranges::any_of(r.messages, [](const ChatMessage& m) {
                         return m.role == "tool" || !m.calls.empty();
                       });
    if (calls && model.chat->tools == ToolFormat::none) {
      throw RequestError(
          400,
          fmt::format(
              "the chat template of {} ({}) has no tools (chatml, llama3.1 and mistral-v3 to "
              "mistral-v13 have); leave tools out, or serve it with --chat-template",
              model.name, model.chat->name),
          {.param = r.tools ? "tools" : "messages", .code = {}});
    }
    r.prompts.emplace_back(
        chat_prompt(*model.chat, r.messages, r.tools.get(), r.thinks, r.format != nullptr));
    if (!model.chat->stop.empty()) r.stops.emplace_back(model.chat->stop);
  }
  for (const auto& [id, bias] : r.biases) {
    const int64_t vocabulary = engine.model().config.vocab_target;
    if (id < vocabulary) continue;
    throw RequestError(400,
                       fmt::format("logit_bias holds the id {} and ids of this model are below {}",
                                   id, vocabulary),
                       {.param = "logit_bias", .code = {}});
  }
  const std::shared_ptr<model::TokenConstraint> constraint = constraint_of(model, r);
  const CompletionHead head{.id = fmt::format("{}-{}", chat ? "chatcmpl" : "cmpl", next_id_++),
                            .model = target.adapter < 0 ? model.name : r.model,
                            .created = std::chrono::duration_cast<std::chrono::seconds>(
                                           std::chrono::system_clock::now().time_since_epoch())
                                           .count(),
                            .chat = chat};
  const ToolFormat calls = r.tools ? model.chat->tools : ToolFormat::none;
  const auto completion = std::make_shared<Completion>(exchange, head, r, calls);
  const int64_t most = r.max_tokens.value_or(engine.max_length());
  if (r.min_tokens > most)
    throw RequestError(
        400,
        fmt::format("min_tokens is {}, and an answer may have {} tokens here", r.min_tokens, most),
        {.param = "min_tokens", .code = {}});
  GenerationJob job;
  for (const auto& prompt : r.prompts) {
    std::vector<int32_t> ids;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      ids = chat ? chat_ids(tokenizer, *text) : std::vector<int32_t>();
      if (!chat) tokenizer.encode(*text, ids);
    } else {
      ids = std::get<std::vector<int32_t>>(prompt);
    }
    if (ids.empty()) ids.push_back(tokenizer.eos_id());  // what stands before every document
    check_ids(ids, engine, chat ? "messages" : "prompt");
    completion->count_prompt(ids.size());
    for (int64_t sample = 0; sample < r.draws; ++sample) {
      if (r.echo) completion->echo(job.prompts.size(), tokenizer.decode(ids));
      completion->add({.text = GeneratedText(tokenizer, ids, r.stops, call_marks(calls)),
                       .limit = std::min(most, engine.max_length() - std::ssize(ids)),
                       .prompt_tokens = ids.size()});
      job.prompts.push_back(ids);
    }
  }
  job.sampling = {.temperature = static_cast<float>(r.temperature),
                  .top_k = r.top_k,
                  .top_p = static_cast<float>(r.top_p),
                  .min_p = static_cast<float>(r.min_p),
                  .max_tokens = most,
                  .seed = r.seed.value_or(std::random_device{}()),
                  .stop_at_eos = !r.ignore_eos,
                  .repetition_penalty = static_cast<float>(r.repetition_penalty),
                  .presence_penalty = static_cast<float>(r.presence_penalty),
                  .frequency_penalty = static_cast<float>(r.frequency_penalty),
                  .no_repeat_ngram = r.no_repeat_ngram_size,
                  .min_tokens = r.min_tokens,
                  .adapter = target.adapter,
                  .log_probabilities = r.draws > r.samples,
                  .biases = r.biases,
                  .constraint = constraint};
  job.cancelled = [exchange] { return exchange->cancelled(); };
  job.token = [this, completion, begun, first = true](size_t i, int32_t id, float p) mutable {
    if (std::exchange(first, false)) {
      first_token_.add(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    }
    return completion->token(i, id, p);
  };
  if (r.logprobs) {
    job.scores = GenerationJob::Scores{
        .of_prompts = r.echo, .likeliest = *r.logprobs, .while_made = r.stream};
    job.scored = [completion, tokenizer](size_t i, auto ids, auto scores) {
      completion->scored(i, tokenizer, ids, scores);
    };
  }
  job.done = [completion] { completion->done(); };
  job.failed = [completion](const std::string& why) { completion->failed(why); };
  if (const int64_t sequences = std::ssize(job.prompts); sequences > engine.queue()) {
    throw RequestError(413, fmt::format("the request has {} sequences and at most {} are taken",
                                        sequences, engine.queue()));
  }
  require(engine.submit(std::move(job)), model.name);
}

}  // namespace saturate::serve
