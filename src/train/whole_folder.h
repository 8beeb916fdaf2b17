// SPDX-License-Identifier: Apache-2.0
// Folders that are either the old content or the whole new content, whatever happens in between.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/together.h"

namespace saturate::train {

// Where write_whole_folder fills a new folder before it takes its place: a hidden name beside it.
// One that a killed writer left may be removed by who holds the run.
std::string unfinished_folder(const std::string& folder);

// Fills an empty folder by `write`, lists its files in manifest.json with `step`, syncs all of it
// and puts it in the place of `folder`, whose content until then goes as a whole. Leftovers of a
// killed writer are removed first. One writer per folder at a time. Errors: io, and whatever
// `write` throws; `folder` is as it was then and nothing of the new one remains.
// Ranks that share the folder write it together: `write` runs on each, and what it throws must be
// thrown on all (Together); the first rank does what is done once, all take part in the checksums.
void write_whole_folder(const std::string& folder, int64_t step,
                        const std::function<void(const std::string& folder)>& write,
                        const Together& ranks = {});

// Whether all ranks have one folder there: each writes into one file of it, as checkpoints do.
// Collective. Errors, on all ranks: invalid_argument naming the rank and host that have another one,
// and the way out; io.
void require_shared_folder(const std::string& folder, const Together& ranks);

// Copies the files that lie directly in a folder, but for its manifest.json. Errors: io.
void copy_direct_files(const std::string& from, const std::string& to);

}  // namespace saturate::train
