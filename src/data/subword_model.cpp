// SPDX-License-Identifier: Apache-2.0
#include "data/subword_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/text_steps.h"

namespace saturate::data {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 24;

[[noreturn]] void fail(Errc code, const std::string& where, const std::string& what) {
  throw Error(code, "tokenizer", fmt::format("{}: {}", where, what));
}

// The printable character that stands for each byte in byte-level vocabularies: printable Latin-1
// stays, the others follow from U+0100 on. Source: openai/gpt-2, encoder.py.
const std::unordered_map<char32_t, char>& byte_of_character() {
  static const std::unordered_map<char32_t, char> all = [] {
    std::unordered_map<char32_t, char> map;
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      map[printable ? b : next++] = static_cast<char>(b);
    }
    return map;
  }();
  return all;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string_view next_character(std::string_view text, size_t at) {
  size_t end = at;
  next_utf8(text, end);
  return text.substr(at, end - at);
}

class Bpe : public SubwordModel {
 public:
  Bpe(const Json& json, bool byte_level, const std::string& where);
  void encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  struct Merge {
    int32_t rank = 0, id = 0;
  };
  void read_vocabulary(const Json& json, const std::string& where);
  void read_merges(const Json& json, const std::string& where);
  std::vector<int32_t> first_symbols(std::string_view word) const;

  const bool byte_level_;
  bool ignores_merges_ = false, fuses_unknown_ = false, falls_to_bytes_ = false;
  int32_t unknown_ = -1;
  std::unordered_map<std::string, int32_t> ids_;  // of pieces, byte-level ones as bytes
  std::array<int32_t, 256> id_of_byte_{};
  std::unordered_map<uint64_t, Merge> merges_;
};

Bpe::Bpe(const Json& json, bool byte_level, const std::string& where) : byte_level_(byte_level) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string* text = json[affix].if_string();
    if (text != nullptr && !text->empty())
      fail(Errc::unsupported, where, fmt::format("\"{}\" is \"{:.40}\"", affix, *text));
  }
  ignores_merges_ = is_true(json, "ignore_merges");
  fuses_unknown_ = is_true(json, "fuse_unk");
  falls_to_bytes_ = is_true(json, "byte_fallback");
  read_vocabulary(json, where);
  read_merges(json, where);
}

void Bpe::read_vocabulary(const Json& json, const std::string& where) {
  const Json::Object* vocab = member_of(json, "vocab", where).if_object();
  if (vocab == nullptr) fail(Errc::invalid_argument, where, "its \"vocab\" is no object");
  for (const Json::Member& m : *vocab) {
    const int64_t* id = m.value.if_int();
    if (id == nullptr || *id < 0 || *id >= kMaxVocab)
      fail(Errc::invalid_argument, where, fmt::format("\"{:.40}\" has no usable id", m.key));
    if (*id >= std::ssize(pieces_)) pieces_.resize(static_cast<size_t>(*id) + 1);
    pieces_[static_cast<size_t>(*id)] = m.key;
  }
  for (size_t id = 0; id < pieces_.size(); ++id) {
    if (pieces_[id].empty()) continue;
    ids_.emplace(byte_level_ ? bytes_of_piece(pieces_[id]) : pieces_[id], static_cast<int32_t>(id));
  }
  if (const std::string* piece = json["unk_token"].if_string()) {
    const auto found = ids_.find(*piece);
    if (found == ids_.end())
      fail(Errc::invalid_argument, where,
           fmt::format("its unk_token \"{:.40}\" is no piece", *piece));
    unknown_ = found->second;
  }
  for (size_t b = 0; b < 256 && (byte_level_ || falls_to_bytes_); ++b) {
    const char byte = static_cast<char>(b);
    const auto found = ids_.find(byte_level_ ? std::string(1, byte)
                                             : byte_piece(static_cast<unsigned char>(byte)));
    if (found == ids_.end())
      fail(Errc::unsupported, where, fmt::format("its vocabulary has no piece for byte {}", b));
    id_of_byte_[b] = found->second;
  }
}

void Bpe::read_merges(const Json& json, const std::string& where) {
  const Json::Array* pairs = member_of(json, "merges", where).if_array();
  if (pairs == nullptr) fail(Errc::invalid_argument, where, "its \"merges\" is no list");
  std::unordered_map<std::string_view, int32_t> spelled;
  for (size_t id = 0; id < pieces_.size(); ++id)
    if (!pieces_[id].empty()) spelled.emplace(pieces_[id], static_cast<int32_t>(id));
  const auto id_of = [&](const std::string& piece) {
    const auto found = spelled.find(piece);
    if (found == spelled.end())
      fail(Errc::invalid_argument, where, fmt::format("a merge has \"{:.40}\", no piece", piece));
    return found->second;
  };
  int32_t rank = 0;
  for (const Json& pair : *pairs) {
    std::string left, right;
    if (const std::string* both = pair.if_string()) {
      const size_t space = both->find(' ');
      left = both->substr(0, space);
      right = space == std::string::npos ? "" : both->substr(space + 1);
    } else if (pair.size() == 2) {
      left = text_of(pair[0], where), right = text_of(pair[1], where);
    }
    // Of a pair that is there twice the last counts, as in the library.
    merges_.insert_or_assign(pair_key(id_of(left), id_of(right)),
                             Merge{rank++, id_of(left + right)});
  }
}

// Of the word's bytes or characters.
std::vector<int32_t> Bpe::first_symbols(std::string_view word) const {
  std::vector<int32_t> symbols;
  if (byte_level_) {
    for (const char c : word) symbols.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
    return symbols;
  }
  bool after_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = next_character(word, at);
    at += character.size();
    const auto found = ids_.find(std::string(character));
    if (found != ids_.end()) {
      symbols.push_back(found->second);
    } else if (falls_to_bytes_) {
      for (const char c : character) symbols.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
    } else if (unknown_ >= 0 && !(after_unknown && fuses_unknown_)) {
      symbols.push_back(unknown_);
    }
    after_unknown = found == ids_.end() && !falls_to_bytes_;
  }
  return symbols;
}

// Merges the pair of lowest rank, the leftmost of equal ones, until none is left. Symbols are a linked
// list, so that a long word costs n log n.
void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignores_merges_) {
    const auto whole = ids_.find(std::string(word));
    if (whole != ids_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  struct Symbol {
    int32_t id, previous, next;
  };
  std::vector<Symbol> symbols;
  const std::vector<int32_t> first = first_symbols(word);
  const auto count = static_cast<int32_t>(first.size());
  for (int32_t i = 0; i < count; ++i)
    symbols.push_back({first[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  struct Candidate {
    int32_t rank, left, left_id, right_id, id;
    bool operator>(const Candidate& o) const {
      return std::tie(rank, left) > std::tie(o.rank, o.left);
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](int32_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const Symbol& b = symbols[static_cast<size_t>(a.next)];
    const auto found = merges_.find(pair_key(a.id, b.id));
    if (found != merges_.end())
      queue.push({found->second.rank, left, a.id, b.id, found->second.id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Symbol& a = symbols[static_cast<size_t>(c.left)];
    if (a.id != c.left_id || a.next < 0) continue;  // merged since
    Symbol& b = symbols[static_cast<size_t>(a.next)];
    if (b.id != c.right_id) continue;
    a.id = c.id;
    b.id = -1;
    a.next = b.next;
    if (a.next >= 0) symbols[static_cast<size_t>(a.next)].previous = c.left;
    propose(a.previous);
    propose(c.left);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = symbols[static_cast<size_t>(i)].next)
    ids.push_back(symbols[static_cast<size_t>(i)].id);
}

class Unigram : public SubwordModel {
 public:
  Unigram(const Json& json, const std::string& where);
  void encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  // Pieces that begin text[at..], shortest first, to `visit`(id, bytes).
  template <class Visit>
  void pieces_at(std::string_view text, size_t at, const Visit& visit) const;
  void put(std::string_view part, std::vector<int32_t>& ids) const;
  int32_t find(std::string_view piece) const;  // -1: none

  int32_t unknown_ = 0;
  bool falls_to_bytes_ = false;
  std::vector<double> scores_;        // by id
  std::vector<int32_t> sorted_;       // ids of pieces by their bytes; of equal ones the last alone
  std::array<size_t, 257> begins_{};  // of the pieces whose first byte is this, in sorted_
  double unknown_score_ = 0;
};

Unigram::Unigram(const Json& json, const std::string& where) {
  const Json::Array* vocab = member_of(json, "vocab", where).if_array();
  if (vocab == nullptr || vocab->empty() || std::ssize(*vocab) > kMaxVocab)
    fail(Errc::invalid_argument, where, "its \"vocab\" is no list of pieces and scores");
  double lowest = std::numeric_limits<double>::infinity();
  for (const Json& entry : *vocab) {
    const std::optional<double> score = entry[1].number();
    if (entry.size() != 2 || !score)
      fail(Errc::invalid_argument, where,
           fmt::format("entry {} of its \"vocab\" is no piece with a score", pieces_.size()));
    pieces_.push_back(text_of(entry[0], where));
    scores_.push_back(*score);
    lowest = std::min(lowest, *score);
  }
  const int64_t* unknown = json["unk_id"].if_int();
  if (unknown == nullptr || *unknown < 0 || *unknown >= std::ssize(pieces_))
    fail(Errc::unsupported, where, "its \"unk_id\" names no piece for what is unknown");
  unknown_ = static_cast<int32_t>(*unknown);
  falls_to_bytes_ = is_true(json, "byte_fallback");
  constexpr double kPenalty = 10;  // of the library and of SentencePiece
  unknown_score_ = lowest - kPenalty;

  for (size_t id = 0; id < pieces_.size(); ++id)
    if (!pieces_[id].empty()) sorted_.push_back(static_cast<int32_t>(id));
  const auto piece = [&](int32_t id) -> const std::string& {
    return pieces_[static_cast<size_t>(id)];
  };
  std::ranges::sort(sorted_, [&](int32_t a, int32_t b) {
    return piece(a) != piece(b) ? piece(a) < piece(b) : a > b;
  });
  const auto again =
      std::ranges::unique(sorted_, [&](int32_t a, int32_t b) { return piece(a) == piece(b); });
  sorted_.erase(again.begin(), again.end());
  size_t at = 0;
  for (size_t b = 0; b <= 256; ++b) {
    while (at < sorted_.size() && static_cast<unsigned char>(piece(sorted_[at])[0]) < b) ++at;
    begins_[b] = at;
  }
}

template <class Visit>
void Unigram::pieces_at(std::string_view text, size_t at, const Visit& visit) const {
  const auto byte_at = [&](size_t place, size_t depth) {
    return static_cast<unsigned char>(pieces_[static_cast<size_t>(sorted_[place])][depth]);
  };
  const auto first = static_cast<unsigned char>(text[at]);
  size_t low = begins_[first], high = begins_[first + 1];
  // All of [low, high) begin with the `depth` bytes from `at` on; the one that ends there is the first.
  for (size_t depth = 1; low < high; ++depth) {
    const int32_t id = sorted_[low];
    if (pieces_[static_cast<size_t>(id)].size() == depth) {
      visit(id, depth);
      ++low;
    }
    if (at + depth >= text.size() || low == high) return;
    const auto want = static_cast<unsigned char>(text[at + depth]);
    const auto bound = [&](size_t from, unsigned above) {
      size_t to = high;
      while (from < to) {
        const size_t middle = from + (to - from) / 2;
        byte_at(middle, depth) < above ? from = middle + 1 : to = middle;
      }
      return from;
    };
    low = bound(low, want);
    high = bound(low, want + 1u);
  }
}

int32_t Unigram::find(std::string_view whole) const {
  int32_t found = -1;
  if (!whole.empty())
    pieces_at(whole, 0, [&](int32_t id, size_t bytes) {
      if (bytes == whole.size()) found = id;
    });
  return found;
}

void Unigram::put(std::string_view part, std::vector<int32_t>& ids) const {
  if (const int32_t id = find(part); id >= 0) return ids.push_back(id);
  std::vector<int32_t> bytes;
  for (size_t i = 0; falls_to_bytes_ && i < part.size(); ++i)
    bytes.push_back(find(byte_piece(static_cast<unsigned char>(part[i]))));
  if (bytes.empty() || std::ranges::count(bytes, -1) > 0) return ids.push_back(unknown_);
  ids.insert(ids.end(), bytes.begin(), bytes.end());
}

// The cut of the best sum of scores; of equal ones that which was found first, as in the library.
void Unigram::encode(std::string_view word, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    size_t from = 0;
    int32_t id = -1;  // none yet
  };
  std::vector<Best> best(word.size() + 1);
  for (size_t at = 0; at < word.size();) {
    const double here = best[at].score;
    const size_t character = next_character(word, at).size();
    bool alone = false;  // a piece is this character
    const auto offer = [&](int32_t id, size_t bytes, double score) {
      Best& to = best[at + bytes];
      if (to.id < 0 || here + score > to.score) to = {here + score, at, id};
      alone = alone || bytes == character;
    };
    pieces_at(word, at, [&](int32_t id, size_t bytes) {
      offer(id, bytes, scores_[static_cast<size_t>(id)]);
    });
    if (!alone) offer(unknown_, character, unknown_score_);
    at += character;
  }
  std::vector<std::string_view> parts;  // last first
  bool open = false;                    // the part before is unknown: unknown ones are one
  for (size_t end = word.size(); end > 0;) {
    const Best& b = best[end];
    const std::string_view part = word.substr(b.from, end - b.from);
    const bool unknown = b.id == unknown_;
    if (unknown && open) {
      parts.back() = {part.data(), part.size() + parts.back().size()};
    } else {
      parts.push_back(part);
    }
    open = unknown;
    end = b.from;
  }
  for (size_t i = parts.size(); i > 0; --i) put(parts[i - 1], ids);
}

}  // namespace

std::string byte_piece(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::string bytes_of_piece(std::string_view piece) {
  std::string out;
  for (size_t at = 0; at < piece.size();) {
    const auto byte = byte_of_character().find(next_utf8(piece, at));
    if (byte == byte_of_character().end()) return std::string(piece);
    out += byte->second;
  }
  return out;
}

std::unique_ptr<const SubwordModel> read_subword_model(const Json& json, bool byte_level,
                                                       const std::string& where) {
  // Older files do not name the type, which their members show.
  const std::string type = json["type"].is_null() ? (json["vocab"].if_array() ? "Unigram" : "BPE")
                                                  : type_of(json, where);
  if (type == "BPE") return std::make_unique<const Bpe>(json, byte_level, where);
  if (type == "Unigram" && !byte_level) return std::make_unique<const Unigram>(json, where);
  fail(Errc::unsupported, where,
       fmt::format("its model is {}; BPE and Unigram of characters are known", type));
}

}  // namespace saturate::data
