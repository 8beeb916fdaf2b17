// SPDX-License-Identifier: Apache-2.0
#include "observe/read/sat_format.h"

#include <xxhash.h>

namespace saturate::observe::sat {

uint64_t checksum(uint32_t seed, const void* payload, size_t bytes) {
  return XXH3_64bits_withSeed(payload, bytes, seed);
}

}  // namespace saturate::observe::sat
