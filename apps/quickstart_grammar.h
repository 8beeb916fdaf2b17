// SPDX-License-Identifier: Apache-2.0
// English phrases with numbers, dates, amounts and times, and their Portuguese (Brazil)
// translations, written by rules. One English phrase has exactly one translation, so that "exactly
// right" is defined.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace saturate::apps {

struct Pair {
  std::string english, portuguese;
};

struct QuickstartCorpus {
  std::vector<Pair> train, valid, test;
};

enum class Gender : uint8_t { masculine, feminine };

// Cardinal numbers below 10^9 in words. Portuguese agrees with the gender of what is counted:
// "duas mil e uma libras", but millions are masculine always: "dois milhões".
// "e" joins the last group when it is below 100 or a whole hundred: "mil e duzentos",
// "dois mil trezentos e quarenta e cinco" (Cunha and Cintra, Nova gramática, "Numerais").
std::string english_number(int64_t n);
std::string portuguese_number(int64_t n, Gender gender);

// `pairs` training pairs, `held_out` test pairs and half as many validation pairs; the three sets
// share no English phrase. A function of its arguments alone. Errors: invalid_argument when more is
// asked for than the grammar can write (200,000).
QuickstartCorpus make_quickstart_corpus(int64_t pairs, int64_t held_out, uint64_t seed);

}  // namespace saturate::apps
