// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/generator.h"
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
  const std::string text = o.prompt && *o.prompt != "-" ? *o.prompt : read_prompt();
  if (const size_t at = find_invalid_utf8(text); at != std::string::npos) {
    throw Error(Errc::invalid_argument, "generate",
                "--prompt: byte " + std::to_string(at + 1) + " is not UTF-8; give UTF-8 text");
  }
  std::vector<int32_t> prompt;
  tokenizer.encode(text, prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.eos_id());  // what stands before every document
  const auto length = static_cast<int64_t>(prompt.size());
  const int64_t room = model.config.max_positions - length;
  if (room < 1) {
    throw Error(Errc::invalid_argument, "generate",
                "the prompt has " + std::to_string(length) + " tokens and the model takes " +
                    std::to_string(model.config.max_positions) + "; shorten the prompt");
  }
  const int64_t most = std::min(o.max_tokens, room);
  model::Generator generator(*model.transformer, *model.store,
                             {.sequences = o.samples, .max_length = length + most});
  const std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(o.samples), prompt);
  const model::SamplingOptions sampling{.temperature = static_cast<float>(o.temperature),
                                        .top_k = o.top_k,
                                        .top_p = static_cast<float>(o.top_p),
                                        .max_tokens = most,
                                        .seed = o.seed};
  LineWriter out("-");
  for (std::vector<int32_t> ids : generator.generate(prompts, sampling)) {
    ids.insert(ids.begin(), prompt.begin(), prompt.end());
    out.write(tokenizer.decode(ids));
  }
  out.close();
  return 0;
}

}  // namespace saturate::apps
