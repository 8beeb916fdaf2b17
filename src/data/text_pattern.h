// SPDX-License-Identifier: Apache-2.0
// Patterns and normal forms of tokenizer.json, by PCRE2 and utf8proc.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::data {

// Immutable; may be used from several threads. Text must be UTF-8.
class TextPattern {
 public:
  // A regular expression. Errors: unsupported, naming `where`, for one that PCRE2 refuses.
  TextPattern(const std::string& expression, const std::string& where);

  struct Part {
    std::string_view text;
    bool match = false;
  };
  // The matches that are not empty and what lies between them, in order. Errors: invalid_argument for
  // text beyond PCRE2's limits.
  std::vector<Part> split(std::string_view text) const;

 private:
  std::shared_ptr<const void> code_;
};

// White space of Unicode, as Rust's char::is_whitespace has it.
bool is_space(char32_t character) noexcept;

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };
// Errors: invalid_argument for text that is not UTF-8.
std::string normal_form(std::string_view text, NormalForm form);

// Ends of the text's grapheme clusters (UAX 29, extended), in bytes, ascending.
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace saturate::data
