// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the bytes (a line of adapter_config.json, then a file image), an adapter is refused with Error
// or fits the model, and merging it writes inside the weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/adapter_folder.h"

namespace {

saturate::model::ModelConfig tiny() {
  saturate::model::ModelConfig c = saturate::model::model_preset("llama-110m");
  c.d_model = 8;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_size = 4;
  c.ffn = 8;
  c.decoder_layers = 1;
  c.vocab_target = 11;
  return c;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate;
  using namespace saturate::model;
  static const ModelConfig model = tiny();
  static const std::vector<TensorMapping> mapping = hf_tensor_mapping(model);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), size);
  const auto file = std::as_bytes(std::span(data, size)).subspan(std::min(line + 1, size));
  try {
    const AdapterConfig config =
        parse_adapter_config(parse_json(text.substr(0, line), "fuzz"), "fuzz");
    const Adapter adapter = parse_adapter(config, parse_safetensors(file, "fuzz"), mapping, "fuzz");
    SAT_ASSERT(!adapter.lora.empty());
    for (const ParameterShape& p : model_parameters(model)) {
      std::vector<float> weights(static_cast<size_t>(p.elements()) + 1, 1.0f);
      adapter.merge(p.name, std::span(weights).first(weights.size() - 1));
      SAT_ASSERT(weights.back() == 1.0f);
    }
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument || e.code() == Errc::unsupported);
  }
  return 0;
}
