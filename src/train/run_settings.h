// SPDX-License-Identifier: Apache-2.0
// config.toml of a run folder: what the run was started with, so that it can be resumed with
// nothing but its folder.
#pragma once
#include <optional>
#include <string>

#include "base/config.h"

namespace saturate::train {

// What the run in `folder` was last started with, but for what is of one start (out, resume,
// quiet); nothing when the folder holds no config.toml. Errors: io; invalid_argument with file and
// line for a file that is no configuration.
std::optional<RunConfig> read_run_settings(const std::string& folder);

// Paths are written as absolute ones, so that a run can be resumed from any folder. Errors: io.
void write_run_settings(const std::string& folder, const RunConfig& config);

// Refuses what a run cannot take up any more: settings of the vocabulary that it made. Errors:
// invalid_argument, naming the setting and both values.
void check_tokenizer_settings(const std::string& folder, const RunConfig& now);

// What the run goes on with that it had not when it was last started: "optimizer.lr 0.001 (was
// 0.002), ..."; empty when nothing changed.
std::string changed_settings(const std::string& folder, const RunConfig& now);

// How a model's text is read where nobody says it: data.format, and the key of JSONL where there is
// one; both empty where that is not known.
struct TextForm {
  std::string format, key;
};
// Of the run that `model` is, or whose model/ or checkpoint it is; of a folder that quantize made, what
// it kept of that. Errors: those of read_run_settings and read_json_file.
TextForm text_form_of(const std::string& model);

// Refuses to resume a run whose text is gone, unless it was given anew. Errors: io with the path
// and the flag that says where it is now.
void check_text_is_there(const RunConfig& config);

}  // namespace saturate::train
