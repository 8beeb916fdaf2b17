// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_json.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/protobuf.h"
#include "base/utf8.h"

namespace saturate::data {
namespace {

constexpr std::string_view kSpace = "\u2581";  // SentencePiece's mark of a space

// Source: sentencepiece_model.proto of google/sentencepiece: field numbers, kinds and defaults.
struct SpmModel {
  enum Type : uint64_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum Kind : uint64_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6
  };
  struct Piece {
    std::string_view text;
    float score = 0;
    uint64_t kind = normal;
  };
  std::vector<Piece> pieces;
  uint64_t type = unigram;
  std::string_view charsmap;
  bool dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool whitespace_as_suffix = false, byte_fallback = false;
};

SpmModel::Piece read_piece(std::string_view bytes) {
  SpmModel::Piece piece;
  ProtobufFields fields(bytes);
  for (ProtobufFields::Field f; fields.next(f);) {
    if (f.number == 1) piece.text = f.bytes;
    if (f.number == 2 && f.bytes.size() == sizeof piece.score)
      std::memcpy(&piece.score, f.bytes.data(), sizeof piece.score);  // little endian, as our hosts
    if (f.number == 3) piece.kind = f.integer;
  }
  return piece;
}

// The tokenizer has parsed it before, so it is whole.
SpmModel read_model(std::string_view serialized) {
  SpmModel m;
  ProtobufFields model(serialized);
  for (ProtobufFields::Field part; model.next(part);) {
    ProtobufFields fields(part.bytes);
    ProtobufFields::Field f;
    if (part.number == 1) m.pieces.push_back(read_piece(part.bytes));
    while (part.number == 2 && fields.next(f)) {  // trainer_spec
      if (f.number == 3) m.type = f.integer;
      if (f.number == 24) m.whitespace_as_suffix = f.integer != 0;
      if (f.number == 35) m.byte_fallback = f.integer != 0;
    }
    while (part.number == 3 && fields.next(f)) {  // normalizer_spec
      if (f.number == 2) m.charsmap = f.bytes;
      if (f.number == 3) m.dummy_prefix = f.integer != 0;
      if (f.number == 4) m.remove_extra_whitespaces = f.integer != 0;
      if (f.number == 5) m.escape_whitespaces = f.integer != 0;
    }
  }
  return m;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

// The printable character that stands for a byte in byte-level vocabularies.
// Source: openai/gpt-2, encoder.py: printable Latin-1 stays, the others follow from U+0100 on.
std::string byte_character(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  if (printable(byte)) return encode_utf8(std::u32string(1, static_cast<char32_t>(byte)));
  char32_t place = 0;
  for (int b = 0; b < byte; ++b) place += printable(b) ? 0 : 1;
  return encode_utf8(std::u32string(1, 0x100 + place));
}

Json added_token(int32_t id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json sequence(const char* of, Json parts) { return {{"type", "Sequence"}, {of, std::move(parts)}}; }

Json normalizer(const SpmModel& m) {
  Json steps = Json::Array{};
  if (!m.charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64(m.charsmap)}});
  if (m.remove_extra_whitespaces) {
    steps.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  }
  if (m.dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", " "}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  return sequence("normalizers", std::move(steps));
}

// Words apart, which is quicker and changes nothing where no piece reaches over a space.
Json pre_tokenizer(const SpmModel& m) {
  for (const SpmModel::Piece& p : m.pieces) {
    if (p.kind == SpmModel::normal && p.text.find(kSpace, 1) != std::string_view::npos) return {};
  }
  return {{"type", "Split"},
          {"pattern", {{"String", kSpace}}},
          {"behavior", "MergedWithNext"},
          {"invert", false}};
}

Json decoder(const SpmModel& m) {
  Json steps = Json::Array{};
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}});
  if (m.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (m.dummy_prefix)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence("decoders", std::move(steps));
}

// Every way to put a piece together from two others, best piece first: SentencePiece takes the pair
// whose sum has the best score.
Json merges(const SpmModel& m, const std::unordered_map<std::string_view, int32_t>& ids) {
  std::unordered_map<std::string_view, float> known;
  std::vector<const SpmModel::Piece*> order;
  for (const SpmModel::Piece& p : m.pieces) {
    if (p.kind != SpmModel::normal || !ids.contains(p.text)) continue;
    known.emplace(p.text, p.score);
    order.push_back(&p);
  }
  std::ranges::stable_sort(order, [](const auto* a, const auto* b) { return a->score > b->score; });
  Json pairs = Json::Array{};
  for (const SpmModel::Piece* p : order) {
    for (size_t cut = 1; cut < p->text.size(); ++cut) {
      const std::string_view left = p->text.substr(0, cut), right = p->text.substr(cut);
      if (known.contains(left) && known.contains(right)) pairs.push_back(Json::Array{left, right});
    }
  }
  return pairs;
}

// Unigram also does for character models: their pieces leave one way to cut a text.
Json spm_model(const SpmModel& m, const Tokenizer& t) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (int32_t id = 0; id < t.vocab_size(); ++id) ids.emplace(t.piece(id), id);
  if (m.type == SpmModel::bpe) {
    Json vocab = Json::Object{};
    for (int32_t id = 0; id < t.vocab_size(); ++id) {
      if (ids.at(t.piece(id)) == id) vocab.add(t.piece(id), id);
    }
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", t.piece(t.unk_id())},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", m.byte_fallback},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", merges(m, ids)}};
  }
  float lowest = 0;
  std::unordered_map<std::string_view, float> scores;
  for (const SpmModel::Piece& p : m.pieces) {
    if (p.kind == SpmModel::unused || p.kind == SpmModel::byte) continue;
    lowest = std::min(lowest, p.score);
    scores.emplace(p.text, p.score);
  }
  Json vocab = Json::Array{};
  for (const std::string& piece : t.pieces()) {
    const auto at = scores.find(piece);
    // What stands for something else (bytes, <pad>) must not win where a text has its letters.
    const double score = at == scores.end() ? 1000 * lowest - 1000 : at->second;
    vocab.push_back(Json::Array{piece, score});
  }
  return {{"type", "Unigram"},
          {"unk_id", t.unk_id()},
          {"byte_fallback", m.byte_fallback},
          {"vocab", std::move(vocab)}};
}

Json byte_model(const Tokenizer& t) {
  Json vocab = Json::Object{};
  for (const int32_t id : {t.eos_id(), t.unk_id(), t.pad_id()}) vocab[t.piece(id)] = id;
  std::vector<int32_t> id;
  for (int byte = 0; byte < 256; ++byte) {
    id.clear();
    const char text = static_cast<char>(byte);
    t.encode({&text, 1}, id);
    vocab.add(byte_character(byte), id.at(0));
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", Json::Array{}}};
}

[[noreturn]] void cannot(const char* what) {
  throw Error(Errc::unsupported, "tokenizer",
              std::string("tokenizer.json cannot be written for a SentencePiece model ") + what +
                  "; other programs need its .spm file");
}

}  // namespace

std::string tokenizer_json(const Tokenizer& t, SentenceEnd end) {
  std::map<int32_t, Json> added;
  for (const int32_t id : {t.eos_id(), t.unk_id(), t.pad_id()})
    added[id] = added_token(id, t.piece(id), true);
  Json out = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  if (t.is_bytes()) {
    const Json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", false}};
    out["normalizer"] = nullptr;
    out["pre_tokenizer"] = byte_level;
    out["decoder"] = byte_level;
    out["model"] = byte_model(t);
  } else {
    const SpmModel m = read_model(t.serialized());
    if (m.type == SpmModel::word) cannot("of whole words");
    if (m.whitespace_as_suffix) cannot("with spaces as suffixes");
    if (!m.escape_whitespaces) cannot("that does not mark spaces");
    for (const SpmModel::Piece& p : m.pieces) {
      if (p.kind != SpmModel::user_defined) continue;
      const auto at = std::ranges::find(t.pieces(), p.text);
      const auto id = static_cast<int32_t>(at - t.pieces().begin());
      if (at != t.pieces().end() && !added.contains(id)) added[id] = added_token(id, *at, false);
    }
    out["normalizer"] = normalizer(m);
    out["pre_tokenizer"] = pre_tokenizer(m);
    out["decoder"] = decoder(m);
    out["model"] = spm_model(m, t);
  }
  out["added_tokens"] = Json::Array{};
  for (auto& [id, token] : added) out["added_tokens"].push_back(std::move(token));
  out["post_processor"] = nullptr;
  if (end == SentenceEnd::appended) {
    const std::string& eos = t.piece(t.eos_id());
    const Json symbol = {{"SpecialToken", {{"id", eos}, {"type_id", 0}}}};
    const auto text = [](const char* id) {
      return Json{{"Sequence", {{"id", id}, {"type_id", 0}}}};
    };
    out["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", Json::Array{text("A"), symbol}},
        {"pair", Json::Array{text("A"), text("B"), symbol}},
        {"special_tokens",
         {{eos, {{"id", eos}, {"ids", Json::Array{t.eos_id()}}, {"tokens", Json::Array{eos}}}}}}};
  }
  return out.dump();
}

}  // namespace saturate::data
