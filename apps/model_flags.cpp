// SPDX-License-Identifier: Apache-2.0
#include "apps/model_flags.h"

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "runtime/parallel_for.h"

namespace saturate::apps {

void add_model_options(CLI::App& app, ModelOptions& model) {
  app.add_option("--model", model.model, "folder of a run, or of a Hugging Face model")
      ->type_name("DIR");
  app.add_option("--adapter", model.adapter,
                 "folder of an adapter of that model, as PEFT or train --lora writes it")
      ->type_name("DIR");
  add_device_options(app, model);
}

void add_device_options(CLI::App& app, ModelOptions& model) {
  app.add_option("--device", model.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--precision", model.precision, "auto, fp32, bf16, fp16, or int8 on the CPU")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16", "int8"}))
      ->capture_default_str();
  app.add_option("--threads", model.threads,
                 "threads on the CPU [SATURATE_THREADS, or as many as there are CPUs]")
      ->check(CLI::Range(1, kMostCpuThreads));
  app.add_flag("--ids", model.ids,
               "lines are token ids, as another program's tokenizer made them, end included");
  app.add_flag("--quiet", model.quiet, "no progress lines");
}

void add_decode_options(CLI::App& app, DecodeOptions& decode) {
  // Without a flag the model's own value is used, that of [translate] in its run's configuration.
  app.add_option("--beam", decode.beam, "beam width; 1: greedy [the model's]")
      ->check(CLI::Range(1, 64));
  app.add_option("--length-penalty", decode.length_penalty,
                 "scores are divided by length to this power [the model's]")
      ->check(real_range(0.0, 10.0));
  app.add_option("--batch-tokens", decode.batch_tokens,
                 "source tokens translated at once [the model's]")
      ->check(CLI::Range(16, 1 << 24));
}

CLI::App* define_merge(CLI::App& app, MergeOptions& merge) {
  CLI::App* const command =
      app.add_subcommand("merge", "add an adapter to its model and write the sum");
  command
      ->add_option("--model", merge.model, "the model, or the run or folder of the adapter itself")
      ->required()
      ->type_name("DIR");
  command->add_option("--adapter", merge.adapter, "folder of the adapter")->type_name("DIR");
  command->add_option("--out", merge.out, "folder to write, with weights in fp32")
      ->required()
      ->type_name("DIR");
  command->footer(R"(Examples:
  saturate merge --model opus-mt --adapter adapters/legal --out models/legal
  saturate merge --model runs/tuned --out models/tuned       # a run of train --lora)");
  return command;
}

}  // namespace saturate::apps
