// SPDX-License-Identifier: Apache-2.0
#include "serve/log_probabilities.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "data/subword_model.h"

namespace saturate::serve {
namespace {

constexpr std::string_view kNoCharacter = "\xEF\xBF\xBD";  // U+FFFD, of part of a character
constexpr size_t kBefore = 8;  // tokens: enough for the space between words

bool is_text(std::string_view bytes) { return find_invalid_utf8(bytes) == bytes.npos; }

// Bytes by their names. A piece that is a byte alone has its name already.
std::string names_of(std::string_view bytes) {
  std::string names;
  for (const char c : bytes) names += data::byte_piece(static_cast<unsigned char>(c));
  return names;
}

// The bytes that a piece stands for whose text is none by itself: "<0xE2>", bytes themselves, or
// byte-level BPE's letters for them.
std::string bytes_of(const std::string& piece) {
  unsigned value = 0;
  int read = 0;
  if (std::sscanf(piece.c_str(), "<0x%2X>%n", &value, &read) == 1 && read == std::ssize(piece))
    return {static_cast<char>(value)};
  return is_text(piece) ? data::bytes_of_piece(piece) : piece;
}

// What `id` adds behind ids, whose text is `before`.
TokenText text_behind(const data::Tokenizer& tokenizer, std::vector<int32_t>& ids,
                      const std::string& before, int32_t id) {
  ids.push_back(id);
  const std::string all = tokenizer.decode(ids);
  ids.pop_back();
  const bool whole = !before.ends_with(kNoCharacter) && !all.ends_with(kNoCharacter);
  if (whole && all.size() > before.size() && all.starts_with(before)) {
    std::string added = all.substr(before.size());
    if (is_text(added)) return {added, added};
  }
  // Models have more rows than their tokenizers have pieces.
  if (id >= tokenizer.vocab_size()) return {fmt::format("<id {}>", id), ""};
  const std::string& piece = tokenizer.piece(id);
  if (whole && all == before) return {piece, ""};  // what ends a text, or stands around one
  std::string bytes = bytes_of(piece);
  return {is_text(bytes) ? piece : names_of(bytes), bytes};
}

// Where the characters of a text end, as JSON writes it: what makes none is U+FFFD.
std::vector<size_t> ends_of_characters(std::string_view bytes) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < bytes.size();) {
    next_utf8(bytes, at);
    ends.push_back(at);
  }
  return ends;
}

Json list_of(const TokenText& token) {
  if (token.bytes.empty()) return {};
  Json list{Json::Array{}};
  for (const char c : token.bytes)
    list.push_back(static_cast<int64_t>(static_cast<unsigned char>(c)));
  return list;
}

}  // namespace

std::vector<ScoredToken> scored_tokens(const data::Tokenizer& tokenizer,
                                       std::span<const int32_t> ids, size_t from,
                                       std::span<const train::TokenScore> scores) {
  std::vector<ScoredToken> tokens;
  const size_t scored_from = ids.size() - scores.size();
  for (size_t i = from; i < ids.size(); ++i) {
    const std::span<const int32_t> last = ids.first(i).last(std::min(i, kBefore));
    std::vector<int32_t> window(last.begin(), last.end());
    const std::string before = tokenizer.decode(window);
    ScoredToken& token = tokens.emplace_back();
    token.token = text_behind(tokenizer, window, before, ids[i]);
    token.first = i < scored_from;
    if (token.first) continue;
    const train::TokenScore& score = scores[i - scored_from];
    token.log_probability = score.log_probability;
    for (const auto& [id, log_probability] : score.likeliest)
      token.likeliest.emplace_back(text_behind(tokenizer, window, before, id), log_probability);
  }
  return tokens;
}

Json completion_logprobs(std::span<const ScoredToken> tokens, bool likeliest,
                         const std::string& before) {
  Json texts{Json::Array{}}, own{Json::Array{}}, top{Json::Array{}}, offsets{Json::Array{}};
  std::string text = before;
  for (const ScoredToken& t : tokens) text += t.token.bytes;
  const std::vector<size_t> ends = ends_of_characters(text);
  size_t said = before.size();  // bytes
  for (const ScoredToken& t : tokens) {
    texts.push_back(t.token.text);
    own.push_back(t.first ? Json() : Json(t.log_probability));
    offsets.push_back(std::ranges::upper_bound(ends, said) - ends.begin());
    said += t.token.bytes.size();
    if (t.first) {
      top.push_back(Json());
      continue;
    }
    Json place{Json::Object{}};
    place[t.token.text] = t.log_probability;
    // Two tokens may have one text: the likelier one counts.
    for (auto i = t.likeliest.rbegin(); i != t.likeliest.rend(); ++i)
      place[i->first.text] = i->second;
    top.push_back(std::move(place));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", likeliest ? std::move(top) : Json()},
          {"text_offset", std::move(offsets)}};
}

Json chat_logprobs(std::span<const ScoredToken> tokens) {
  Json content{Json::Array{}};
  const auto entry = [](const TokenText& token, double log_probability) {
    return Json{{"token", token.text}, {"logprob", log_probability}, {"bytes", list_of(token)}};
  };
  for (const ScoredToken& t : tokens) {
    Json one = entry(t.token, t.log_probability), top{Json::Array{}};
    for (const auto& [token, log_probability] : t.likeliest)
      top.push_back(entry(token, log_probability));
    one["top_logprobs"] = std::move(top);
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

}  // namespace saturate::serve
