// SPDX-License-Identifier: Apache-2.0
// Where a report goes: a file, or standard output.
#pragma once
#include <string>

namespace saturate::apps {

// Says before the work that its report could not be written: `path` is a folder, lies in none, or
// may not be written by this user. Nothing is made. Errors: invalid_argument, io; `where` names the
// command.
void check_report_path(const char* where, const std::string& path);

// Writes the report to `path` whole or not at all; empty or "-": to standard output. Errors: io.
void deliver_report(const char* where, const std::string& text, const std::string& path);

}  // namespace saturate::apps
