// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE as Hugging Face's tokenizers keeps it in tokenizer.json: GPT-2, Llama 3, Qwen, BART.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

// Immutable; all functions may be called from several threads.
class ByteBpe {
 public:
  // From the text of a tokenizer.json. Errors: invalid_argument or unsupported, naming `where` and the
  // part that is damaged or that this does not read: models other than byte-level BPE, normalisers
  // other than NFC, patterns that PCRE2 refuses.
  ByteBpe(const std::string& json, const std::string& where);
  ~ByteBpe();

  // Appends the ids of `text`, those of added tokens that it spells out among them, as the library
  // does with add_special_tokens=False. Errors: invalid_argument for text that is not UTF-8 where the
  // pattern needs it. Cost: n log n in the longest word.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // The bytes of the ids, without special tokens and unknown ids. A character that the ids break off
  // is broken off here too.
  std::string decode(std::span<const int32_t> ids) const;

  // What the library puts before and after a text with add_special_tokens=True.
  const std::vector<int32_t>& before() const noexcept;
  const std::vector<int32_t>& after() const noexcept;
  // By id, as the file spells them; ids that the file leaves out are empty.
  const std::vector<std::string>& pieces() const noexcept;
  int32_t id_of(std::string_view piece) const noexcept;  // -1: there is none

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace saturate::data
