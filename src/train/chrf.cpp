// SPDX-License-Identifier: Apache-2.0
#include "train/chrf.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/bleu_text.h"

namespace saturate::train {
namespace {

std::u32string without_space(std::string_view line) {
  std::u32string text = decode_utf8(line);
  std::erase_if(text, is_python_space);
  return text;
}

double f_score(const ChrfScore& s) {
  constexpr double kBetaSquared = 4;
  double precision = 0, recall = 0, orders = 0;
  for (size_t n = 0; n < s.matches.size(); ++n) {
    if (s.hypothesis[n] == 0 || s.reference[n] == 0) continue;
    const auto matches = static_cast<double>(s.matches[n]);
    precision += matches / static_cast<double>(s.hypothesis[n]);
    recall += matches / static_cast<double>(s.reference[n]);
    orders += 1;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * ((1 + kBetaSquared) * precision * recall / (kBetaSquared * precision + recall));
}

}  // namespace

ChrfScore corpus_chrf(std::span<const std::string> hypotheses,
                      std::span<const std::string> references) {
  require_pairs("chrf", hypotheses.size(), references.size());
  ChrfScore s;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    const std::u32string hypothesis = without_space(hypotheses[i]);
    const std::u32string reference = without_space(references[i]);
    for (size_t n = 1; n <= s.matches.size() && n <= reference.size(); ++n) {
      s.reference[n - 1] += static_cast<int64_t>(reference.size() - n + 1);
      if (n > hypothesis.size()) continue;
      s.hypothesis[n - 1] += static_cast<int64_t>(hypothesis.size() - n + 1);
      s.matches[n - 1] += count_matching_ngrams(hypothesis, reference, static_cast<int64_t>(n));
    }
  }
  s.score = f_score(s);
  return s;
}

std::string ChrfScore::to_string() const { return fmt::format("chrF2 = {:.2f}", score); }

}  // namespace saturate::train
