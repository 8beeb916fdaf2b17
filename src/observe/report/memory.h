// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/report/diagnosis.h"

namespace saturate::observe {

// Growth that is worth a word: both by its share and by its size.
constexpr double kMemoryDrift = 1.05, kMemoryDriftBytes = 16 << 20;

// Plain text: what the allocator and the GPUs held at most, a line each, and a DRIFT line where it
// keeps growing; empty where nothing is known.
std::string memory_text(const Diagnosis& diagnosis);
// The DRIFT line's sentence, or empty.
std::string memory_drift(const Diagnosis& diagnosis);
// A section of the page with a picture, or empty.
std::string memory_html(const Diagnosis& diagnosis);

}  // namespace saturate::observe
