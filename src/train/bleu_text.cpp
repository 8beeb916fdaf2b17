// SPDX-License-Identifier: Apache-2.0
#include "train/bleu_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace saturate::train {
namespace {

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
              fmt::format("hypotheses: {}, references: {}; give one reference for each "
                          "hypothesis, and at least one of both",
                          hypotheses, references));
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
