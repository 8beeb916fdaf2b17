// SPDX-License-Identifier: Apache-2.0
// manifest.json: size and checksum of every other file of a folder.
#pragma once
#include <optional>
#include <string>

namespace saturate::train {

// Lists the files that are in `folder` and in folders below. Errors: io.
void write_manifest(const std::string& folder);

// The first file that is missing, of another size or content than listed, or the reason why the
// list cannot be read; nothing when all is well. Reads every byte; never throws Error.
std::optional<std::string> manifest_damage(const std::string& folder);

}  // namespace saturate::train
