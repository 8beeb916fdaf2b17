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
  c.add_option("--temperature", generate.temperature, "0: always the likeliest token")
      ->check(real_range(0.0, 100.0))
      ->capture_default_str();
  c.add_option("--top-k", generate.top_k, "draw among the k likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--top-p", generate.top_p, "draw among the likeliest tokens with this share")
      ->check(real_range(1e-6, 1.0))
      ->capture_default_str();
  c.add_option("--max-tokens", generate.max_tokens, "tokens to add at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--samples", generate.samples, "continuations to write")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  c.add_option("--seed", generate.seed, "start of the random numbers")
      ->check(CLI::Range(int64_t{0}, INT64_MAX))
      ->capture_default_str();
  c.footer(R"(Examples:
  saturate generate --model runs/lm --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95
  saturate generate --model runs/lm --prompt '1, 2, 3,' --temperature 0 --max-tokens 16
  saturate generate --model runs/lm < prompt.txt        # the whole text is one prompt)");
  return &c;
}

}  // namespace saturate::apps
