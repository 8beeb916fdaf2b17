// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace saturate {

// Text from a stranger for a terminal or a report: control characters, which can drive a terminal,
// and bytes that are not UTF-8 become '?'.
std::string printable(std::string_view text);

}  // namespace saturate
