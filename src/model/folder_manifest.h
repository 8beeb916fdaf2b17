// SPDX-License-Identifier: Apache-2.0
// manifest.json: size and XXH3 of every other file of a folder, so that a changed one shows.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace saturate::model {

// Lists the files that are in `folder` and in folders below. `step`: of the training run, for who
// must know which weights these are. Errors: io.
void write_manifest(const std::string& folder, int64_t step);

// The first file that is missing, of another size or content than listed, or the reason why the
// list cannot be read; nothing when all is well. Reads every byte; never throws Error.
std::optional<std::string> manifest_damage(const std::string& folder);

// The step that write_manifest was given; nothing when the manifest does not tell.
std::optional<int64_t> manifest_step(const std::string& folder);

// Checks the files that lie directly in a model folder, those that loading a model reads. Folders
// without manifest.json, or with one of another kind, come from elsewhere and are taken as they
// are. Errors: invalid_argument naming the file, how it differs and the way out.
void check_model_files(const std::string& folder);

}  // namespace saturate::model
