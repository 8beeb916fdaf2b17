// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json does to text before its model: normalizers and pre-tokenizers.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace saturate::data {

// A stretch of text, and whether it begins where the whole text began.
struct Segment {
  std::string text;
  bool first = false;
};

// Immutable; may be used from several threads.
class TextSteps {
 public:
  // From the members "normalizer" and "pre_tokenizer", null for none. Errors: invalid_argument for
  // damage, unsupported for a kind that this does not know, naming `where`.
  TextSteps(const Json& normalizer, const Json& pre_tokenizer, const std::string& where);

  bool byte_level() const noexcept {
    return byte_level_;
  }  // the model's characters stand for bytes
  // Needs UTF-8. Errors: invalid_argument for text beyond the limits of a pattern.
  std::string normalise(std::string_view text) const;
  // The words of a segment, which go to the model one by one.
  std::vector<Segment> split(Segment segment) const;

 private:
  using Normaliser = std::function<std::string(std::string)>;
  using Splitter = std::function<void(const Segment&, std::vector<Segment>&)>;
  void read_normalizer(const Json& json, const std::string& where);
  void read_replace(const Json& json, const std::string& where);
  void read_pre_tokenizer(const Json& json, const std::string& where);
  void read_split(const Json& json, const std::string& where);
  void read_metaspace(const Json& json, const std::string& where);

  std::vector<Normaliser> normalisers_;
  std::vector<Splitter> splitters_;
  bool byte_level_ = false;
};

// Members of a tokenizer.json, with errors that say where. What is absent or null has the type "none".
const Json& member_of(const Json& of, const char* key, const std::string& where);
std::string text_of(const Json& json, const std::string& where);
std::string type_of(const Json& json, const std::string& where);
bool is_true(const Json& of, const char* key);

}  // namespace saturate::data
