// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace saturate::train {

// The settings under which the score equals sacreBLEU's chrF2, in sacreBLEU's own notation.
inline constexpr char kChrfSignature[] =
    "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0";

struct ChrfScore {
  double score = 0;  // 0 to 100
  // Character n-grams, n = 1 to 6. A sentence whose reference has none of an order adds none to
  // `hypothesis` either.
  std::array<int64_t, 6> hypothesis{}, reference{}, matches{};

  std::string to_string() const;  // "chrF2 = 63.92"
};

// Corpus chrF2: F score (beta 2) of character n-gram precision and recall, each averaged over the
// orders that occur; white space removed, no words.
//
// Shapes    hypotheses and references pair up by index; UTF-8, ill-formed bytes count as U+FFFD.
// Errors    invalid_argument when the numbers of lines differ or are 0.
// Order     as corpus_bleu: equal to sacreBLEU to the last printed digit.
// Source    Popovic, WMT 2015 (W15-3049); Post, arXiv:1804.08771.
ChrfScore corpus_chrf(std::span<const std::string> hypotheses,
                      std::span<const std::string> references);

}  // namespace saturate::train
