// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "observe/read/input.h"
#include "observe/read/open_capture.h"

namespace saturate::observe {

constexpr size_t kSatWindowRecords = 400'000;

// Reads a .sat capture in windows of about `window` records, cut where the writer said that no
// earlier record follows. A file that ends in the middle, as when its program was killed, is
// analysed up to there, with a note. Times without records are cut out, or left to the caller in
// `pauses`. Errors    Error{invalid_argument} with the byte for damage.
enum class SatPauses : uint8_t { cut, kept };
std::unique_ptr<Capture> read_sat(std::unique_ptr<Input> input, size_t window = kSatWindowRecords,
                                  SatPauses pauses = SatPauses::cut);

}  // namespace saturate::observe
