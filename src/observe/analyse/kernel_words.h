// SPDX-License-Identifier: Apache-2.0
// What the doctor says of a device's kernels.
#pragma once
#include <string>
#include <string_view>

#include "observe/analyse/analysis.h"

namespace saturate::observe {

// The share of the time in kernels whose names `which` takes.
double kernels_share(const DeviceAnalysis& d, bool (*which)(std::string_view));

// Of kernels for which others would do the same faster: their share of the time and which takes most, what to do instead
// of that one, and what is lost by it.
struct SlowWords {
  std::string evidence, action, caveat;
};
SlowWords slow_words(const DeviceAnalysis& d);

}  // namespace saturate::observe
