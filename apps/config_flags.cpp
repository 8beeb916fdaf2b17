// SPDX-License-Identifier: Apache-2.0
#include "apps/config_flags.h"

#include <utility>

#include "train/named_text.h"

namespace saturate::apps {
namespace {

// The files of each flag, which "" keeps apart.
std::vector<std::vector<std::string>> text_sets(const std::vector<std::string>& given) {
  std::vector<std::vector<std::string>> sets;
  bool next = true;
  for (const std::string& file : given) {
    if (!file.empty()) {
      if (std::exchange(next, false)) sets.emplace_back();
      sets.back().push_back(file);
    } else {
      next = true;
    }
  }
  return sets;
}

}  // namespace

RunConfig ConfigFlags::build(RunConfig config) const {
  if (!file.empty()) merge_toml_file(config, file);
  for (const std::string& s : shorthand) set_key(config, s);
  if (!train.empty()) config.data.train = train;
  if (const auto sets = text_sets(valid); !sets.empty()) {
    const train::NamedText first = train::named_text(sets[0]);
    config.data.valid = first.paths;
    config.data.valid_name = train::has_name(sets[0][0]) ? first.name : DataConfig{}.valid_name;
    std::vector<train::NamedText> more;
    for (size_t i = 1; i < sets.size(); ++i) more.push_back(train::named_text(sets[i]));
    config.data.more_valid = train::elements_of(more, {config.data.valid_name});
  }
  if (!test.empty()) {
    std::vector<train::NamedText> sets;
    for (const auto& files : text_sets(test)) sets.push_back(train::named_text(files));
    config.data.test = train::elements_of(sets);
  }
  for (const std::string& s : settings) set_key(config, s);
  return config;
}

}  // namespace saturate::apps
