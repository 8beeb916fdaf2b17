// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/trace/trace.h"

namespace saturate::observe {

// Reads the SQLite export of Nsight Systems (nsys export --type sqlite): kernels, copies, fills,
// whole graph launches, CUDA calls, NVTX ranges, waits in system calls, the profiler's overhead.
// Columns and tables that a version lacks are noted and done without; a table that is a view or
// holds text where a number belongs is refused. Nothing in the file is run.
// Errors    Error{io} for a file that cannot be opened; Error{invalid_argument} naming table and
// row for a damaged one; Error{unsupported} in a build without SQLite. Source    the tables' own
// comments and enumerations in exported files.
Trace read_nsys(const std::string& path);

}  // namespace saturate::observe
