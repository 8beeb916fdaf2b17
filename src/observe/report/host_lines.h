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

Json work_lines_json(const WorkLines& lines);  // null where no line is known
Json named_line_json(const Verdict& verdict);  // null where none is named

// Adds to the verdict the line, and to its reason, that holds more than a third of what the verdict
// is about: the idle time, the waits for the device, the copies, the products, all of the device's
// work; where that names none, of the idle time. Not where lines are known for less than half of
// it, nor where samples are so few that a third may be chance.
void name_line(Diagnosis& diagnosis);

}  // namespace saturate::observe
