// SPDX-License-Identifier: Apache-2.0
// What LibreTranslate's /translate takes and answers, and the batch endpoint's own form.  Source:
// LibreTranslate's API (libretranslate/app.py).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace saturate::serve {

struct TranslateRequest {
  std::vector<std::string> texts;
  bool list = false;  // the answer is a list as well
  std::string source, target, api_key, model;
  int64_t alternatives = 0;
  std::vector<std::vector<std::string>>
      phrases;  // that the translation of each text holds, or none
};

// `type`: the Content-Type; JSON or a form. Errors: invalid_argument naming the field, what it
// holds and what it may hold.
TranslateRequest parse_translate(std::string_view body, std::string_view type,
                                 const JsonLimits& limits);

// Of the endpoint /v1/translate: {"texts": [...], "model": "name", "nbest": 1}, of a multilingual model
// "source" and "target", and "phrases", a list for each text.
struct BatchRequest {
  std::vector<std::string> texts;
  std::vector<std::vector<std::string>> phrases;
  std::string model, source, target;
  int64_t nbest = 1;
};
BatchRequest parse_batch(const Json& body);

// Languages a model of a folder reads and writes, of tokenizer_config.json; "" where it does not say.
struct LanguagePair {
  std::string source, target;
};
LanguagePair languages_of(const std::string& folder);
// "en-pt" or "eng_Latn-por_Latn". Errors: invalid_argument.
LanguagePair parse_languages(const std::string& text);
// "English"; the code itself where the name is not known.
std::string language_name(const std::string& code);

}  // namespace saturate::serve
