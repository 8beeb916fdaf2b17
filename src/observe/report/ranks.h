// SPDX-License-Identifier: Apache-2.0
// The part of each report that is of several ranks; empty for a diagnosis of one.
#pragma once
#include <string>

#include "base/json.h"
#include "observe/report/diagnosis.h"

namespace saturate::observe {

std::string ranks_text(const Diagnosis& diagnosis);
std::string ranks_html(const Diagnosis& diagnosis);
Json ranks_json(const Diagnosis& diagnosis);  // null for a diagnosis of one

}  // namespace saturate::observe
