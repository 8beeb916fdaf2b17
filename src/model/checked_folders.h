// SPDX-License-Identifier: Apache-2.0
// Folders whose bytes were read and found to be those that were saved, so that a start need not read
// them again while nothing has written to their files.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace saturate::model {

// What the system says of these files of a folder: device, number, size and times of the last write and
// of the last change of each, to the nanosecond. Nothing where one cannot be asked for, or has changed
// in the last two seconds: the next change might not show, since clocks of file systems tick.
std::optional<std::string> state_of_files(const std::string& folder,
                                          const std::vector<std::string>& names);

// Whether the folder was found whole in just this state.
bool was_found_whole(const std::string& folder, const std::string& state);

// From now on it was. Keeps a small file for each folder in user_cache_folder()/checked; where that
// cannot be written nothing is kept, and the folder is read again.
void remember_whole(const std::string& folder, const std::string& state) noexcept;

}  // namespace saturate::model
