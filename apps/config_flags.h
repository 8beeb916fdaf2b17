// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "base/config.h"

namespace saturate::apps {

// A RunConfig as the command line gives it: file first, then flags, then --set, each over the last.
struct ConfigFlags {
  std::string file;
  std::vector<std::string> settings;   // --set
  std::vector<std::string> shorthand;  // "key=value" from flags such as --lr
  std::vector<std::string> train;
  std::vector<std::string> valid, test;  // of every flag, one after the other with "" between

  // `config`: what holds where nothing is given. Errors: those of merge_toml_file, set_key and
  // train::named_text.
  RunConfig build(RunConfig config = {}) const;
};

}  // namespace saturate::apps
