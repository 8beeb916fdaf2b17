// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "data/byte_source.h"

namespace saturate::data {

// Whole lines of a file, about `bytes` of them: blocks spread evenly over a plain file, at places
// that `seed` decides; the beginning of a compressed one, which cannot be read from the middle. All
// of a file that has no more. A function of (file, bytes, seed). Errors: as open_byte_source.
std::unique_ptr<ByteSource> open_sampled_source(const std::string& path, int64_t bytes,
                                                uint64_t seed);

}  // namespace saturate::data
