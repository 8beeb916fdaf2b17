// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#include "observe/report/diagnosis.h"

namespace saturate::observe {

// The report as one page that needs neither network nor JavaScript: verdict, budget, timeline,
// step times, fixes, kernels, copies. The same bytes for the same diagnosis; all text of the file
// is escaped.
std::string render_html(const Diagnosis& diagnosis);

}  // namespace saturate::observe
