// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/model_flags.h"

namespace saturate::apps {

CLI::App* define_generate(CLI::App& app, GenerateOptions& generate) {
  CLI::App& c = *app.add_subcommand("generate", "continue a text with a language model");
  add_model_options(c, generate.model);
  c.get_option("--model")->required();
  c.add_option("--prompt", generate.prompt, "text to continue [standard input]")->type_name("TEXT");
  c.add_option("--prompts", generate.prompts, "a prompt on each line, all of them continued")
      ->type_name("FILE")
      ->excludes("--prompt");
  c.add_flag(
      "--json", generate.json,
      "a JSON object for each continuation: its text without the prompt, how it ended, tokens "
      "and their log-probabilities");
  c.add_option("--json-schema", generate.json_schema,
               "continuations are JSON that this JSON Schema allows, unless --max-tokens cuts them "
               "off; {} allows any")
      ->type_name("FILE");
  c.add_option("--temperature", generate.temperature, "0: always the likeliest token")
      ->check(real_range(0.0, 100.0))
      ->capture_default_str();
  c.add_option("--top-k", generate.top_k, "draw among the k likeliest tokens; 0: all")
      ->check(whole_range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--top-p", generate.top_p, "draw among the likeliest tokens with this share")
      ->check(real_range(1e-6, 1.0))
      ->capture_default_str();
  c.add_option("--min-p", generate.min_p,
               "draw among tokens at least so many times as likely as the likeliest; 0: all")
      ->check(real_range(0.0, 1.0))
      ->capture_default_str();
  c.add_option("--max-tokens", generate.max_tokens, "tokens to add at most")
      ->check(whole_range(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--min-tokens", generate.min_tokens, "no end before so many")
      ->check(whole_range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--stop", generate.stop, "end before this text; may be given again")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  c.add_option("--repetition-penalty", generate.repetition_penalty,
               "above 1: what was said, the prompt too, becomes less likely")
      ->check(real_range(0.01, 100.0))
      ->capture_default_str();
  c.add_option("--presence-penalty", generate.presence_penalty,
               "taken from the logits of what was said, the prompt not counted")
      ->check(real_range(-100.0, 100.0))
      ->capture_default_str();
  c.add_option("--frequency-penalty", generate.frequency_penalty,
               "the same, once for each time that it was said")
      ->check(real_range(-100.0, 100.0))
      ->capture_default_str();
  c.add_option("--no-repeat-ngram", generate.no_repeat_ngram,
               "no so many tokens in a row twice, the prompt counted; 0: any")
      ->check(whole_range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--suppress", generate.suppress,
               "piece that no continuation may hold; may be given again")
      ->type_name("PIECE")
      ->allow_extra_args(false);
  c.add_option("--samples", generate.samples, "continuations to write of each prompt")
      ->check(whole_range(1, 4096))
      ->capture_default_str();
  c.add_option("--seed", generate.seed, "start of the random numbers")
      ->check(whole_range(0, INT64_MAX))
      ->capture_default_str();
  c.footer(R"(Examples:
  saturate generate --model runs/lm --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95
  saturate generate --model runs/lm --prompt '1, 2, 3,' --temperature 0 --max-tokens 16
  saturate generate --model runs/lm --prompts questions.txt --json --stop '\n' > answers.jsonl
  saturate generate --model runs/lm --prompt 'A person: ' --json-schema person.json --max-tokens 256
  saturate generate --model runs/lm < prompt.txt        # the whole text is one prompt
One continuation is written while it comes. In --stop \n and \t stand for a line feed and a tab.)");
  return &c;
}

}  // namespace saturate::apps
