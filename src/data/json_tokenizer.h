// SPDX-License-Identifier: Apache-2.0
// Text to ids as Hugging Face's tokenizers has it in a tokenizer.json: byte-level BPE (GPT-2, Llama 3,
// Qwen, BART), BPE of characters (NLLB, Llama 2, Gemma) and Unigram (T5, mBART, Pegasus).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

// Immutable; all functions may be called from several threads.
class JsonTokenizer {
 public:
  // From the text of a tokenizer.json. Errors: invalid_argument or unsupported, naming `where` and the
  // part that is damaged or that this does not read: other models, normalisers, splitters and decoders,
  // patterns that PCRE2 refuses.
  JsonTokenizer(const std::string& json, const std::string& where);
  ~JsonTokenizer();

  // Appends the ids of `text`, those of added tokens that it spells out among them, as the library
  // does with add_special_tokens=False. Errors: invalid_argument for text that is not UTF-8 where a step
  // needs it. Cost: n log n in the longest word.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // The text of the ids, without special tokens and unknown ids. Of byte-level tokens a character that
  // the ids break off is broken off here too.
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
