// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <string>
#include <string_view>

namespace saturate {

// For people: "1 line", "2 lines". `one` is a word whose plural has an s.
std::string counted(std::integral auto n, std::string_view one) {
  return std::to_string(n).append(" ").append(one).append(n == 1 ? "" : "s");
}

}  // namespace saturate
