// SPDX-License-Identifier: Apache-2.0
// The models of a tokenizer.json: byte pair encoding of bytes or characters, and Unigram.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace saturate::data {

// Immutable; may be used from several threads.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  // Appends the ids of a word of UTF-8, or with byte_level of any bytes. Cost: n log n in its length for
  // BPE; for Unigram n times the longest piece.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;
  // By id, as the file spells them; ids that the file leaves out are empty.
  const std::vector<std::string>& pieces() const noexcept { return pieces_; }

 protected:
  std::vector<std::string> pieces_;
};

// From the member "model". Errors: invalid_argument for damage, unsupported for another model, naming
// `where`.
// Source: huggingface/tokenizers, models/bpe and models/unigram; Kudo, arXiv:1804.10959.
std::unique_ptr<const SubwordModel> read_subword_model(const Json& json, bool byte_level,
                                                       const std::string& where);

// The bytes that a piece of a byte-level vocabulary stands for; pieces that stand for none (added
// tokens) are themselves.
std::string bytes_of_piece(std::string_view piece);
// "<0x0A>"
std::string byte_piece(unsigned char byte);

}  // namespace saturate::data
