// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/json/automaton.h"

namespace saturate::serve {

// Whether `text` is a whole value.
inline bool takes(JsonAutomaton& automaton, std::string_view text) {
  std::vector<int32_t> stacks = {automaton.start()};
  for (const char byte : text) {
    std::vector<int32_t> next;
    for (const int32_t s : stacks) automaton.step(s, static_cast<unsigned char>(byte), next);
    stacks = std::move(next);
  }
  return std::ranges::any_of(stacks, [&](int32_t s) { return automaton.complete(s); });
}
inline bool takes(const JsonSchema& schema, std::string_view text) {
  JsonAutomaton automaton(schema);
  return takes(automaton, text);
}

}  // namespace saturate::serve
