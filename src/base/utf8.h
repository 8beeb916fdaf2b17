// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace saturate {

constexpr char32_t kIllFormed = 0xFFFFFFFF;

// The code point that `text` has at byte `at`, which moves behind it. Bytes that are no well-formed UTF-8 (overlong forms,
// surrogates and code points above U+10FFFF included) give kIllFormed, once for each "maximal subpart" of Unicode 15.0, section
// 3.9, as Python's bytes.decode("utf-8", "replace") has it. `at` must be below the size.  Source: Unicode 15.0, table 3-7.
char32_t next_utf8(std::string_view text, size_t& at) noexcept;

void append_utf8(std::string& text, char32_t code_point);

// Position of the first byte that is not part of well-formed UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text) noexcept;

// What is ill-formed becomes U+FFFD, one for each time next_utf8 says so.
std::u32string decode_utf8(std::string_view bytes);
std::string encode_utf8(std::u32string_view text);

// The longest prefix of at most `max_bytes` that does not cut a character; `text` is valid UTF-8.
std::string_view utf8_prefix(std::string_view text, size_t max_bytes) noexcept;

}  // namespace saturate
