// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the bytes, a file of torch.save() is refused with Error or every view lies
// in it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "model/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate;
  const auto file = std::as_bytes(std::span(data, size));
  try {
    for (const model::TensorView& t : model::parse_torch_file(file, "fuzz")) {
      SAT_ASSERT(t.data >= file.data() && t.bytes <= size);
      SAT_ASSERT(t.data + t.bytes <= file.data() + size);
    }
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument);
  }
  return 0;
}
