// SPDX-License-Identifier: Apache-2.0
#include "apps/command_line.h"
#include "apps/model_flags.h"
#include "base/text.h"
#include "serve/chat_template.h"

namespace saturate::apps {

CLI::App* define_serve(CLI::App& app, ServeOptions& serve) {
  CLI::App& c = *app.add_subcommand("serve", "answer over HTTP with the models of these folders");
  c.add_option("--model", serve.models,
               "folder of a run, or of a Hugging Face model, and the name that requests call it by "
               "[the folder's]; several folders after one name translate as one, as translate has "
               "it; may be given again")
      ->required()
      ->type_name("[NAME=]DIR[,DIR]")
      ->allow_extra_args(false);
  c.add_option("--weights", serve.weights,
               "what each of a model's several folders counts, as ende=0.6,0.4 [all alike]; may be "
               "given again")
      ->type_name("[NAME=]NUMBER,...")
      ->allow_extra_args(false);
  c.add_option("--adapter", serve.adapters,
               "folder of an adapter of the language model (PEFT's, or of a run with --lora), and "
               "the name that requests call it by [the folder's]; may be given again, and all are "
               "continued in one batch")
      ->type_name("[NAME=]DIR")
      ->allow_extra_args(false);
  add_device_options(c, serve.model);
  c.add_option("--host", serve.host, "address to listen on; 0.0.0.0: all of this machine")
      ->capture_default_str();
  c.add_option("--port", serve.port, "0: one that is free")
      ->check(whole_range(0, 65535))
      ->capture_default_str();
  c.add_option("--keys", serve.keys, "file with a key a line; a request must bring one of them")
      ->type_name("FILE");
  c.add_option(
       "--cors", serve.origins,
       "origin whose pages may ask from a browser, as https://example.org, or * for all; may "
       "be given again")
      ->type_name("ORIGIN")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool origin = text.find("://") != std::string::npos && text.back() != '/';
            return text == "*" || origin ? std::string()
                                         : text + " is no origin; give SCHEME://HOST[:PORT], or *";
          },
          ""))
      ->allow_extra_args(false);
  c.add_option("--languages", serve.languages,
               "of a translation model that does not say its own; may be given again")
      ->type_name("[NAME=]en-pt")
      ->allow_extra_args(false);
  auto* shortlist =
      c.add_option("--shortlist", serve.shortlists,
                   "table of the pieces that translations of a model may hold, as translate "
                   "--shortlist takes it; on the CPU, for speed; may be given again")
          ->type_name("[NAME=]FILE")
          ->allow_extra_args(false);
  add_shortlist_options(c, *shortlist, serve.shortlist_first, serve.shortlist_best);
  c.add_option("--queue", serve.queue,
               "lines or sequences that may wait, of each model; more are refused (429)")
      ->check(whole_range(1, 1 << 24))
      ->capture_default_str();
  c.add_option("--connections", serve.connections, "open at once; more are refused (503)")
      ->check(whole_range(1, 1 << 16))
      ->capture_default_str();
  c.add_option_function<std::string>(
       "--max-body",
       [&serve](const std::string& text) {
         const std::optional<int64_t> bytes = parse_bytes(text);
         if (!bytes || *bytes < 1024 || *bytes > int64_t{1} << 30)
           throw CLI::ValidationError("--max-body", text + " is no size from 1KiB to 1GiB");
         serve.max_body = *bytes;
       },
       "largest body of a request [1MiB]")
      ->type_name("SIZE");
  c.add_option("--timeout", serve.timeout, "seconds until an answer must be whole (504)")
      ->check(real_range(0.1, 1e6))
      ->capture_default_str();
  c.add_option("--drain", serve.drain,
               "seconds that accepted requests get after SIGTERM or Ctrl-C; a second one ends at "
               "once")
      ->check(real_range(0.0, 1e6))
      ->capture_default_str();
  c.add_option("--sequences", serve.sequences, "language models: continued side by side")
      ->check(whole_range(1, 4096))
      ->capture_default_str();
  c.add_option("--max-length", serve.max_length,
               "language models: most tokens of prompt and answer together")
      ->check(whole_range(2, 1 << 20))
      ->capture_default_str();
  c.add_flag("--same-bits", serve.same_bits,
             "GPU: the same answer to the last bit, whatever is computed beside it; the CPU is so "
             "without");
  c.add_option("--chat-template", serve.chat_template,
               "language models: how a chat becomes a prompt [the folder's]")
      ->check(CLI::IsMember(serve::chat_template_names()));
  add_decode_options(c, serve.decode);
  c.footer(R"(Examples:
  saturate serve --model runs/ende --languages en-de
  curl -d q='A dog runs.' -d source=en -d target=de http://localhost:8000/translate
  curl --data-binary @test.en -H 'Content-Type: text/plain' http://localhost:8000/v1/translate
  saturate serve --model lm=Qwen2.5-0.5B --adapter legal=runs/legal --adapter news=runs/news
  saturate serve --model ende=runs/ende,runs/ende-2 --weights 0.6,0.4
  saturate serve --model ende=runs/ende --model lm=runs/lm --keys keys.txt --host 0.0.0.0
http://localhost:8000 is a page to try it. /translate and /languages are LibreTranslate's,
/v1/completions, /v1/chat/completions and /v1/models OpenAI's; /health, /metrics.)");
  return &c;
}

}  // namespace saturate::apps
