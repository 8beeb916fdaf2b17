// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the bytes, an .npz is refused with Error or every view lies in it or in
// what was unpacked; and a Marian model is one that can be read, or refused with Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "model/marian_npz.h"
#include "model/npz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate;
  const auto file = std::as_bytes(std::span(data, size));
  std::deque<std::vector<std::byte>> unpacked;
  try {
    const std::vector<model::TensorView> tensors = model::parse_npz(file, "fuzz", unpacked);
    for (const model::TensorView& t : tensors) {
      const auto lies_in = [&t](std::span<const std::byte> place) {
        return t.data >= place.data() && t.data + t.bytes <= place.data() + place.size();
      };
      SAT_ASSERT(lies_in(file) || std::ranges::any_of(unpacked, lies_in));
    }
    const model::ModelConfig config = model::marian_config(tensors, "fuzz");
    model::validate(config);
    SAT_ASSERT(!model::marian_mapping(tensors, config).empty());
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument || e.code() == Errc::unsupported);
  }
  return 0;
}
