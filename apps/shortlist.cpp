// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "model/hf_config.h"
#include "train/published_tokenizers.h"
#include "train/shortlist_file.h"
#include "train/translation.h"

namespace saturate::apps {

CLI::App* define_shortlist(CLI::App& app, ShortlistOptions& o) {
  CLI::App& c = *app.add_subcommand(
      "shortlist", "make a table of the pieces that translations may hold, from two texts");
  c.add_option("--model", o.model, "folder whose pieces they are")->type_name("DIR")->required();
  c.add_option("--source", o.source, "text, a sentence a line")->type_name("FILE")->required();
  c.add_option("--target", o.target, "its translation, line by line")
      ->type_name("FILE")
      ->required();
  c.add_option("--output", o.output, "where the table goes; - for standard output")
      ->type_name("FILE")
      ->capture_default_str();
  c.add_option("--common", o.common, "the target's most frequent pieces, which are always there")
      ->check(whole_range(0, 1 << 24))
      ->capture_default_str();
  c.add_option("--best", o.best, "the likeliest of each piece of the source")
      ->check(whole_range(1, 1 << 24))
      ->capture_default_str();
  c.add_option("--lines", o.lines, "read so many lines at most")
      ->check(whole_range(1, 1 << 30))
      ->capture_default_str();
  c.footer(R"(Examples:
  saturate translate --model runs/ende < train.en > translated.de
  saturate shortlist --model runs/ende --source train.en --target translated.de --output ende.vmap
  saturate translate --model runs/ende --shortlist ende.vmap --device cpu < text.en > text.de
The table is CTranslate2's vmap.txt. The model's own translations make a better one than the training
text, since they say what it would say.)");
  return &c;
}

int run_shortlist(const ShortlistOptions& o) {
  const std::string folder = train::model_folder(o.model);
  const model::ModelConfig config = model::read_model_config(folder);
  if (config.kind != model::ModelKind::encoder_decoder) {
    throw Error(Errc::invalid_argument, "shortlist",
                folder + " is a language model; a shortlist is of a translation model");
  }
  const train::Tokenizers pieces = train::load_tokenizers_of(folder, config);
  std::vector<std::vector<int32_t>> source, target;
  data::TextReader source_text(o.source), target_text(o.target);
  std::string_view line, other;
  while (std::ssize(source) < o.lines) {
    const bool has_source = source_text.next(line), has_target = target_text.next(other);
    if (has_source != has_target) {
      throw Error(Errc::invalid_argument, "shortlist",
                  fmt::format("{} ends after {} and {} goes on; line by line they must be "
                              "translations of each other",
                              has_source ? o.target : o.source, counted(source.size(), "line"),
                              has_source ? o.source : o.target));
    }
    if (!has_source) break;
    pieces.source.encode(line, source.emplace_back());
    pieces.target.encode(other, target.emplace_back());
  }
  LineWriter out(o.output);
  const std::vector<std::string> table = train::make_shortlist(
      source, target, pieces.source, pieces.target, {.common = o.common, .best = o.best});
  for (const std::string& each : table) out.write(each);
  out.close();
  log_info(fmt::format("{} of the source from {}", counted(table.size() - 1, "piece"),
                       counted(source.size(), "line")));
  return 0;
}

}  // namespace saturate::apps
