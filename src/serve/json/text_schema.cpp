// SPDX-License-Identifier: Apache-2.0
#include "serve/json/text_schema.h"

#include <algorithm>
#include <utility>

namespace saturate::serve {

JsonSchema text_of_choices(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  const auto same = std::ranges::unique(texts);
  texts.erase(same.begin(), same.end());
  JsonSchema out;
  out.is_text = true;
  out.nodes.push_back({.kind = JsonSchema::Node::Kind::literal, .texts = std::move(texts)});
  return out;
}

JsonSchema text_of_pattern(std::string_view pattern, const std::string& where) {
  JsonSchema out;
  out.is_text = true;
  out.patterns.push_back(compile_text_pattern(pattern, where));
  out.nodes.push_back({.kind = JsonSchema::Node::Kind::string, .pattern = 0});
  return out;
}

}  // namespace saturate::serve
