// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace saturate::train {

// The settings under which the score equals sacreBLEU's, in sacreBLEU's own notation.
inline constexpr char kBleuSignature[] =
    "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0";

struct BleuScore {
  double score = 0;                    // 0 to 100
  std::array<int64_t, 4> correct{};    // matching n-grams, n = 1 to 4
  std::array<int64_t, 4> total{};      // n-grams of the hypotheses
  std::array<double, 4> precisions{};  // percent, smoothed
  double brevity_penalty = 1;
  int64_t hypothesis_words = 0, reference_words = 0;

  // "BLEU = 40.14 71.3/48.0/33.9/24.1 (BP = 0.987 ratio = 0.987 hyp_len = 11953 ref_len = 12106)"
  std::string to_string() const;
};

// The words that mteval-v13a sees, with one space between them: punctuation and symbols of ASCII
// stand alone, period and comma unless between digits, a dash after a digit; four entities are
// resolved.
std::string tokenize_13a(std::string_view line);

// Corpus BLEU of detokenised text against one reference each, cased, exponential smoothing.
//
// Shapes    hypotheses and references pair up by index; UTF-8, ill-formed bytes count as U+FFFD.
// Errors    invalid_argument when the numbers of lines differ or are 0.
// Order     a function of the text alone: counts are integers, and the few floating-point
//           operations come in the order of sacreBLEU, so the score agrees with it to the last
//           printed digit.
// Source    Papineni et al., ACL 2002; Post, arXiv:1804.08771; smoothing 3 of Chen and Cherry, WMT
// 2014.
BleuScore corpus_bleu(std::span<const std::string> hypotheses,
                      std::span<const std::string> references);

}  // namespace saturate::train
