// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "data/tokenizer.h"

namespace saturate::data {

enum class SentenceEnd : uint8_t { appended, left_out };

// `tokenizer` as tokenizer.json of Hugging Face's tokenizers: the same ids for the same text, and
// the text back. `end` says whether </s> follows every text (translation) or not (prompts).
//
// Not the same: </s>, <unk> and <pad> written out in a text are taken for the symbols there; where
// two cuts of a word have the same score, another one may be taken; and the normalisation table is
// applied to whole grapheme clusters first, which shows with rare combining marks only.
// Errors: unsupported for what that format cannot say (word models, white space as a suffix).
std::string tokenizer_json(const Tokenizer& tokenizer, SentenceEnd end);

}  // namespace saturate::data
