// SPDX-License-Identifier: Apache-2.0
#include "apps/model_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "base/text.h"
#include "runtime/parallel_for.h"

namespace saturate::apps {
namespace {

// The spelling alone, before anything is read: whether the GPU is there only its driver knows, which starts
// while the model is read.
std::string device_problem(const std::string& text) {
  const std::string_view number = std::string_view(text).substr(std::min(text.size(), size_t{5}));
  const bool numbered = text.starts_with("cuda:") && !number.empty() && number.size() < 5 &&
                        number.find_first_not_of("0123456789") == std::string_view::npos;
  if (text == "auto" || text == "cpu" || text == "cuda" || numbered) return {};
  return text + " is no device; give auto, cpu, cuda or cuda:N";
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& model) {
  app.add_option("--model", model.model, "folder of a run, or of a Hugging Face model")
      ->type_name("DIR");
  app.add_option("--adapter", model.adapter,
                 "folder of an adapter of that model, as PEFT or train --lora writes it")
      ->type_name("DIR");
  add_device_options(app, model);
}

void add_device_options(CLI::App& app, ModelOptions& model) {
  app.add_option("--device", model.device, "auto, cpu, cuda or cuda:N")
      ->check(CLI::Validator(device_problem, ""))
      ->capture_default_str();
  app.add_option("--precision", model.precision, "auto, fp32, bf16, fp16 (GPUs), int8 (CPU)")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16", "int8"}))
      ->capture_default_str();
  app.add_option("--threads", model.threads,
                 "threads on the CPU [SATURATE_THREADS, or as many as there are CPUs]")
      ->check(whole_range(1, kMostCpuThreads));
  app.add_flag("--ids", model.ids,
               "lines are token ids, as another program's tokenizer made them, end included");
  app.add_flag("--quiet", model.quiet, "no progress lines");
}

void add_decode_options(CLI::App& app, DecodeOptions& decode) {
  // Without a flag the model's own value is used, that of [translate] in its run's configuration.
  app.add_option("--beam", decode.beam, "beam width; 1: greedy [the model's]")
      ->check(whole_range(1, 64));
  app.add_option("--length-penalty", decode.length_penalty,
                 "scores are divided by length to this power [the model's]")
      ->check(real_range(0.0, 10.0));
  app.add_option("--batch-tokens", decode.batch_tokens,
                 "source tokens translated at once [the model's]")
      ->check(whole_range(16, 1 << 24));
  app.add_option("--source-lang", decode.source_language,
                 "multilingual models: the language of the text, as the model calls it (eng_Latn, "
                 "en_XX, en) or by two letters [the model's]")
      ->type_name("CODE");
  app.add_option("--target-lang", decode.target_language,
                 "multilingual models: the language to translate to; of OPUS-MT the xx of >>xx<<")
      ->type_name("CODE");
}

void add_shortlist_options(CLI::App& app, CLI::Option& shortlist, int64_t& first, int64_t& best) {
  app.add_option("--shortlist-first", first,
                 "of Marian's: the so many first pieces of the vocabulary are always there")
      ->check(whole_range(0, 1 << 24))
      ->needs(&shortlist)
      ->capture_default_str();
  app.add_option("--shortlist-best", best,
                 "of Marian's: the so many likeliest of each piece of the source")
      ->check(whole_range(1, 1 << 24))
      ->needs(&shortlist)
      ->capture_default_str();
}

namespace {

void add_format_options(CLI::App& app, ExportOptions& o) {
  app.add_option("--dtype", o.dtype, "type of the weights that are written")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--max-shard-size",
         [&o](const std::string& text) {
           o.max_shard = parse_bytes(text);
           if (!o.max_shard || *o.max_shard < 1)
             throw CLI::ValidationError("--max-shard-size", text + " is no size, as 5GB or 512MiB");
         },
         "largest file of weights; what is larger becomes several [one file]")
      ->type_name("SIZE");
}

}  // namespace

CLI::App* define_merge(CLI::App& app, ExportOptions& merge) {
  CLI::App* const command =
      app.add_subcommand("merge", "add an adapter to its model and write the sum");
  command
      ->add_option("--model", merge.model, "the model, or the run or folder of the adapter itself")
      ->required()
      ->type_name("DIR");
  command->add_option("--adapter", merge.adapter, "folder of the adapter")->type_name("DIR");
  command->add_option("--out", merge.out, "folder to write; it must hold nothing yet")
      ->required()
      ->type_name("DIR");
  add_format_options(*command, merge);
  command->footer(R"(Examples:
  saturate merge --model opus-mt --adapter adapters/legal --out models/legal
  saturate merge --model runs/tuned --out models/tuned       # a run of train --lora)");
  return command;
}

CLI::App* define_export(CLI::App& app, ExportOptions& o) {
  CLI::App* const command =
      app.add_subcommand("export", "write a model for transformers, CTranslate2 and others");
  command->add_option("--model", o.model, "folder of a run or model, in any form that is read here")
      ->required()
      ->type_name("DIR");
  CLI::Option* const adapter =
      command->add_option("--adapter", o.adapter, "folder of an adapter to add to it")
          ->type_name("DIR");
  command
      ->add_option(
          "--average", o.others,
          "further checkpoints or models of the same shape and vocabulary; the mean of all "
          "weights is written")
      ->type_name("DIR ...")
      ->excludes(adapter);
  command->add_option("--out", o.out, "folder to write; it must hold nothing yet")
      ->required()
      ->type_name("DIR");
  add_format_options(*command, o);
  command->footer(R"(Examples:
  saturate export --model runs/ende --out ende-bf16 --dtype bf16
  saturate export --model runs/ende/checkpoints/step-00010000 --out averaged \
    --average runs/ende/checkpoints/step-00008000 runs/ende/checkpoints/step-00009000
  saturate export --model runs/lm --out lm --dtype bf16 --max-shard-size 2GB
Sums are as --dtype fp32 has them, rounded once. The tokenizer's files go along.)");
  return command;
}

}  // namespace saturate::apps
