// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "observe/read/open_capture.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Adds the records, devices and notes of `from` to `into`, which has tables of its own.
void append_trace(Trace& into, const Trace& from);

// Calls a wait a loader's when the first thing that its thread issues afterwards is a copy to the
// device: without marks in the program that is what tells it from other waits. `trace` is sorted.
void mark_loader_waits(Trace& trace);

// The .sat files of a folder as one capture: of all processes of a program, and of the launcher,
// which have one clock. Errors    Error{invalid_argument} when there is none.
std::unique_ptr<Capture> open_capture_folder(const std::string& folder);

}  // namespace saturate::observe
