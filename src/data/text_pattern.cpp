// SPDX-License-Identifier: Apache-2.0
#include "data/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <cstdlib>

#include "base/error.h"
#include "base/utf8.h"

namespace saturate::data {

TextPattern::TextPattern(const std::string& expression, const std::string& where) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr) {
    throw Error(
        Errc::unsupported, "tokenizer",
        fmt::format("{}: its pattern {:.200} is not understood at byte {}", where, expression, at));
  }
  code_ = std::shared_ptr<const void>(code, [](const void* c) {
    pcre2_code_free(const_cast<pcre2_code*>(static_cast<const pcre2_code*>(c)));
  });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it matching is slower, and right
}

std::vector<TextPattern::Part> TextPattern::split(std::string_view text) const {
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  std::vector<Part> parts;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  size_t at = 0, from = 0;
  while (from < text.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error(Errc::invalid_argument, "tokenizer",
                  fmt::format("text: its words take the tokenizer's pattern beyond its limits "
                              "(PCRE2 says {}); break the line",
                              found));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[1] == range[0]) {  // an empty match takes nothing
      from = range[1] + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (range[0] > at) parts.push_back({text.substr(at, range[0] - at)});
    parts.push_back({text.substr(range[0], range[1] - range[0]), true});
    at = from = range[1];
  }
  if (at < text.size()) parts.push_back({text.substr(at)});
  return parts;
}

bool is_space(char32_t c) noexcept {
  if (c >= 9 && c <= 13) return true;
  if (c == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

std::string normal_form(std::string_view text, NormalForm form) {
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, std::free);
  if (size < 0)
    throw Error(Errc::invalid_argument, "tokenizer",
                fmt::format("text: {}", utf8proc_errmsg(size)));
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

std::vector<size_t> grapheme_ends(std::string_view text) {
  std::vector<size_t> ends;
  utf8proc_int32_t state = 0;
  char32_t before = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_utf8(text, at);
    if (begin > 0 &&
        utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                         static_cast<utf8proc_int32_t>(c), &state) != 0)
      ends.push_back(begin);
    before = c;
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

}  // namespace saturate::data
