// SPDX-License-Identifier: Apache-2.0
// The lines of the program that a device waited for, in words.
#pragma once
#include <string>

#include "base/json.h"
#include "observe/report/diagnosis.h"

namespace saturate::observe {

// Empty where no stacks were sampled.
std::string host_lines_text(const DeviceAnalysis& device);
std::string host_lines_html(const DeviceAnalysis& device);
Json host_lines_json(const HostLines& lines);  // null then

// Adds to the verdict's reason the line that holds more than a third of the idle time, where the
// host is what the device waits for at all.
void name_line(Diagnosis& diagnosis);

}  // namespace saturate::observe
