// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/log.h"
#include "train/translation.h"

namespace saturate::apps {

int run_translate(const TranslateOptions& o) {
  const auto begin = std::chrono::steady_clock::now();
  const train::LoadedModel model =
      train::load_model(o.model.model, o.model.device, o.model.precision);
  if (model.config.kind != model::ModelKind::encoder_decoder) {
    throw Error(Errc::invalid_argument, "translate",
                model.folder + " is a language model; use saturate generate");
  }
  const TranslateConfig decode = resolve_decoding(o.decode, model.translate);
  LineReader in(o.input);
  LineWriter out(o.output);
  const auto loaded = std::chrono::steady_clock::now();
  int64_t lines = 0;
  // Blocks keep memory constant and still give the batches sentences of like length to choose from.
  constexpr size_t kBlock = 20000;
  for (std::vector<std::string> block; in.read(kBlock, block);) {
    for (const std::string& line : train::translate_lines(model, decode, block, lines)) {
      out.write(line);
    }
    lines += static_cast<int64_t>(block.size());
    if (block.size() == kBlock) log_info(fmt::format("{} lines", lines));
  }
  out.close();
  if (!o.model.quiet) {
    const auto now = std::chrono::steady_clock::now();
    const double load = std::chrono::duration<double>(loaded - begin).count();
    const double work = std::chrono::duration<double>(now - loaded).count();
    log_info(fmt::format("{} lines in {:.2f} s ({:.0f} lines/s), model loaded in {:.2f} s", lines,
                         work, static_cast<double>(lines) / std::max(work, 1e-9), load));
  }
  return 0;
}

}  // namespace saturate::apps
