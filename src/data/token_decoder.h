// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"

namespace saturate::data {

// What makes text of pieces: the member "decoder" of a tokenizer.json. Immutable.
// Source: huggingface/tokenizers, decoders.
class TokenDecoder {
 public:
  // Errors: invalid_argument for damage, unsupported for a kind that this does not know, naming `where`.
  TokenDecoder(const Json& json, const std::string& where);
  std::string text_of(std::vector<std::string> pieces) const;

 private:
  using Step = std::function<void(std::vector<std::string>&)>;
  void read(const Json& json, const std::string& where);
  std::vector<Step> steps_;
  bool spaced_ = false;  // without any decoder a space stands between pieces
};

}  // namespace saturate::data
