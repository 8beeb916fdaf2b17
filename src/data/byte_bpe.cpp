// SPDX-License-Identifier: Apache-2.0
#include "data/byte_bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

namespace saturate::data {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 24;
// Source: openai/gpt-2, encoder.py.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void fail(Errc code, const std::string& where, const std::string& what) {
  throw Error(code, "tokenizer", fmt::format("{}: {}", where, what));
}

const Json& need(const Json& of, const char* key, const std::string& where) {
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
  return json.is_null() ? "none" : text_of(need(json, "type", where), where);
}
bool is_true(const Json& of, const char* key) {
  const bool* value = of[key].if_bool();
  return value != nullptr && *value;
}

// The printable character that stands for each byte in byte-level vocabularies: printable Latin-1
// stays, the others follow from U+0100 on. Source: openai/gpt-2, encoder.py.
std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> all{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    all[b] = printable ? b : next++;
  }
  return all;
}

struct Added {
  std::string text;
  int32_t id = 0;
  bool special = false, strips_left = false, strips_right = false;
};

struct Pattern {
  explicit Pattern(const std::string& text, const std::string& where) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
                         &error, &at, nullptr);
    if (code == nullptr)
      fail(Errc::unsupported, where,
           fmt::format("its pattern {:.200} is not understood at byte {}", text, at));
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it matching is slower, and right
  }
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // The matches and what lies between them, in order: the behaviour "Isolated".
  std::vector<std::string_view> split(std::string_view text) const {
    std::vector<std::string_view> parts;
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
    size_t at = 0, from = 0;
    while (from < text.size()) {
      const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        fail(
            Errc::invalid_argument, "text",
            fmt::format("its words take the tokenizer's pattern beyond its limits (PCRE2 says {}); "
                        "break the line",
                        found));
      if (found < 0) break;
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
      if (range[1] == range[0]) {  // an empty match takes nothing
        from = range[1] + 1;
        while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80)
          ++from;
        continue;
      }
      if (range[0] > at) parts.push_back(text.substr(at, range[0] - at));
      parts.push_back(text.substr(range[0], range[1] - range[0]));
      at = from = range[1];
    }
    if (at < text.size()) parts.push_back(text.substr(at));
    return parts;
  }

  pcre2_code* code = nullptr;
};

bool is_space(char32_t c) {
  if (c >= 9 && c <= 13) return true;
  if (c == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

std::string nfc(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, std::free);
  if (size < 0) fail(Errc::invalid_argument, "text", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

struct ByteBpe::Impl {
  struct Merge {
    int32_t rank = 0, id = 0;
  };

  Impl(const std::string& json_text, const std::string& name);
  void read_normalizer(const Json& json);
  void read_pre_tokenizer(const Json& json);
  void read_model(const Json& json);
  void read_added(const Json& json);
  void read_post_processor(const Json& json);

  std::string bytes_of(const std::string& piece) const;
  void encode_part(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::string where;
  std::unordered_map<char32_t, char> byte_of;
  std::vector<std::string> pieces, bytes;  // by id
  std::unordered_map<std::string, int32_t> id_of_piece, id_of_bytes;
  std::array<int32_t, 256> id_of_byte{};
  std::unordered_map<uint64_t, Merge> merges;
  std::vector<Added> added;
  std::vector<char> special;  // by id
  std::vector<std::unique_ptr<const Pattern>> patterns;
  std::vector<int32_t> before, after;
  bool composes = false, ignore_merges = false, prefix_space = false;
};

ByteBpe::Impl::Impl(const std::string& json_text, const std::string& name) : where(name) {
  constexpr JsonLimits kLimits{.max_bytes = size_t{256} << 20, .max_values = size_t{1} << 24};
  const Json json = parse_json(json_text, where, kLimits);
  const std::array<char32_t, 256> characters = byte_characters();
  for (size_t b = 0; b < 256; ++b) byte_of[characters[b]] = static_cast<char>(b);
  read_model(need(json, "model", where));
  read_added(json["added_tokens"]);
  read_normalizer(json["normalizer"]);
  read_pre_tokenizer(json["pre_tokenizer"]);
  read_post_processor(json["post_processor"]);
}

// Of what a piece spells; pieces that are no bytes (added tokens) spell themselves.
std::string ByteBpe::Impl::bytes_of(const std::string& piece) const {
  std::string out;
  for (size_t at = 0; at < piece.size();) {
    const auto byte = byte_of.find(next_utf8(piece, at));
    if (byte == byte_of.end()) return piece;
    out += byte->second;
  }
  return out;
}

void ByteBpe::Impl::read_model(const Json& json) {
  const std::string type = json["type"].is_null() ? "BPE" : type_of(json, where);
  const Json::Object* vocab = need(json, "vocab", where).if_object();
  const Json::Array* pairs = need(json, "merges", where).if_array();
  if (type != "BPE" || vocab == nullptr || pairs == nullptr)
    fail(Errc::unsupported, where,
         fmt::format(
             "its model is {}; Saturate reads byte-level BPE from this file, and other kinds "
             "from SentencePiece's (tokenizer.model, spiece.model, source.spm)",
             type));
  for (const char* suffix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string* text = json[suffix].if_string();
    if (text != nullptr && !text->empty())
      fail(Errc::unsupported, where, fmt::format("\"{}\" is \"{:.40}\"", suffix, *text));
  }
  if (is_true(json, "byte_fallback"))
    fail(Errc::unsupported, where,
         "its BPE is of characters with bytes behind them; put the tokenizer.model that comes with "
         "it "
         "into the folder");
  ignore_merges = is_true(json, "ignore_merges");
  for (const Json::Member& m : *vocab) {
    const int64_t* id = m.value.if_int();
    if (id == nullptr || *id < 0 || *id >= kMaxVocab)
      fail(Errc::invalid_argument, where, fmt::format("\"{:.40}\" has no usable id", m.key));
    if (*id >= std::ssize(pieces)) pieces.resize(static_cast<size_t>(*id) + 1);
    pieces[static_cast<size_t>(*id)] = m.key;
    id_of_piece[m.key] = static_cast<int32_t>(*id);
  }
  for (size_t id = 0; id < pieces.size(); ++id) {
    bytes.push_back(bytes_of(pieces[id]));
    if (!pieces[id].empty()) id_of_bytes.emplace(bytes[id], static_cast<int32_t>(id));
  }
  for (size_t b = 0; b < 256; ++b) {
    const auto found = id_of_bytes.find(std::string(1, static_cast<char>(b)));
    if (found == id_of_bytes.end())
      fail(Errc::unsupported, where, fmt::format("its vocabulary has no piece for byte {}", b));
    id_of_byte[b] = found->second;
  }
  const auto id_of = [&](const std::string& piece) {
    const auto found = id_of_piece.find(piece);
    if (found == id_of_piece.end())
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
    merges.try_emplace(pair_key(id_of(left), id_of(right)), Merge{rank++, id_of(left + right)});
  }
}

void ByteBpe::Impl::read_added(const Json& json) {
  if (json.is_null()) return;
  if (json.if_array() == nullptr) fail(Errc::invalid_argument, where, "added_tokens is no list");
  for (const Json& token : *json.if_array()) {
    const int64_t* id = token["id"].if_int();
    Added a{.text = text_of(need(token, "content", where), where),
            .special = is_true(token, "special"),
            .strips_left = is_true(token, "lstrip"),
            .strips_right = is_true(token, "rstrip")};
    if (id == nullptr || *id < 0 || *id >= kMaxVocab || a.text.empty())
      fail(Errc::invalid_argument, where, "an added token has no usable id or text");
    if (is_true(token, "single_word"))
      fail(Errc::unsupported, where,
           fmt::format("its added token \"{:.40}\" is of whole words", a.text));
    a.id = static_cast<int32_t>(*id);
    if (*id >= std::ssize(pieces)) {
      pieces.resize(static_cast<size_t>(*id) + 1);
      bytes.resize(pieces.size());
    }
    pieces[static_cast<size_t>(*id)] = a.text;
    bytes[static_cast<size_t>(*id)] = a.text;
    id_of_piece[a.text] = a.id;
    special.resize(pieces.size());
    special[static_cast<size_t>(*id)] = a.special ? 1 : 0;
    added.push_back(std::move(a));
  }
  special.resize(pieces.size());
  // The longest first: of two that begin at one place it is the one meant.
  std::ranges::stable_sort(added, std::greater(), [](const Added& a) { return a.text.size(); });
}

void ByteBpe::Impl::read_normalizer(const Json& json) {
  const std::string type = type_of(json, where);
  if (type == "none") return;
  if (type == "Sequence") {
    const Json& parts = need(json, "normalizers", where);
    for (size_t i = 0; i < parts.size(); ++i) read_normalizer(parts[i]);
    return;
  }
  if (type != "NFC")
    fail(Errc::unsupported, where, fmt::format("it normalises by {}; NFC is known", type));
  composes = true;
}

void ByteBpe::Impl::read_pre_tokenizer(const Json& json) {
  const std::string type = type_of(json, where);
  if (type == "Sequence") {
    const Json& parts = need(json, "pretokenizers", where);
    for (size_t i = 0; i < parts.size(); ++i) read_pre_tokenizer(parts[i]);
    return;
  }
  if (type == "ByteLevel") {
    prefix_space = is_true(json, "add_prefix_space");
    const bool* uses = json["use_regex"].if_bool();
    if (uses == nullptr || *uses)
      patterns.push_back(std::make_unique<const Pattern>(kGpt2Pattern, where));
    return;
  }
  const std::string* pattern = json["pattern"]["Regex"].if_string();
  if (type != "Split" || pattern == nullptr || is_true(json, "invert") ||
      text_of(need(json, "behavior", where), where) != "Isolated")
    fail(Errc::unsupported, where,
         fmt::format("it splits text by {}; ByteLevel and Split by an isolated pattern are known",
                     type));
  patterns.push_back(std::make_unique<const Pattern>(*pattern, where));
}

void ByteBpe::Impl::read_post_processor(const Json& json) {
  const std::string type = type_of(json, where);
  if (type == "none" || type == "ByteLevel") return;
  const auto id_of = [&](const std::string& piece) {
    const auto found = id_of_piece.find(piece);
    if (found == id_of_piece.end())
      fail(Errc::invalid_argument, where, fmt::format("it adds \"{:.40}\", no piece", piece));
    return found->second;
  };
  if (type == "Sequence") {
    const Json& parts = need(json, "processors", where);
    for (size_t i = 0; i < parts.size(); ++i) read_post_processor(parts[i]);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    before.push_back(id_of(text_of(need(json, "cls", where)[0], where)));
    after.push_back(id_of(text_of(need(json, "sep", where)[0], where)));
  } else if (type == "TemplateProcessing") {
    const Json& parts = need(json, "single", where);
    bool behind = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].find("Sequence") != nullptr) {
        behind = true;
      } else {
        const Json& symbol = need(parts[i], "SpecialToken", where);
        (behind ? after : before).push_back(id_of(text_of(need(symbol, "id", where), where)));
      }
    }
  } else {
    fail(Errc::unsupported, where, fmt::format("it ends texts by {}", type));
  }
}

// Merges the pair of lowest rank, the leftmost of equal ones, until none is left. Symbols are a linked
// list, so that a long word costs n log n.
void ByteBpe::Impl::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges) {
    const auto whole = id_of_bytes.find(std::string(word));
    if (whole != id_of_bytes.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  struct Symbol {
    int32_t id, previous, next;
  };
  std::vector<Symbol> symbols;
  const auto count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    symbols.push_back({id_of_byte[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
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
    const auto found = merges.find(pair_key(a.id, b.id));
    if (found != merges.end()) queue.push({found->second.rank, left, a.id, b.id, found->second.id});
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

// Text without added tokens.
void ByteBpe::Impl::encode_part(std::string_view part, std::vector<int32_t>& ids) const {
  if (part.empty()) return;
  if (const size_t bad = find_invalid_utf8(part); bad != std::string_view::npos) {
    if (!patterns.empty() || composes)
      fail(Errc::invalid_argument, "text", fmt::format("byte {} is not UTF-8", bad + 1));
  }
  std::string text(part);
  if (composes) text = nfc(part);
  if (prefix_space && !text.starts_with(' ')) text.insert(text.begin(), ' ');
  std::vector<std::string_view> words{text};
  for (const auto& pattern : patterns) {
    std::vector<std::string_view> next;
    for (const std::string_view word : words) {
      const std::vector<std::string_view> split = pattern->split(word);
      next.insert(next.end(), split.begin(), split.end());
    }
    words = std::move(next);
  }
  for (const std::string_view word : words) encode_word(word, ids);
}

ByteBpe::ByteBpe(const std::string& json, const std::string& where)
    : impl_(std::make_unique<const Impl>(json, where)) {}
ByteBpe::~ByteBpe() = default;

void ByteBpe::encode(std::string_view text, std::vector<int32_t>& ids) const {
  size_t from = 0;  // where the text begins that no token has taken
  for (size_t at = 0; at < text.size();) {
    const auto found = std::ranges::find_if(
        impl_->added, [&](const Added& a) { return text.substr(at).starts_with(a.text); });
    if (found == impl_->added.end()) {
      ++at;
      continue;
    }
    std::string_view part = text.substr(from, at - from);
    at += found->text.size();
    while (found->strips_left && !part.empty()) {
      size_t last = part.size() - 1;
      while (last > 0 && (static_cast<unsigned char>(part[last]) & 0xC0) == 0x80) --last;
      size_t end = last;
      if (!is_space(next_utf8(part, end))) break;
      part = part.substr(0, last);
    }
    for (size_t end = at;
         found->strips_right && end < text.size() && is_space(next_utf8(text, end));)
      at = end;
    impl_->encode_part(part, ids);
    ids.push_back(found->id);
    from = at;
  }
  impl_->encode_part(text.substr(std::min(from, text.size())), ids);
}

std::string ByteBpe::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= std::ssize(impl_->bytes) || impl_->special[static_cast<size_t>(id)] != 0)
      continue;
    text += impl_->bytes[static_cast<size_t>(id)];
  }
  return text;
}

const std::vector<int32_t>& ByteBpe::before() const noexcept { return impl_->before; }
const std::vector<int32_t>& ByteBpe::after() const noexcept { return impl_->after; }
const std::vector<std::string>& ByteBpe::pieces() const noexcept { return impl_->pieces; }
int32_t ByteBpe::id_of(std::string_view piece) const noexcept {
  const auto found = impl_->id_of_piece.find(std::string(piece));
  return found == impl_->id_of_piece.end() ? -1 : found->second;
}

}  // namespace saturate::data
