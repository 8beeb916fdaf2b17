// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace saturate {
namespace {

uint8_t byte_at(std::string_view s, size_t i) { return static_cast<uint8_t>(s[i]); }

}  // namespace

char32_t next_utf8(std::string_view text, size_t& at) noexcept {
  const uint8_t lead = byte_at(text, at++);
  if (lead < 0x80) return lead;
  if (lead < 0xC2 || lead > 0xF4) return kIllFormed;
  const int tail = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  // The second byte's range shuts out overlong forms, surrogates and numbers above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  char32_t value = lead & (0x3F >> tail);
  for (int k = 0; k < tail; ++k) {
    if (at == text.size() || byte_at(text, at) < low || byte_at(text, at) > high) return kIllFormed;
    value = value << 6 | (byte_at(text, at++) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return value;
}

void append_utf8(std::string& text, char32_t c) {
  const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  const char32_t lead = tail == 0 ? 0 : 0xFF00u >> (tail + 1) & 0xFFu;  // C0, E0, F0
  text += static_cast<char>(lead | c >> (6 * tail));
  for (int k = tail - 1; k >= 0; --k) text += static_cast<char>(0x80 | (c >> (6 * k) & 0x3F));
}

size_t find_invalid_utf8(std::string_view text) noexcept {
  for (size_t i = 0; i < text.size();) {
    uint64_t word = 0;
    if (text.size() - i >= sizeof word) {  // most text is ASCII: eight bytes at a time
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080ull) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const size_t start = i;
    if (next_utf8(text, i) == kIllFormed) return start;
  }
  return std::string_view::npos;
}

std::u32string decode_utf8(std::string_view bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const char32_t c = next_utf8(bytes, i);
    text.push_back(c == kIllFormed ? U'\xFFFD' : c);
  }
  return text;
}

std::string encode_utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) append_utf8(bytes, c);
  return bytes;
}

std::string_view utf8_prefix(std::string_view text, size_t max_bytes) noexcept {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (byte_at(text, end) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace saturate
