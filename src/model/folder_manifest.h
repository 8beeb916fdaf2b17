// SPDX-License-Identifier: Apache-2.0
// manifest.json: size and XXH3 of every other file of a folder, so that a changed one shows. Files of
// more than kHashBytes have a list of them, one for each kHashBytes, so that ranks can share the work.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/held_runs.h"

namespace saturate::model {

constexpr uint64_t kHashBytes = uint64_t{16} << 20;

// Lists the files that are in `folder` and in folders below. `step`: of the training run, for who
// must know which weights these are. Errors: io.
void write_manifest(const std::string& folder, int64_t step);

// The same in parts. What there is to hash, in one order; then the hash of every piece that belongs
// to a share, 0 for the others; the sums of these over all shares are what is written.
struct ListedFile {
  std::string name;  // from the folder on
  uint64_t bytes = 0;
};
std::vector<ListedFile> files_to_list(const std::string& folder);
std::vector<uint64_t> hashes_of(const std::string& folder, const std::vector<ListedFile>& files,
                                Share share);
void write_manifest(const std::string& folder, int64_t step, const std::vector<ListedFile>& files,
                    const std::vector<uint64_t>& hashes);

// The first file that is missing, of another size or content than listed, or the reason why the
// list cannot be read; nothing when all is well. Reads every byte, or those of a share; never throws
// Error.
std::optional<std::string> manifest_damage(const std::string& folder, Share share = {});

// The step that write_manifest was given; nothing when the manifest does not tell.
std::optional<int64_t> manifest_step(const std::string& folder);

// Checks the files that lie directly in a model folder, those that loading a model reads. Folders
// without manifest.json, or with one of another kind, come from elsewhere and are taken as they
// are. A folder of 16 MiB or more that was found whole is not read again until the system says that one
// of these files has changed (checked_folders.h). Errors: invalid_argument naming the file, how it differs and the way out.
void check_model_files(const std::string& folder);

}  // namespace saturate::model
