// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "base/error.h"

namespace saturate::data {

// Whether a serialised SentencePiece model can be given to the library. SentencePiece checks its
// pieces, but walks the compiled normalisation table (a double-array trie) without bounds, so a
// hostile file could make it read outside memory: this follows every path of that table first.
Fit sentencepiece_model_is_sound(std::string_view serialized) noexcept;

// The same for such a table alone: whether walking it stays inside, whatever the text.
Fit charsmap_is_sound(std::string_view blob);

}  // namespace saturate::data
