// SPDX-License-Identifier: Apache-2.0
// Disk, network and locks: what a watched program did with files, peers and locks, and what of it the
// device waited for.
#pragma once
#include <string>

#include "base/json.h"
#include "observe/report/diagnosis.h"

namespace saturate::observe {

// Empty where nothing worth a line was seen.
std::string host_uses_text(const Diagnosis& diagnosis);
std::string host_uses_html(const Diagnosis& diagnosis);
Json host_uses_json(const Diagnosis& diagnosis);
// The use that most of a verdict's waiting is for, in a few words; "" when no one is most of it.
std::string main_host_use(const Diagnosis& diagnosis);

}  // namespace saturate::observe
