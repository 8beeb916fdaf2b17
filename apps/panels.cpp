// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "base/text.h"
#include "model/panel_file.h"
#include "runtime/parallel_for.h"
#include "train/model_weights.h"
#include "train/translation.h"

namespace saturate::apps {

CLI::App* define_panels(CLI::App& app, PanelsOptions& o) {
  CLI::App& c = *app.add_subcommand(
      "panels",
      "lay out a model's weights for this machine's CPU once, so that commands start sooner");
  c.add_option("--model", o.model, "folder of a run, or of a Hugging Face model")
      ->type_name("DIR")
      ->required();
  auto* precision = c.add_option("--precision", o.precision,
                                 "of the commands that are to start sooner: auto, fp32, bf16, int8")
                        ->check(CLI::IsMember({"auto", "fp32", "bf16", "int8"}))
                        ->capture_default_str();
  c.add_flag("--remove", o.remove, "remove what was laid out, of every precision")
      ->excludes(precision);
  c.add_option("--threads", o.threads,
               "threads on the CPU [SATURATE_THREADS, or as many as there are CPUs]")
      ->check(whole_range(1, kMostCpuThreads));
  c.footer(R"(Examples:
  saturate panels --model runs/ende
  saturate translate --model runs/ende --device cpu < text.en > text.de   # maps what was laid out
  saturate panels --model runs/ende --remove
It takes as much disk as the weights do in memory, in $SATURATE_CACHE/panels (~/.cache/saturate/panels).
Results are the same to the last bit; texts of more than some 300 lines are faster without. When the folder changes it is read again as without, until
saturate panels is run once more; SATURATE_VERBOSE=load says which was done.)");
  return &c;
}

int run_panels(const PanelsOptions& o) {
  if (o.threads) set_cpu_threads(*o.threads);
  const std::string folder = train::model_folder(o.model);
  if (o.remove) {
    fmt::print("{}: {} removed\n", folder,
               format_bytes(static_cast<double>(model::forget_panels(folder))));
    return 0;
  }
  const model::KeptPanels kept = train::keep_panels(folder, o.precision);
  fmt::print("{}: {} in {}\n", folder, format_bytes(static_cast<double>(kept.bytes)), kept.path);
  return 0;
}

}  // namespace saturate::apps
