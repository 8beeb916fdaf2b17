// SPDX-License-Identifier: Apache-2.0
// What flags of `saturate serve` say of each model.
#pragma once
#include <string>
#include <vector>

#include "apps/commands.h"
#include "train/translation.h"

namespace saturate::apps {

// A model of --model: [NAME=]DIR, or NAME=DIR,DIR,..., several that translate as one.
struct NamedModel {
  std::string name;
  std::vector<std::string> given;         // at least one path
  std::vector<train::ModelPlace> places;  // of each
  bool is_language_model = false;
  std::vector<double> weights = {};  // of several; none: all alike
  std::string shortlist = {};        // file, or ""

  bool is_ensemble() const { return given.size() > 1; }
};
// All of --model with what --weights and --shortlist say of them; a path that exists is a folder
// whatever its name holds. Reads config.json alone. Errors: invalid_argument for several folders without
// a name, and for a flag that names no model that it could be of; those of train::model_place().
std::vector<NamedModel> read_models(const ServeOptions& o);

// An adapter of --adapter: [NAME=]DIR.
struct NamedFolder {
  std::string name, folder;
};
NamedFolder parse_adapter(const std::string& text);

// What is called so whose flag gives no name: the folder's last part.
std::string name_of_folder(const std::string& folder);

}  // namespace saturate::apps
