// SPDX-License-Identifier: Apache-2.0
// Any bytes are a trace or a clean error, and the same one by the quick reader of events, by the
// careful one and in small chunks.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "observe/read/kineto.h"

namespace {

std::string outcome(const uint8_t* data, size_t size, saturate::observe::KinetoOptions options) {
  using namespace saturate::observe;
  try {
    const Trace t = read_kineto(*memory_input(data, size, "fuzz"), options);
    uint64_t sum = static_cast<uint64_t>(t.malformed);
    for (const DeviceOp& o : t.ops)
      sum = sum * 31 + static_cast<uint64_t>(o.end_ns ^ o.size ^ o.correlation);
    for (const HostCall& c : t.calls)
      sum = sum * 31 + static_cast<uint64_t>(c.end_ns ^ c.correlation);
    for (const HostSpan& s : t.spans) sum = sum * 31 + static_cast<uint64_t>(s.end_ns);
    return std::to_string(sum);
  } catch (const saturate::Error& e) {
    return e.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string careful = outcome(data, size, {.threads = 1, .careful = true});
  if (outcome(data, size, {.threads = 1}) != careful ||
      outcome(data, size, {.threads = 1, .chunk_bytes = 32}) != careful)
    std::abort();
  return 0;
}
