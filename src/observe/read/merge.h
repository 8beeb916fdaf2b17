// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "observe/read/open_capture.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Adds the records, devices and notes of `from` to `into`, which has tables of its own. The numbers
// of processes grow by `processes`, for those of another host may have the same.
void append_trace(Trace& into, const Trace& from, uint32_t processes = 0);

// The .sat files of a folder as one capture: of all processes of a program, and of the launcher,
// which have one clock. Errors    Error{invalid_argument} when there is none.
std::unique_ptr<Capture> open_capture_folder(const std::string& folder);
// The same of these files. Files of another folder are of another host, or as good as: their
// processes have the folder's place among the folders in the bits from kHostShift on.
constexpr uint32_t kHostShift = 22;  // Linux numbers processes below
std::unique_ptr<Capture> open_captures(const std::set<std::string>& files);

}  // namespace saturate::observe
