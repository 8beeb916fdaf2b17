// SPDX-License-Identifier: Apache-2.0
#include "data/text_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "data/charsmap.h"
#include "data/text_pattern.h"

namespace saturate::data {
namespace {

// Source: openai/gpt-2, encoder.py.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void fail(Errc code, const std::string& where, const std::string& what) {
  throw Error(code, "tokenizer", fmt::format("{}: {}", where, what));
}

using Parts = std::vector<TextPattern::Part>;

Parts split_at(std::string_view text, std::string_view literal) {
  Parts parts;
  size_t at = 0;
  for (size_t found = text.find(literal); found != std::string_view::npos;
       found = text.find(literal, at)) {
    if (found > at) parts.push_back({text.substr(at, found - at)});
    parts.push_back({text.substr(found, literal.size()), true});
    at = found + literal.size();
  }
  if (at < text.size()) parts.push_back({text.substr(at)});
  return parts;
}

Parts split_at_spaces(std::string_view text) {
  Parts parts;
  size_t from = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_space(next_utf8(text, at))) continue;
    if (begin > from) parts.push_back({text.substr(from, begin - from)});
    parts.push_back({text.substr(begin, at - begin), true});
    from = at;
  }
  if (from < text.size()) parts.push_back({text.substr(from)});
  return parts;
}

enum class Behaviour : uint8_t { removed, isolated, with_next, with_previous };

// What becomes of the matches. Source: huggingface/tokenizers, SplitDelimiterBehavior.
void put(const Segment& of, const Parts& parts, Behaviour behaviour, std::vector<Segment>& out) {
  std::vector<std::string_view> words;
  bool before = false;  // whether the part before was a match
  const auto joined = [](std::string_view a, std::string_view b) {
    return std::string_view(a.data(), a.size() + b.size());
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [text, match] = parts[i];
    const bool to_previous = behaviour == Behaviour::with_previous && match && !before && i > 0;
    // Of several matches in a row the last goes with what follows.
    const bool to_match = behaviour == Behaviour::with_next && !match && before;
    if (to_previous || to_match) {
      words.back() = joined(words.back(), text);
    } else if (!match || behaviour != Behaviour::removed) {
      words.push_back(text);
    }
    before = match;
  }
  for (const std::string_view word : words)
    out.push_back({std::string(word), of.first && word.data() == of.text.data()});
}

}  // namespace

const Json& member_of(const Json& of, const char* key, const std::string& where) {
  const Json* found = of.find(key);
  if (found == nullptr)
    fail(Errc::invalid_argument, where, fmt::format("it has no \"{}\"; copy it again", key));
  return *found;
}
std::string text_of(const Json& json, const std::string& where) {
  const std::string* text = json.if_string();
  if (text == nullptr) fail(Errc::invalid_argument, where, "a text is missing; copy it again");
  return *text;
}
std::string type_of(const Json& json, const std::string& where) {
  return json.is_null() ? "none" : text_of(member_of(json, "type", where), where);
}
bool is_true(const Json& of, const char* key) {
  const bool* value = of[key].if_bool();
  return value != nullptr && *value;
}

TextSteps::TextSteps(const Json& normalizer, const Json& pre_tokenizer, const std::string& where) {
  read_normalizer(normalizer, where);
  read_pre_tokenizer(pre_tokenizer, where);
}

std::string TextSteps::normalise(std::string_view text) const {
  std::string out(text);
  for (const Normaliser& step : normalisers_) out = step(std::move(out));
  return out;
}

std::vector<Segment> TextSteps::split(Segment segment) const {
  std::vector<Segment> words;
  words.push_back(std::move(segment));
  for (const Splitter& step : splitters_) {
    std::vector<Segment> next;
    for (const Segment& word : words) step(word, next);
    words = std::move(next);
  }
  return words;
}

void TextSteps::read_replace(const Json& json, const std::string& where) {
  const Json& pattern = member_of(json, "pattern", where);
  const std::string content = text_of(member_of(json, "content", where), where);
  std::optional<TextPattern> expression;
  std::string literal;
  if (const std::string* regex = pattern["Regex"].if_string()) {
    expression.emplace(*regex, where);
  } else if (literal = text_of(pattern["String"], where); literal.empty()) {
    fail(Errc::invalid_argument, where, "it replaces an empty text; copy it again");
  }
  normalisers_.emplace_back([expression, literal, content](const std::string& text) {
    std::string out;
    for (const auto& [part, match] : expression ? expression->split(text) : split_at(text, literal))
      out += match ? content : part;
    return out;
  });
}

void TextSteps::read_normalizer(const Json& json, const std::string& where) {
  static constexpr std::pair<std::string_view, NormalForm> kForms[] = {{"NFC", NormalForm::nfc},
                                                                       {"NFD", NormalForm::nfd},
                                                                       {"NFKC", NormalForm::nfkc},
                                                                       {"NFKD", NormalForm::nfkd}};
  const std::string type = type_of(json, where);
  const auto form =
      std::ranges::find(kForms, type, &std::pair<std::string_view, NormalForm>::first);
  if (type == "none") return;
  if (type == "Sequence") {
    const Json& parts = member_of(json, "normalizers", where);
    for (size_t i = 0; i < parts.size(); ++i) read_normalizer(parts[i], where);
  } else if (form != std::end(kForms)) {
    normalisers_.emplace_back(
        [f = form->second](const std::string& text) { return normal_form(text, f); });
  } else if (type == "Precompiled") {
    const Json& table = json["precompiled_charsmap"];
    if (table.is_null()) return;
    const auto map =
        std::make_shared<const Charsmap>(decode_base64(text_of(table, where), where), where);
    normalisers_.emplace_back([map](const std::string& text) { return map->apply(text); });
  } else if (type == "Replace") {
    read_replace(json, where);
  } else if (type == "Prepend") {
    const std::string what = text_of(member_of(json, "prepend", where), where);
    normalisers_.emplace_back(
        [what](std::string text) { return text.empty() ? text : what + text; });
  } else if (type == "Strip") {
    const bool left = is_true(json, "strip_left"), right = is_true(json, "strip_right");
    normalisers_.emplace_back([left, right](std::string text) {
      const Parts parts = split_at_spaces(text);
      const auto is_word = [](const TextPattern::Part& p) { return !p.match; };
      const auto first = left ? std::ranges::find_if(parts, is_word) : parts.begin();
      auto last = parts.end();
      while (right && last != first && !is_word(last[-1])) --last;
      std::string out;
      for (auto p = first; p < last; ++p) out += p->text;
      return out;
    });
  } else {
    fail(
        Errc::unsupported, where,
        fmt::format("it normalises by {}; Unicode's forms, Precompiled, Replace, Prepend and Strip "
                    "are known",
                    type));
  }
}

void TextSteps::read_split(const Json& json, const std::string& where) {
  static constexpr std::pair<std::string_view, Behaviour> kBehaviours[] = {
      {"Removed", Behaviour::removed},
      {"Isolated", Behaviour::isolated},
      {"MergedWithNext", Behaviour::with_next},
      {"MergedWithPrevious", Behaviour::with_previous}};
  const std::string name = text_of(member_of(json, "behavior", where), where);
  const auto behaviour =
      std::ranges::find(kBehaviours, name, &std::pair<std::string_view, Behaviour>::first);
  const Json& pattern = member_of(json, "pattern", where);
  const std::string *regex = pattern["Regex"].if_string(), *literal = pattern["String"].if_string();
  if (behaviour == std::end(kBehaviours) || is_true(json, "invert") ||
      (regex == nullptr && (literal == nullptr || literal->empty())))
    fail(Errc::unsupported, where,
         fmt::format("it splits text at a pattern in the way \"{:.40}\"; Removed, Isolated, "
                     "MergedWithNext and MergedWithPrevious are known, none of them inverted",
                     name));
  if (regex == nullptr) {
    splitters_.emplace_back([at = *literal, b = behaviour->second](const Segment& s, auto& out) {
      put(s, split_at(s.text, at), b, out);
    });
  } else {
    splitters_.emplace_back([at = TextPattern(*regex, where), b = behaviour->second](
                                const Segment& s, auto& out) { put(s, at.split(s.text), b, out); });
  }
}

// Spaces become the mark, one stands before a text, and each begins a word.
void TextSteps::read_metaspace(const Json& json, const std::string& where) {
  const std::string mark = text_of(member_of(json, "replacement", where), where);
  // Older files say it with a yes or no.
  const bool* adds = json["add_prefix_space"].if_bool();
  std::string scheme = adds == nullptr || *adds ? "always" : "never";
  if (const std::string* given = json["prepend_scheme"].if_string()) scheme = *given;
  if (mark.empty() || (scheme != "always" && scheme != "never" && scheme != "first"))
    fail(Errc::unsupported, where, fmt::format("its Metaspace has the scheme \"{:.40}\"", scheme));
  const bool* splits = json["split"].if_bool();
  splitters_.emplace_back(
      [mark, scheme, cuts = splits == nullptr || *splits](const Segment& s, auto& out) {
        Segment marked{.text = {}, .first = s.first};
        for (const auto& [part, match] : split_at(s.text, " ")) marked.text += match ? mark : part;
        const bool wanted = scheme == "always" || (scheme == "first" && s.first);
        if (wanted && !marked.text.starts_with(mark)) marked.text.insert(0, mark);
        if (cuts) return put(marked, split_at(marked.text, mark), Behaviour::with_next, out);
        out.push_back(std::move(marked));
      });
}

void TextSteps::read_pre_tokenizer(const Json& json, const std::string& where) {
  const std::string type = type_of(json, where);
  if (type == "none") return;
  if (type == "Sequence") {
    const Json& parts = member_of(json, "pretokenizers", where);
    for (size_t i = 0; i < parts.size(); ++i) read_pre_tokenizer(parts[i], where);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (is_true(json, "add_prefix_space")) {
      splitters_.emplace_back([](const Segment& s, std::vector<Segment>& out) {
        out.push_back({s.text.starts_with(' ') ? s.text : " " + s.text, s.first});
      });
    }
    const bool* uses = json["use_regex"].if_bool();
    if (uses != nullptr && !*uses) return;
    splitters_.emplace_back([at = TextPattern(kGpt2Pattern, where)](const Segment& s, auto& out) {
      put(s, at.split(s.text), Behaviour::isolated, out);
    });
  } else if (type == "Split") {
    read_split(json, where);
  } else if (type == "Metaspace") {
    read_metaspace(json, where);
  } else if (type == "WhitespaceSplit") {
    splitters_.emplace_back([](const Segment& s, std::vector<Segment>& out) {
      put(s, split_at_spaces(s.text), Behaviour::removed, out);
    });
  } else {
    fail(Errc::unsupported, where,
         fmt::format("it splits text by {}; ByteLevel, Split, Metaspace and WhitespaceSplit are "
                     "known",
                     type));
  }
}

}  // namespace saturate::data
