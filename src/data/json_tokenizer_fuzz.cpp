// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the bytes, a tokenizer.json is refused with Error or encodes text, its own
// among it, to ids that it knows.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "data/json_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate;
  const std::string json(reinterpret_cast<const char*>(data), size);
  try {
    const saturate::data::JsonTokenizer bpe(json, "fuzz");
    std::vector<int32_t> ids;
    bpe.encode("the <e> it's 123 \xC3\xA9", ids);
    bpe.encode(json.substr(0, 200), ids);
    for (const int32_t id : ids) SAT_ASSERT(id >= 0 && id < std::ssize(bpe.pieces()));
    bpe.decode(ids);
  } catch (const Error&) {
  }
  return 0;
}
