// SPDX-License-Identifier: Apache-2.0
// Any bytes are a trace or a clean error.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "observe/read/kineto.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    saturate::observe::read_kineto(*saturate::observe::memory_input(data, size, "fuzz"));
  } catch (const saturate::Error&) {
  }
  return 0;
}
