// SPDX-License-Identifier: Apache-2.0
// `saturate quickstart-data`: writes the quickstart's corpus.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apps/commands.h"
#include "apps/quickstart_grammar.h"
#include "base/error.h"
#include "base/log.h"

namespace saturate::apps {
namespace {

void write_side(const std::string& path, const std::vector<Pair>& pairs, std::string Pair::*side) {
  std::ofstream file(path, std::ios::binary);
  for (const Pair& pair : pairs) file << pair.*side << '\n';
  if (!file.flush()) {
    throw Error(Errc::io, "quickstart-data",
                fmt::format("{}: cannot write; is the disk full?", path));
  }
}

void write_set(const std::string& folder, const char* name, const std::vector<Pair>& pairs) {
  write_side(fmt::format("{}/{}.en", folder, name), pairs, &Pair::english);
  write_side(fmt::format("{}/{}.pt", folder, name), pairs, &Pair::portuguese);
}

}  // namespace

int run_quickstart_data(const QuickstartDataOptions& options) {
  std::error_code failed;
  std::filesystem::create_directories(options.out, failed);
  if (failed) {
    throw Error(Errc::io, "quickstart-data", fmt::format("{}: {}", options.out, failed.message()));
  }
  const QuickstartCorpus corpus =
      make_quickstart_corpus(options.pairs, options.held_out, options.seed);
  write_set(options.out, "train", corpus.train);
  write_set(options.out, "valid", corpus.valid);
  write_set(options.out, "test", corpus.test);
  log_info(
      fmt::format("{}: {} training, {} validation and {} held-out pairs, English to Portuguese",
                  options.out, corpus.train.size(), corpus.valid.size(), corpus.test.size()));
  return 0;
}

}  // namespace saturate::apps
