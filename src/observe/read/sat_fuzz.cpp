// SPDX-License-Identifier: Apache-2.0
// Any bytes are a capture or a clean error. Checksums are made right first, or the fuzzer would
// never come past them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "observe/read/sat_format.h"
#include "observe/read/sat_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate::observe;
  std::string file(reinterpret_cast<const char*>(data), size);
  for (size_t at = sat::kMagic.size(); at + sizeof(sat::Header) <= file.size();) {
    sat::Header header;
    std::memcpy(&header, file.data() + at, sizeof header);
    const size_t payload = at + sizeof header;
    if (header.bytes > file.size() - payload) break;
    header.checksum = sat::checksum(header.kind, file.data() + payload, header.bytes);
    std::memcpy(file.data() + at, &header, sizeof header);
    at = payload + header.bytes;
  }
  try {
    const auto capture = read_sat(memory_input(file.data(), file.size(), "fuzz"), 100);
    while (capture->read_window()) {
    }
  } catch (const saturate::Error&) {
  }
  return 0;
}
