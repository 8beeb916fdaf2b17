// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string_view>

namespace saturate {

// Position of the first byte that is not part of well-formed UTF-8 (overlong forms, surrogates and
// code points above U+10FFFF included), or npos.  Source: Unicode 15.0, table 3-7.
size_t find_invalid_utf8(std::string_view text) noexcept;

// The longest prefix of at most `max_bytes` that does not cut a character; `text` is valid UTF-8.
std::string_view utf8_prefix(std::string_view text, size_t max_bytes) noexcept;

}  // namespace saturate
