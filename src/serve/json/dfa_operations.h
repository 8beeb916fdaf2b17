// SPDX-License-Identifier: Apache-2.0
// What may be a text of two patterns together, or of one alone: for names of members that schemas give by patterns.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "serve/json/pattern.h"

namespace saturate::serve {

// All take texts as they stand between the quotes of JSON, and give automata without states that lead to no end; no
// states at all where no text is left. Errors: invalid_argument, naming `where`, for more than 4,096 states and
// where `budget` is used up.
Dfa in_both(const Dfa& a, const Dfa& b, const std::string& where, PatternBudget& budget);
Dfa in_first_alone(const Dfa& a, const Dfa& b, const std::string& where, PatternBudget& budget);
// Of these texts and no others; to be the second of the two above.
Dfa of_texts(std::span<const std::string> texts, const std::string& where);

bool takes_text(const Dfa& dfa, std::string_view text);

}  // namespace saturate::serve
