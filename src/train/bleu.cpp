// SPDX-License-Identifier: Apache-2.0
#include "train/bleu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include "train/bleu_text.h"

namespace saturate::train {
namespace {

bool is_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool is_point(char32_t c) { return c == U'.' || c == U','; }

// ASCII other than letters, digits, controls and the four marks ' , - . that have rules of their
// own.
bool stands_alone(char32_t c) {
  if (c < 0x20 || c > 0x7E || is_digit(c)) return false;
  const char32_t lower = c | 0x20;
  if (lower >= U'a' && lower <= U'z') return false;
  return c != U'\'' && c != U'-' && !is_point(c);
}

void replace_all(std::u32string& text, std::u32string_view from, std::u32string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// One pass over pairs of neighbours, as the rules of mteval are stated: where (first, second)
// matches, both are consumed, so a character is never part of two matches of one pass. Spaces go
// before, between and after the two where asked.
template <class First, class Second>
std::u32string space_pairs(const std::u32string& text, First first, Second second, bool before,
                           bool after) {
  std::u32string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !first(text[i]) || !second(text[i + 1])) {
      out += text[i];
      continue;
    }
    if (before) out += U' ';
    out += text[i++];
    out += U' ';
    out += text[i];
    if (after) out += U' ';
  }
  return out;
}

std::u32string tokenize(std::string_view bytes) {
  std::u32string line = decode_utf8(bytes);
  while (!line.empty() && is_python_space(line.back())) line.pop_back();
  replace_all(line, U"<skipped>", U"");
  replace_all(line, U"-\n", U"");
  replace_all(line, U"\n", U" ");
  // The order matters: "&amp;lt;" ends as "<".
  replace_all(line, U"&quot;", U"\"");
  replace_all(line, U"&amp;", U"&");
  replace_all(line, U"&lt;", U"<");
  replace_all(line, U"&gt;", U">");

  std::u32string text = U" ";
  for (const char32_t c : line) {
    if (stands_alone(c)) {
      text += {U' ', c, U' '};
    } else {
      text += c;
    }
  }
  text += U' ';
  const auto no_digit = [](char32_t c) { return !is_digit(c); };
  const auto is_dash = [](char32_t c) { return c == U'-'; };
  text = space_pairs(text, no_digit, is_point, false, true);
  text = space_pairs(text, is_point, no_digit, true, false);
  return space_pairs(text, is_digit, is_dash, false, true);
}

// Words as numbers, the same number for the same word in both sentences of a pair.
class WordNumbers {
 public:
  std::u32string number(const std::u32string& tokenized) {
    std::u32string numbers;
    for (const auto word : split_python_space(tokenized)) {
      const auto next = static_cast<char32_t>(ids_.size());
      numbers += ids_.try_emplace(std::u32string(word), next).first->second;
    }
    return numbers;
  }

 private:
  std::unordered_map<std::u32string, char32_t> ids_;
};

void finish(BleuScore& s) {
  const auto hypothesis = static_cast<double>(s.hypothesis_words);
  const auto reference = static_cast<double>(s.reference_words);
  if (hypothesis < reference) {
    s.brevity_penalty = hypothesis > 0 ? std::exp(1 - reference / hypothesis) : 0.0;
  }
  if (std::all_of(s.correct.begin(), s.correct.end(), [](int64_t c) { return c == 0; })) return;
  double halving = 1, log_sum = 0;
  for (size_t n = 0; n < 4 && s.total[n] > 0; ++n) {
    const auto total = static_cast<double>(s.total[n]);
    if (s.correct[n] > 0) {
      s.precisions[n] = 100.0 * static_cast<double>(s.correct[n]) / total;
    } else {
      halving *= 2;  // an order without a match counts as 1/2, the next such as 1/4, and so on
      s.precisions[n] = 100.0 / (halving * total);
    }
  }
  // An order with no n-grams at all makes the score 0: log(0) stands at -1e10.
  for (const double p : s.precisions) log_sum += p == 0 ? -9999999999.0 : std::log(p);
  s.score = s.brevity_penalty * std::exp(log_sum / 4);
}

}  // namespace

std::string tokenize_13a(std::string_view line) {
  const std::u32string tokenized = tokenize(line);
  std::string out;
  for (const auto word : split_python_space(tokenized)) {
    if (!out.empty()) out += ' ';
    out += encode_utf8(word);
  }
  return out;
}

BleuScore corpus_bleu(std::span<const std::string> hypotheses,
                      std::span<const std::string> references) {
  require_pairs("bleu", hypotheses.size(), references.size());
  BleuScore s;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    WordNumbers words;
    const std::u32string hypothesis = words.number(tokenize(hypotheses[i]));
    const std::u32string reference = words.number(tokenize(references[i]));
    const auto length = static_cast<int64_t>(hypothesis.size());
    s.hypothesis_words += length;
    s.reference_words += static_cast<int64_t>(reference.size());
    for (int64_t n = 1; n <= 4; ++n) {
      s.total[n - 1] += std::max<int64_t>(0, length - n + 1);
      s.correct[n - 1] += count_matching_ngrams(hypothesis, reference, n);
    }
  }
  finish(s);
  return s;
}

std::string BleuScore::to_string() const {
  const double ratio = reference_words == 0 ? 0.0
                                            : static_cast<double>(hypothesis_words) /
                                                  static_cast<double>(reference_words);
  return fmt::format(
      "BLEU = {:.2f} {:.1f}/{:.1f}/{:.1f}/{:.1f} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len "
      "= {})",
      score, precisions[0], precisions[1], precisions[2], precisions[3], brevity_penalty, ratio,
      hypothesis_words, reference_words);
}

}  // namespace saturate::train
