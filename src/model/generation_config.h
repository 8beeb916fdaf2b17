// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "base/config.h"
#include "base/json.h"
#include "model/model_config.h"

namespace saturate::model {

// generation_config.json: the special ids and, for a model that translates, how it decodes. Beam
// and length penalty are Hugging Face's num_beams and length_penalty, which mean the same; the rest
// lies under "saturate".
Json to_generation_config(const ModelConfig& config, const TranslateConfig& translate);

// The fields of a generation_config.json (of the object `json`) that say how transformers draws tokens,
// with plain values, as one JSON object; "" without. Source: transformers' GenerationConfig.
std::string sampling_of(const Json& json);

// How the model in `folder` decodes; what its generation_config.json does not say, or no such file,
// leaves the default. A value out of the key's range is reported and left out. Errors: io and
// invalid_argument for a file that is no JSON object.
TranslateConfig read_translate_config(const std::string& folder);

// A field of a translation model's generation_config.json that transformers would obey and that is not
// taken from there: `flag` of `saturate translate` does the same, empty where none does.
struct UnusedField {
  std::string name, flag;
  double value;
};
// Those with another value than transformers' usual one. Errors: as read_translate_config.
std::vector<UnusedField> unused_decoding(const std::string& folder);

}  // namespace saturate::model
