// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/report/diagnosis.h"

namespace saturate::observe {

constexpr int kReportSchema = 2;  // raised when a field changes its meaning or goes

// Everything of the text report and all leaves, times in nanoseconds, as indented JSON.
std::string render_json(const Diagnosis& diagnosis);

}  // namespace saturate::observe
