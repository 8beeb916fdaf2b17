// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

// SentencePiece's compiled normalisation table as Hugging Face's tokenizers applies it ("Precompiled"):
// to whole grapheme clusters of at most five bytes, else to their characters; of several entries that
// begin a cluster the shortest is taken for all of it. Immutable.
// Source: huggingface/spm_precompiled (lib.rs); darts-clone (Yata), unit layout.
class Charsmap {
 public:
  // `blob`: trie bytes (u32), trie, strings that end in 0. Errors: invalid_argument naming `where`, for
  // a table that points outside itself.
  Charsmap(const std::string& blob, const std::string& where);
  std::string apply(std::string_view text) const;

 private:
  // What the shortest entry that begins `part` becomes; null data: no entry does.
  std::string_view find(std::string_view part) const;
  std::vector<uint32_t> units_;
  std::string strings_;
};

// Errors: invalid_argument naming `where`.
std::string decode_base64(std::string_view text, const std::string& where);

}  // namespace saturate::data
