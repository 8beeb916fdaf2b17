// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "observe/read/open_capture.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Adds the records, devices and notes of `from` to `into`, which has tables of its own.
void append_trace(Trace& into, const Trace& from);

// The .sat files of a folder as one capture: of all processes of a program, and of the launcher,
// which have one clock. Errors    Error{invalid_argument} when there is none.
std::unique_ptr<Capture> open_capture_folder(const std::string& folder);
// The same of these files.
std::unique_ptr<Capture> open_captures(const std::set<std::string>& files);

}  // namespace saturate::observe
