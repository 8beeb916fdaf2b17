// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the text, a configuration is read or refused with Error, and one that
// was read survives the round trip through TOML.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    RunConfig config;
    merge_toml(config, text, "fuzz");
    RunConfig again;
    merge_toml(again, to_toml(config, TomlComments::yes), "dump");
    SAT_ASSERT(again == config);
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument);
  }
  try {
    RunConfig config;
    set_key(config, text);
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument);
  }
  return 0;
}
