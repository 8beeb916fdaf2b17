// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the bytes, a file image is refused with Error or every view lies in
// it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate;
  const auto file = std::as_bytes(std::span(data, size));
  try {
    std::map<std::string, std::string> metadata;
    size_t covered = 0;
    for (const model::TensorView& t : model::parse_safetensors(file, "fuzz", &metadata)) {
      SAT_ASSERT(t.data >= file.data() && t.bytes <= size);
      SAT_ASSERT(t.data + t.bytes <= file.data() + size);
      covered += t.bytes;
      if (t.dtype != "F32" && t.dtype != "F16" && t.dtype != "BF16" && t.dtype != "F64") continue;
      std::vector<float> values(static_cast<size_t>(t.elements()));
      model::read_floats(t, 0, values);
    }
    SAT_ASSERT(covered <= size);
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument);
  }
  return 0;
}
