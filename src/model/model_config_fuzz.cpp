// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the text, a config.json is read or refused with Error, and one that
// was read survives the round trip and has a mapping of its weights.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using saturate::Json, saturate::parse_json;
  using namespace saturate::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Json json = parse_json(text, "fuzz");
    SAT_ASSERT(parse_json(json.dump(), "dump").dump() == json.dump());
    const ModelConfig config = from_hf_config(json, "fuzz");
    SAT_ASSERT(model_config_from_json(to_json(config), "dump") == config);
    from_hf_config(to_hf_config(config), "dump");
    // Many layers are legal but make one run slow.
    if (config.encoder_layers + config.decoder_layers <= 64) hf_tensor_mapping(config);
  } catch (const saturate::Error& e) {
    SAT_ASSERT(e.code() == saturate::Errc::invalid_argument);
  }
  return 0;
}
