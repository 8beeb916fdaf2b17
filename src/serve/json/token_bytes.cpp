// SPDX-License-Identifier: Apache-2.0
#include "serve/json/token_bytes.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/utf8.h"
#include "data/subword_model.h"

namespace saturate::serve {
namespace {

constexpr std::string_view kNoCharacter = "\xEF\xBF\xBD";  // U+FFFD, of part of a character

// The bytes of a piece that is no text by itself: "<0xE2>", or byte-level BPE's letters.
std::string bytes_of(const std::string& piece) {
  unsigned value = 0;
  int read = 0;
  if (std::sscanf(piece.c_str(), "<0x%2X>%n", &value, &read) == 1 && read == std::ssize(piece))
    return {static_cast<char>(value)};
  return data::bytes_of_piece(piece);
}

// Characters of a plain token; -1: it is not plain.
int32_t plain_characters(std::string_view bytes) {
  if (find_invalid_utf8(bytes) != bytes.npos) return -1;
  int32_t count = 0;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == '"' || byte == '\\') return -1;
    count += (byte & 0xC0) != 0x80 ? 1 : 0;
  }
  return count <= TokenBytes::kPlain ? count : -1;
}

std::vector<int32_t> some_ids(std::span<const std::string> bytes, bool plain_too) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!bytes[i].empty() && (plain_too || plain_characters(bytes[i]) < 0))
      ids.push_back(static_cast<int32_t>(i));
  return ids;
}

}  // namespace

std::vector<int32_t> ends_of(const model::ModelConfig& config) {
  std::vector<int32_t> ends(config.more_eos_ids.begin(), config.more_eos_ids.end());
  if (config.eos_id >= 0) ends.push_back(static_cast<int32_t>(config.eos_id));
  return ends;
}

std::vector<std::string> token_bytes(const data::Tokenizer& tokenizer,
                                     const model::ModelConfig& config) {
  std::vector<std::string> all(static_cast<size_t>(config.vocab_target));
  if (tokenizer.is_ids()) return all;
  const std::vector<int32_t> ends = ends_of(config);
  // Behind a text, since some tokenizers drop the space that a text begins with.
  std::vector<int32_t> ids;
  tokenizer.encode_text("a", ids);
  const std::string before = tokenizer.decode(ids);
  const auto known = std::min<int64_t>(tokenizer.vocab_size(), config.vocab_target);
  for (int32_t id = 0; id < known; ++id) {
    if (id == tokenizer.eos_id() || id == tokenizer.pad_id() || id == tokenizer.unk_id()) continue;
    if (std::ranges::count(ends, id) > 0) continue;
    ids.push_back(id);
    const std::string now = tokenizer.decode(ids);
    ids.pop_back();
    if (!now.starts_with(before) || now.size() == before.size()) continue;
    std::string added = now.substr(before.size());
    // Part of a character: by the piece, where the text does not say which.
    if (added.find(kNoCharacter) != added.npos) added = bytes_of(tokenizer.piece(id));
    // Bytes of marks are of no text, and of these tokens then.
    const bool of_mark = std::ranges::any_of(
        kTokenMarks, [&](const TokenMark& mark) { return added.find(mark.byte) != added.npos; });
    if (!of_mark) all[static_cast<size_t>(id)] = std::move(added);
  }
  for (const TokenMark& mark : kTokenMarks) {
    ids.clear();
    tokenizer.encode_text(mark.name, ids);
    if (ids.size() == 1 && ids[0] < known && all[static_cast<size_t>(ids[0])].empty())
      all[static_cast<size_t>(ids[0])] = mark.byte;
  }
  return all;
}

TokenTree::TokenTree(std::span<const std::string> bytes, std::vector<int32_t> chosen)
    : ids(std::move(chosen)) {
  const auto text = [&](int32_t id) -> const std::string& {
    return bytes[static_cast<size_t>(id)];
  };
  std::ranges::sort(ids, [&](int32_t a, int32_t b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<int32_t> path;  // nodes, one a byte, of the token before
  std::string_view last;
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes[static_cast<size_t>(path.back())].end = static_cast<int32_t>(nodes.size());
      path.pop_back();
    }
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view now = text(ids[i]);
    const auto same = static_cast<size_t>(std::ranges::mismatch(last, now).in1 - last.begin());
    close(same);
    for (const char c : now.substr(same)) {
      path.push_back(static_cast<int32_t>(nodes.size()));
      nodes.push_back({static_cast<unsigned char>(c), 0, static_cast<int32_t>(i)});
    }
    last = now;
  }
  close(0);
  nodes.push_back({0, static_cast<int32_t>(nodes.size()) + 1, static_cast<int32_t>(ids.size())});
}

TokenBytes::TokenBytes(std::vector<std::string> bytes)
    : bytes_(std::move(bytes)),
      plain_(static_cast<size_t>(kPlain) + 1, TokenMask(words())),
      all_(bytes_, some_ids(bytes_, true)),
      special_(bytes_, some_ids(bytes_, false)) {
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const int32_t count = bytes_[i].empty() ? -1 : plain_characters(bytes_[i]);
    for (int32_t most = count; count > 0 && most <= kPlain; ++most)
      allow_token(plain_[static_cast<size_t>(most)], static_cast<int32_t>(i));
  }
}

const TokenMask& TokenBytes::plain(int32_t characters) const {
  return plain_[static_cast<size_t>(characters < 0 ? kPlain : std::min(characters, kPlain))];
}

std::span<const int32_t> TokenBytes::those_of(std::string_view bytes) const {
  const auto found = std::ranges::equal_range(all_.ids, bytes, {},
                                              [&](int32_t id) { return std::string_view(of(id)); });
  return {found.begin(), found.end()};
}

bool TokenBytes::spells(std::string_view character) const {
  const auto has = [&](std::string_view text) { return !those_of(text).empty(); };
  if (has(character)) return true;
  for (size_t i = 0; i < character.size(); ++i)
    if (!has(character.substr(i, 1))) return false;
  return true;
}

}  // namespace saturate::serve
