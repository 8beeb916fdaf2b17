// SPDX-License-Identifier: Apache-2.0
#include "train/bleu_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace saturate::train {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

uint8_t byte_at(std::string_view s, size_t i) { return static_cast<uint8_t>(s[i]); }

// Reads the sequence that starts at s[i] and moves i past it, or past the part that is ill-formed.
char32_t next_code_point(std::string_view s, size_t& i) {
  const uint8_t lead = byte_at(s, i++);
  if (lead < 0x80) return lead;
  if (lead < 0xC2 || lead > 0xF4) return kReplacement;
  const int tail = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  // The second byte's range shuts out overlong forms, surrogates and numbers above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  char32_t value = lead & (0x3F >> tail);
  for (int k = 0; k < tail; ++k) {
    if (i == s.size() || byte_at(s, i) < low || byte_at(s, i) > high) return kReplacement;
    value = value << 6 | (byte_at(s, i++) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return value;
}

std::vector<std::u32string_view> sorted_ngrams(std::u32string_view text, size_t n) {
  std::vector<std::u32string_view> grams;
  for (size_t i = 0; i + n <= text.size(); ++i) grams.push_back(text.substr(i, n));
  std::sort(grams.begin(), grams.end());
  return grams;
}

}  // namespace

void require_pairs(const char* metric, size_t hypotheses, size_t references) {
  if (hypotheses == references && hypotheses > 0) return;
  throw Error(Errc::invalid_argument, metric,
              fmt::format("{} hypotheses and {} references; give one reference for each "
                          "hypothesis, and at least one of both",
                          hypotheses, references));
}

std::u32string decode_utf8(std::string_view bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) text.push_back(next_code_point(bytes, i));
  return text;
}

std::string encode_utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) {
    const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    const char32_t lead = tail == 0 ? 0 : 0xFF00u >> (tail + 1) & 0xFFu;  // C0, E0, F0
    bytes += static_cast<char>(lead | c >> (6 * tail));
    for (int k = tail - 1; k >= 0; --k) {
      bytes += static_cast<char>(0x80 | (c >> (6 * k) & 0x3F));
    }
  }
  return bytes;
}

bool is_python_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::vector<std::u32string_view> split_python_space(std::u32string_view text) {
  std::vector<std::u32string_view> words;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    while (i < text.size() && !is_python_space(text[i])) ++i;
    if (i > start) words.push_back(text.substr(start, i - start));
    while (i < text.size() && is_python_space(text[i])) ++i;
  }
  return words;
}

int64_t count_matching_ngrams(std::u32string_view a, std::u32string_view b, int64_t n) {
  const auto left = sorted_ngrams(a, static_cast<size_t>(n));
  const auto right = sorted_ngrams(b, static_cast<size_t>(n));
  int64_t matches = 0;
  for (auto l = left.begin(), r = right.begin(); l != left.end() && r != right.end();) {
    const int order = l->compare(*r);
    matches += order == 0;
    if (order <= 0) ++l;
    if (order >= 0) ++r;
  }
  return matches;
}

}  // namespace saturate::train
