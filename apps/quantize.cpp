// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <span>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/model_flags.h"
#include "apps/text_io.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "model/hf_config.h"
#include "runtime/parallel_for.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/line_translator.h"
#include "train/quantize.h"

namespace saturate::apps {
namespace {

// What the model of `folder` makes of the test set on the CPU; `precision` as of translate.
void print_scores(const char* when, const std::string& folder, const std::string& precision,
                  const QuantizeOptions& o, std::span<const std::string> source,
                  std::span<const std::string> reference) {
  train::LoadHooks hooks;
  hooks.source_language = o.decode.source_language;
  hooks.target_language = o.decode.target_language;
  const train::LoadedModel model = train::load_model(folder, "cpu", precision, hooks);
  require_languages(model, false);
  const std::vector<std::string> references(reference.begin(), reference.end());
  const std::vector<std::string> found =
      train::translate_lines(model, resolve_decoding(o.decode, model.translate), source);
  fmt::print("{}: {}\n{}: {}\n", when, train::corpus_bleu(found, references).to_string(), when,
             train::corpus_chrf(found, references).to_string());
}

}  // namespace

CLI::App* add_quantize_command(CLI::App& app, QuantizeOptions& o) {
  CLI::App* const c = app.add_subcommand("quantize", "store a model's matrices in 8 bits");
  c->add_option("--model", o.model, "folder of a run, or of a Hugging Face model")
      ->type_name("DIR")
      ->required();
  c->add_option("--out", o.out, "folder to write; it must not be there yet")
      ->type_name("DIR")
      ->required();
  c->add_option(
       "--test", o.test,
       "source and reference, to translate and score before and after (models that translate)")
      ->type_name("FILE FILE")
      ->expected(2);
  c->add_option("--threads", o.threads,
                "threads on the CPU [SATURATE_THREADS, or as many as there are CPUs]")
      ->check(whole_range(1, kMostCpuThreads));
  add_decode_options(*c, o.decode);
  c->footer(R"(Examples:
  saturate quantize --model runs/ende --out ende-int8 --test test.en test.de
  saturate translate --model ende-int8 --device cpu < text.en > text.de
A scale for each output, the largest weight / 127. On the CPU the folder computes in 8 bits, with
--precision fp32 in fp32; on a GPU its weights are read as any others.)");
  return c;
}

int run_quantize(const QuantizeOptions& o) {
  if (o.threads) set_cpu_threads(*o.threads);
  std::vector<std::string> source, reference;
  if (!o.test.empty()) {
    source = read_lines(o.test.at(0)), reference = read_lines(o.test.at(1));
    if (source.size() != reference.size()) {
      throw Error(
          Errc::invalid_argument, "quantize",
          fmt::format("{} has {} and {} has {}: line i of one must belong to line i "
                      "of the other; align the files",
                      o.test[0], counted(source.size(), "line"), o.test[1], reference.size()));
    }
  }
  const std::string from = train::model_folder(o.model);
  if (!o.test.empty() && model::read_model_config(from).kind != model::ModelKind::encoder_decoder) {
    throw Error(Errc::invalid_argument, "quantize",
                from +
                    " is a language model, and --test is for models that translate; leave it "
                    "out and score both folders with saturate eval");
  }
  const train::QuantizedFolder made = train::quantize_folder(from, o.out);
  const auto mega = [](uint64_t bytes) { return static_cast<double>(bytes) * 1e-6; };
  fmt::print("weights: {:.1f} MB before, {:.1f} MB after ({:.1f}%), {} matrices in 8 bits\n",
             mega(made.bytes_before), mega(made.bytes_after),
             100 * mega(made.bytes_after) / mega(made.bytes_before), made.matrices);
  const auto share = [&](uint64_t bytes) {
    return 100 * static_cast<double>(bytes) / static_cast<double>(made.bytes_after);
  };
  fmt::print(
      "of these: {:.1f}% matrices, the vocabulary's too; {:.1f}% their scales, in fp32; {:.1f}% "
      "what stayed as it was (norms, biases, positions); {:.1f}% names\n",
      share(made.matrix_bytes), share(made.scale_bytes), share(made.kept_bytes),
      share(made.bytes_after - made.matrix_bytes - made.scale_bytes - made.kept_bytes));
  if (!o.test.empty()) {
    print_scores("before", from, "fp32", o, source, reference);
    print_scores("after", o.out, "int8", o, source, reference);
  }
  const bool translates = model::read_model_config(from).kind == model::ModelKind::encoder_decoder;
  log_info(fmt::format("next: saturate {} --model {} --device cpu",
                       translates ? "translate" : "generate", o.out));
  return 0;
}

}  // namespace saturate::apps
