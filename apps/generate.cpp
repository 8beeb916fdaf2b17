// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/finite.h"
#include "model/generator.h"
#include "serve/generated_text.h"
#include "serve/json/json_constraint.h"
#include "train/translation.h"

namespace saturate::apps {

namespace {

// All of standard input as one text, without the line feed at its end.
std::string read_prompt() {
  if (isatty(STDIN_FILENO) != 0) log_info("type the text to continue, and Ctrl-D after it");
  data::TextReader reader("-", data::kMaxLineBytes, data::EmptyText::allowed);
  std::string text;
  for (std::string_view line; reader.next(line);) {
    if (reader.line_number() > 1) text += '\n';
    text += line;
  }
  return text;
}

// \n and \t as in a C string, since a shell hardly lets one type them.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pair = text[i] == '\\' && i + 1 < text.size();
    if (pair && (text[i + 1] == 'n' || text[i + 1] == 't' || text[i + 1] == '\\')) {
      ++i;
      out += text[i] == 'n' ? '\n' : text[i] == 't' ? '\t' : '\\';
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Prompt {
  std::string name;  // for messages
  std::vector<int32_t> ids;
};

std::vector<Prompt> encode_prompts(const GenerateOptions& o, const data::Tokenizer& tokenizer,
                                   int64_t most) {
  std::vector<Prompt> prompts;
  const auto add = [&](const std::string& text, std::string name) {
    if (const size_t at = find_invalid_utf8(text); at != std::string::npos) {
      throw Error(Errc::invalid_argument, "generate",
                  name + ": byte " + std::to_string(at + 1) + " is not UTF-8; give UTF-8 text");
    }
    Prompt& p = prompts.emplace_back(Prompt{std::move(name), {}});
    tokenizer.encode(text, p.ids);
    if (p.ids.empty()) p.ids.push_back(tokenizer.eos_id());  // what stands before every document
    if (std::ssize(p.ids) < most) return;
    throw Error(Errc::invalid_argument, "generate",
                p.name + " has " + std::to_string(p.ids.size()) + " tokens and the model takes " +
                    std::to_string(most) + "; shorten the prompt");
  };
  if (o.prompts.empty()) {
    const bool given = o.prompt && *o.prompt != "-";
    add(given ? *o.prompt : read_prompt(), given ? "--prompt" : "the prompt");
  } else {
    const std::vector<std::string> lines = read_lines(o.prompts);
    for (size_t i = 0; i < lines.size(); ++i)
      add(lines[i], o.prompts + ":" + std::to_string(i + 1));
  }
  return prompts;
}

// What --json-schema holds continuations to; none without it.
std::shared_ptr<model::TokenConstraint> constraint_of(const GenerateOptions& o,
                                                      const train::LoadedModel& model) {
  if (o.json_schema.empty()) return nullptr;
  if (!o.stop.empty() || o.min_tokens > 0 || o.no_repeat_ngram > 0) {
    throw Error(Errc::invalid_argument, "generate",
                "--json-schema cannot go with --stop, --min-tokens or --no-repeat-ngram: the JSON "
                "would not "
                "be whole; leave them out");
  }
  serve::JsonSchema schema =
      serve::compile_json_schema(read_json_file(o.json_schema), o.json_schema);
  auto tokens = std::make_shared<const serve::TokenBytes>(
      serve::token_bytes(model.tokenizers.target, model.config));
  return std::make_shared<serve::JsonConstraint>(std::move(schema), std::move(tokens),
                                                 serve::ends_of(model.config));
}

const char* name_of(model::Ending ending) {
  return ending == model::Ending::length ? "length" : "stop";
}

// One continuation on its way, and when it has ended.
struct Running {
  serve::GeneratedText stream;
  std::string text = {};
  std::vector<int32_t> ids = {};
  std::vector<float> log_probabilities = {};
  std::optional<model::Ending> ending = {};
};

std::string json_line(int64_t prompt, int64_t sample, const Running& r,
                      const data::Tokenizer& tokenizer) {
  Json::Array tokens, each;
  // Models may have more rows than their tokenizers have pieces.
  for (const int32_t id : r.ids)
    tokens.emplace_back(id < tokenizer.vocab_size() ? tokenizer.piece(id)
                                                    : fmt::format("<id {}>", id));
  for (const float p : r.log_probabilities) each.emplace_back(p);
  return Json{{"prompt", prompt},
              {"sample", sample},
              {"text", r.text},
              {"ending", name_of(*r.ending)},
              {"tokens", std::move(tokens)},
              {"log_probabilities", std::move(each)}}
      .dump();
}

}  // namespace

int run_generate(const GenerateOptions& o) {
  train::LoadHooks hooks;
  hooks.ids = o.model.ids;
  const train::LoadedModel model =
      train::load_model(o.model.model, o.model.device, o.model.precision, hooks, o.model.adapter);
  if (model.config.kind != model::ModelKind::decoder_only) {
    throw Error(Errc::invalid_argument, "generate",
                model.folder + " translates; use saturate translate");
  }
  const data::Tokenizer& tokenizer = model.tokenizers.target;
  const std::vector<Prompt> prompts = encode_prompts(o, tokenizer, model.config.max_positions);
  if (prompts.empty()) return 0;
  int64_t longest = 0;
  for (const Prompt& p : prompts) longest = std::max(longest, std::ssize(p.ids));
  std::vector<std::string> stops;
  for (const std::string& s : o.stop) {
    if (s.empty()) {
      throw Error(Errc::invalid_argument, "generate",
                  "--stop is empty: every text ends there; leave it out");
    }
    stops.push_back(unescaped(s));
  }
  constexpr int64_t kSideBySide = 64;
  const int64_t count = std::ssize(prompts) * o.samples;
  model::GeneratorOptions options{
      .sequences = std::min(count, kSideBySide),
      .max_length = std::min(longest + o.max_tokens, model.config.max_positions)};
  for (const std::string& piece : o.suppress)
    options.suppressed.push_back(id_of_piece("--suppress", tokenizer, piece));
  model::Generator generator(*model.transformer, *model.store, options);

  const std::shared_ptr<model::TokenConstraint> constraint = constraint_of(o, model);
  std::deque<Running> running;
  for (int64_t i = 0; i < count; ++i) {
    const Prompt& p = prompts[static_cast<size_t>(i / o.samples)];
    running.push_back({.stream = serve::GeneratedText(tokenizer, p.ids, stops)});
    generator.add(p.ids, {.temperature = static_cast<float>(o.temperature),
                          .top_k = o.top_k,
                          .top_p = static_cast<float>(o.top_p),
                          .min_p = static_cast<float>(o.min_p),
                          .max_tokens = o.max_tokens,
                          .seed = o.seed,
                          .repetition_penalty = static_cast<float>(o.repetition_penalty),
                          .presence_penalty = static_cast<float>(o.presence_penalty),
                          .frequency_penalty = static_cast<float>(o.frequency_penalty),
                          .no_repeat_ngram = o.no_repeat_ngram,
                          .min_tokens = o.min_tokens,
                          .log_probabilities = o.json,
                          .constraint = constraint});
  }
  LineWriter out("-");
  const auto prompt_of = [&](int64_t i) -> const std::vector<int32_t>& {
    return prompts[static_cast<size_t>(i / o.samples)].ids;
  };
  const bool at_once = count == 1 && !o.json;
  if (at_once) out.put(tokenizer.decode(prompt_of(0)));
  // Bytes of tokens that make no character are U+FFFD here, as in JSON.
  const auto say = [&](Running& r, const std::string& bytes) {
    const std::string part = encode_utf8(decode_utf8(bytes));
    r.text += part;
    if (!at_once || part.empty()) return;
    out.put(part);
    out.flush();
  };
  for (int64_t written = 0; written < count;) {
    generator.step(
        [&](int64_t i, int32_t id, float log_probability) {
          Running& r = running[static_cast<size_t>(i)];
          r.ids.push_back(id);
          if (o.json) r.log_probabilities.push_back(log_probability);
          say(r, r.stream.add(id));
          if (!r.stream.stopped()) return;
          r.ending = model::Ending::stop;
          generator.cancel(i);
        },
        [&](int64_t i, model::Continuation all) {
          if (all.ending == model::Ending::not_finite) throw model::NonFiniteScores("generate");
          if (all.ending == model::Ending::no_token) {
            throw Error(Errc::invalid_argument, "generate",
                        "no token of this model goes on with the JSON; leave --json-schema out");
          }
          Running& r = running[static_cast<size_t>(i)];
          say(r, r.stream.finish());
          r.ending = all.ending;
        });
    for (; written < count && running[static_cast<size_t>(written)].ending; ++written) {
      Running& r = running[static_cast<size_t>(written)];
      if (o.json) {
        out.write(json_line(written / o.samples, written % o.samples, r, tokenizer));
      } else {
        out.write(at_once ? "" : tokenizer.decode(prompt_of(written)) + r.text);
      }
      r = {.stream = serve::GeneratedText(tokenizer, {}, {}), .ending = r.ending};  // its memory
    }
  }
  out.close();
  return 0;
}

}  // namespace saturate::apps
