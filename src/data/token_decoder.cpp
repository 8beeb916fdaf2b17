// SPDX-License-Identifier: Apache-2.0
#include "data/token_decoder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"
#include "data/subword_model.h"
#include "data/text_steps.h"

namespace saturate::data {
namespace {

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

// Pieces <0x..> in a row are bytes of characters; where they make none each is U+FFFD.
void join_bytes(std::vector<std::string>& pieces) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (find_invalid_utf8(bytes) == std::string::npos) {
      if (!bytes.empty()) out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\uFFFD");
    }
    bytes.clear();
  };
  for (std::string& p : pieces) {
    unsigned value = 0;
    if (p.size() == 6 && p.starts_with("<0x") && p[5] == '>' &&
        std::from_chars(p.data() + 3, p.data() + 5, value, 16).ptr == p.data() + 5) {
      bytes += static_cast<char>(value);
    } else {
      flush();
      out.push_back(std::move(p));
    }
  }
  flush();
  pieces = std::move(out);
}

}  // namespace

TokenDecoder::TokenDecoder(const Json& json, const std::string& where) : spaced_(json.is_null()) {
  read(json, where);
}

std::string TokenDecoder::text_of(std::vector<std::string> pieces) const {
  for (const Step& step : steps_) step(pieces);
  return fmt::format("{}", fmt::join(pieces, spaced_ ? " " : ""));
}

void TokenDecoder::read(const Json& json, const std::string& where) {
  const std::string type = type_of(json, where);
  if (type == "none") return;
  if (type == "Sequence") {
    const Json& parts = member_of(json, "decoders", where);
    for (size_t i = 0; i < parts.size(); ++i) read(parts[i], where);
  } else if (type == "ByteLevel") {
    steps_.emplace_back([](auto& pieces) {
      for (std::string& p : pieces) p = bytes_of_piece(p);
    });
  } else if (type == "Metaspace") {
    const std::string mark = data::text_of(member_of(json, "replacement", where), where);
    const bool* adds = json["add_prefix_space"].if_bool();
    const std::string* scheme = json["prepend_scheme"].if_string();
    const bool prepended = scheme != nullptr ? *scheme != "never" : adds == nullptr || *adds;
    if (mark.empty())
      throw Error(Errc::invalid_argument, "tokenizer",
                  where + ": its decoder has no mark of spaces");
    steps_.emplace_back([mark, prepended](auto& pieces) {
      for (size_t i = 0; i < pieces.size(); ++i)
        replace_all(pieces[i], mark, i == 0 && prepended ? "" : " ");
    });
  } else if (type == "Replace") {
    const std::string what = data::text_of(member_of(json, "pattern", where)["String"], where),
                      with = data::text_of(member_of(json, "content", where), where);
    if (what.empty())
      throw Error(Errc::invalid_argument, "tokenizer",
                  where + ": its decoder replaces an empty text");
    steps_.emplace_back([what, with](auto& pieces) {
      for (std::string& p : pieces) replace_all(p, what, with);
    });
  } else if (type == "ByteFallback") {
    steps_.emplace_back(join_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back([](auto& pieces) { pieces = {fmt::format("{}", fmt::join(pieces, ""))}; });
  } else if (type == "Strip") {
    const std::string what = data::text_of(member_of(json, "content", where), where);
    const int64_t *start = json["start"].if_int(), *stop = json["stop"].if_int();
    if (what.empty() || start == nullptr || stop == nullptr)
      throw Error(Errc::invalid_argument, "tokenizer", where + ": its decoder strips nothing");
    steps_.emplace_back([what, first = *start, last = *stop](auto& pieces) {
      for (std::string& p : pieces) {
        for (int64_t n = 0; n < first && p.starts_with(what); ++n) p.erase(0, what.size());
        for (int64_t n = 0; n < last && p.ends_with(what); ++n) p.resize(p.size() - what.size());
      }
    });
  } else {
    throw Error(Errc::unsupported, "tokenizer",
                fmt::format("{}: it decodes by {}; ByteLevel, Metaspace, Replace, ByteFallback, "
                            "Fuse and Strip are known",
                            where, type));
  }
}

}  // namespace saturate::data
