// SPDX-License-Identifier: Apache-2.0
#include "data/json_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/subword_model.h"
#include "data/text_pattern.h"
#include "data/text_steps.h"
#include "data/token_decoder.h"

namespace saturate::data {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 24;

[[noreturn]] void fail(Errc code, const std::string& where, const std::string& what) {
  throw Error(code, "tokenizer", fmt::format("{}: {}", where, what));
}

Json parse(const std::string& text, const std::string& where) {
  constexpr JsonLimits kLimits{.max_bytes = size_t{256} << 20, .max_values = size_t{1} << 24};
  return parse_json(text, where, kLimits);
}

struct Added {
  std::string text;  // as it stands in texts: of some in their normal form
  int32_t id = 0;
  bool strips_left = false, strips_right = false;
};

// Tokens that texts spell out.
class AddedTokens {
 public:
  void add(Added token) {
    if (token.text.empty()) return;
    auto& list = by_first_[static_cast<unsigned char>(token.text[0])];
    list.push_back(std::move(token));
    // The longest first: of two that begin at one place it is the one meant.
    std::ranges::stable_sort(list, std::greater(), [](const Added& a) { return a.text.size(); });
  }
  // Of a segment: `word` for what no token takes, `token` for the tokens, in order.
  template <class Word, class Token>
  void split(const Segment& s, const Word& word, const Token& token) const {
    const std::string_view text = s.text;
    size_t from = 0;  // where the text begins that no token has taken
    const auto put = [&](size_t end) {
      if (end > from)
        word(Segment{std::string(text.substr(from, end - from)), s.first && from == 0});
    };
    for (size_t at = 0; at < text.size();) {
      const auto& list = by_first_[static_cast<unsigned char>(text[at])];
      const auto found = std::ranges::find_if(
          list, [&](const Added& a) { return text.substr(at).starts_with(a.text); });
      if (found == list.end()) {
        ++at;
        continue;
      }
      size_t end = at;
      at += found->text.size();
      while (found->strips_left && end > from) {
        size_t last = end - 1;
        while (last > from && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
        size_t after = last;
        if (!is_space(next_utf8(text, after))) break;
        end = last;
      }
      for (size_t after = at;
           found->strips_right && after < text.size() && is_space(next_utf8(text, after));)
        at = after;
      put(end);
      token(found->id);
      from = at;
    }
    put(text.size());
  }

 private:
  std::array<std::vector<Added>, 256> by_first_;
};

}  // namespace

struct JsonTokenizer::Impl {
  Impl(const Json& json, const std::string& where);
  void read_added(const Json& json, const std::string& where);
  void read_post_processor(const Json& json, const std::string& where);
  int32_t need_id(const std::string& piece, const std::string& where) const;

  const TextSteps steps;
  const std::unique_ptr<const SubwordModel> model;
  const TokenDecoder decoder;
  std::vector<std::string> pieces;                   // by id, those of added tokens too
  std::unordered_map<int32_t, std::string> written;  // what is not written as its piece
  std::unordered_map<std::string, int32_t> id_of;
  AddedTokens raw, normalised;  // before texts take their normal form, and after
  std::vector<char> special;    // by id
  std::vector<int32_t> before, after;
};

JsonTokenizer::Impl::Impl(const Json& json, const std::string& where)
    : steps(json["normalizer"], json["pre_tokenizer"], where),
      model(read_subword_model(member_of(json, "model", where), steps.byte_level(), where)),
      // Byte-level pieces are no text without theirs.
      decoder(json["decoder"].is_null() && steps.byte_level() ? Json{{"type", "ByteLevel"}}
                                                              : json["decoder"],
              where),
      pieces(model->pieces()) {
  for (size_t id = 0; id < pieces.size(); ++id)
    if (!pieces[id].empty()) id_of[pieces[id]] = static_cast<int32_t>(id);
  read_added(json["added_tokens"], where);
  read_post_processor(json["post_processor"], where);
}

int32_t JsonTokenizer::Impl::need_id(const std::string& piece, const std::string& where) const {
  const auto found = id_of.find(piece);
  if (found == id_of.end())
    fail(Errc::invalid_argument, where, fmt::format("it adds \"{:.40}\", no piece", piece));
  return found->second;
}

void JsonTokenizer::Impl::read_added(const Json& json, const std::string& where) {
  special.resize(pieces.size());
  if (json.is_null()) return;
  if (json.if_array() == nullptr) fail(Errc::invalid_argument, where, "added_tokens is no list");
  for (const Json& token : *json.if_array()) {
    const int64_t* id = token["id"].if_int();
    const std::string text = text_of(member_of(token, "content", where), where);
    if (id == nullptr || *id < 0 || *id >= kMaxVocab || text.empty())
      fail(Errc::invalid_argument, where, "an added token has no usable id or text");
    if (is_true(token, "single_word"))
      fail(Errc::unsupported, where,
           fmt::format("its added token \"{:.40}\" is of whole words", text));
    const auto at = static_cast<size_t>(*id);
    if (at >= pieces.size()) {
      pieces.resize(at + 1);
      special.resize(at + 1);
    }
    pieces[at] = text;
    id_of[text] = static_cast<int32_t>(*id);
    special[at] = is_true(token, "special") ? 1 : 0;
    const bool after_steps = is_true(token, "normalized");
    if (after_steps) written[static_cast<int32_t>(*id)] = steps.normalise(text);
    (after_steps ? normalised : raw)
        .add({.text = after_steps ? written[static_cast<int32_t>(*id)] : text,
              .id = static_cast<int32_t>(*id),
              .strips_left = is_true(token, "lstrip"),
              .strips_right = is_true(token, "rstrip")});
  }
}

void JsonTokenizer::Impl::read_post_processor(const Json& json, const std::string& where) {
  const std::string type = type_of(json, where);
  if (type == "none" || type == "ByteLevel") return;
  if (type == "Sequence") {
    const Json& parts = member_of(json, "processors", where);
    for (size_t i = 0; i < parts.size(); ++i) read_post_processor(parts[i], where);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    before.push_back(need_id(text_of(member_of(json, "cls", where)[0], where), where));
    after.push_back(need_id(text_of(member_of(json, "sep", where)[0], where), where));
  } else if (type == "TemplateProcessing") {
    const Json& parts = member_of(json, "single", where);
    bool behind = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].find("Sequence") != nullptr) {
        behind = true;
      } else {
        const Json& symbol = member_of(parts[i], "SpecialToken", where);
        (behind ? after : before)
            .push_back(need_id(text_of(member_of(symbol, "id", where), where), where));
      }
    }
  } else {
    fail(Errc::unsupported, where, fmt::format("it ends texts by {}", type));
  }
}

JsonTokenizer::JsonTokenizer(const std::string& json, const std::string& where)
    : impl_(std::make_unique<const Impl>(parse(json, where), where)) {}
JsonTokenizer::~JsonTokenizer() = default;

void JsonTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const Impl& t = *impl_;
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    fail(Errc::invalid_argument, "text", fmt::format("byte {} is not UTF-8", bad + 1));
  const auto token = [&](int32_t id) { ids.push_back(id); };
  const auto word = [&](Segment s) {
    for (const Segment& part : t.steps.split(std::move(s)))
      if (!part.text.empty()) t.model->encode(part.text, ids);
  };
  const auto stretch = [&](const Segment& s) {
    t.normalised.split({t.steps.normalise(s.text), s.first}, word, token);
  };
  t.raw.split({std::string(text), true}, stretch, token);
}

std::string JsonTokenizer::decode(std::span<const int32_t> ids) const {
  const Impl& t = *impl_;
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    if (id < 0 || id >= std::ssize(t.pieces) || t.special[static_cast<size_t>(id)] != 0) continue;
    const auto other = t.written.find(id);
    pieces.push_back(other != t.written.end() ? other->second : t.pieces[static_cast<size_t>(id)]);
  }
  return t.decoder.text_of(std::move(pieces));
}

const std::vector<int32_t>& JsonTokenizer::before() const noexcept { return impl_->before; }
const std::vector<int32_t>& JsonTokenizer::after() const noexcept { return impl_->after; }
const std::vector<std::string>& JsonTokenizer::pieces() const noexcept { return impl_->pieces; }
int32_t JsonTokenizer::id_of(std::string_view piece) const noexcept {
  const auto found = impl_->id_of.find(std::string(piece));
  return found == impl_->id_of.end() ? -1 : found->second;
}

}  // namespace saturate::data
