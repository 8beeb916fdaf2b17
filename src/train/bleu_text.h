// SPDX-License-Identifier: Apache-2.0
// What BLEU and chrF share: the check of their input, text as code points, Python's idea of white
// space, n-gram matches.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace saturate::train {

// Errors: invalid_argument unless there are as many of both, and at least one.
void require_pairs(const char* metric, size_t hypotheses, size_t references);

// What str.split() and str.rstrip() of Python 3 take for white space (29 code points).
bool is_python_space(char32_t c) noexcept;

// The pieces between runs of white space; no empty piece. The views point into `text`.
std::vector<std::u32string_view> split_python_space(std::u32string_view text);

// Number of n-grams that a and b share, each counted as often as in the text where it is rarer.
// Symbols are characters or word numbers. Exact (no hashing); O((|a| + |b|) log n-grams).
int64_t count_matching_ngrams(std::u32string_view a, std::u32string_view b, int64_t n);

}  // namespace saturate::train
