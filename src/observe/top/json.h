// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/system/snapshot.h"

namespace saturate::observe {

constexpr int kTopSchema = 1;  // raised when a field changes its meaning or goes

// Everything of a snapshot. What is not known is null, never 0. Units are in the names; shares are
// 0 to 1, and what ends in _percent is as the driver gives it.
std::string snapshot_json(const Snapshot& s, bool indented);

// The same for Prometheus (text format 0.0.4), names saturate_*; what is not known has no line.
std::string snapshot_prometheus(const Snapshot& s);

}  // namespace saturate::observe
