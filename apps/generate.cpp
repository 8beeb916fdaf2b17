// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/utf8.h"
#include "model/generator.h"
#include "train/translation.h"

namespace saturate::apps {

int run_generate(const GenerateOptions& o) {
  const train::LoadedModel model =
      train::load_model(o.model.model, o.model.device, o.model.precision);
  if (model.config.kind != model::ModelKind::decoder_only) {
    throw Error(Errc::invalid_argument, "generate",
                model.folder + " translates; use saturate translate");
  }
  const data::Tokenizer& tokenizer = model.tokenizers.target;
  if (const size_t at = find_invalid_utf8(o.prompt); at != std::string::npos) {
    throw Error(Errc::invalid_argument, "generate",
                "--prompt: byte " + std::to_string(at + 1) + " is not UTF-8; give UTF-8 text");
  }
  std::vector<int32_t> prompt;
  tokenizer.encode(o.prompt, prompt);
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
