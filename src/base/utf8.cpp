// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace saturate {
namespace {

bool is_tail(unsigned char c) { return (c & 0xC0) == 0x80; }

// Bytes of the character at `p`, 0 if it is malformed.
size_t character_bytes(const unsigned char* p, size_t left) {
  const unsigned char c = p[0];
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return left >= 2 && is_tail(p[1]) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    if (left < 3 || !is_tail(p[1]) || !is_tail(p[2])) return 0;
    if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F)) return 0;
    return 3;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    if (left < 4 || !is_tail(p[1]) || !is_tail(p[2]) || !is_tail(p[3])) return 0;
    if ((c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) noexcept {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word = 0;
    if (text.size() - i >= sizeof word) {  // most text is ASCII: eight bytes at a time
      std::memcpy(&word, p + i, sizeof word);
      if ((word & 0x8080808080808080ull) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const size_t bytes = character_bytes(p + i, text.size() - i);
    if (bytes == 0) return i;
    i += bytes;
  }
  return std::string_view::npos;
}

std::string_view utf8_prefix(std::string_view text, size_t max_bytes) noexcept {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && is_tail(static_cast<unsigned char>(text[end]))) --end;
  return text.substr(0, end);
}

}  // namespace saturate
