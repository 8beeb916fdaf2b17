// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"
#include "data/json_tokenizer.h"
#include "data/sentencepiece_check.h"

namespace saturate::data {
namespace {

constexpr int32_t kByteOffset = 2;  // ids 0 and 1 are </s> and <unk>
constexpr std::streamoff kMaxModelBytes = std::streamoff{256} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw Error(Errc::invalid_argument, "tokenizer", fmt::format("{}: {}", name, what));
}

std::string read_file(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    fail(path, "is a folder; give the tokenizer's file in it");
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) throw Error(Errc::io, "tokenizer", path + ": cannot be opened; check the path");
  const std::streamoff size = in.tellg();
  if (size <= 0 || size > kMaxModelBytes)
    fail(path, fmt::format("has {} bytes; a tokenizer file has 1 to {}", size, kMaxModelBytes));
  std::string bytes(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(bytes.data(), size)) throw Error(Errc::io, "tokenizer", path + ": cannot be read");
  return bytes;
}

// Pieces by id from vocab.json.
std::vector<std::string> parse_vocab(const std::string& text, const std::string& name) {
  constexpr JsonLimits kLimits{.max_bytes = kMaxModelBytes, .max_values = kMaxVocab + 1};
  const std::optional<Json> json = try_parse_json(text, kLimits);
  if (!json || !json->if_object() || json->size() == 0)
    fail(name, "is not a JSON object of piece: id; copy it again");
  std::vector<std::string> pieces(json->size());
  std::vector<char> seen(json->size());
  for (const auto& [piece, number] : *json->if_object()) {
    const int64_t* id = number.if_int();
    if (!id || *id < 0 || *id >= std::ssize(pieces) || seen[static_cast<size_t>(*id)])
      fail(name, fmt::format("gives \"{}\" an id that is no integer, used twice, or not "
                             "below the number of pieces {}",
                             piece, json->size()));
    seen[static_cast<size_t>(*id)] = 1;
    pieces[static_cast<size_t>(*id)] = piece;
  }
  return pieces;
}

}  // namespace

struct Tokenizer::Impl {
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> spm;  // none: one id per byte
  std::string serialized;
  std::vector<std::string> pieces;  // by id
  std::vector<int32_t> from_spm;    // id of each SentencePiece id
  int32_t eos = 0, unk = 1, pad = 0;
  bool own_ids = false;
  int32_t plain_ids = 0;  // text is ids below this; 0: it is not
  std::shared_ptr<const JsonTokenizer> json;
  std::vector<int32_t> before, after;  // of a sentence; without after: eos
  std::vector<char> silent;            // by id: no text
  bool framed = false;
  std::string chat_template, settings;
  std::unordered_map<std::string, int32_t> languages;  // ">>xx<<"
  uint64_t fingerprint = 0;
};

Tokenizer Tokenizer::bytes() {
  auto impl = std::make_shared<Impl>();
  impl->pieces = {"</s>", "<unk>"};
  for (int b = 0; b < 256; ++b) impl->pieces.push_back(fmt::format("<0x{:02X}>", b));
  impl->pad = static_cast<int32_t>(impl->pieces.size());
  impl->pieces.push_back("<pad>");
  impl->fingerprint = XXH3_64bits("bytes", 5);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::framed(std::vector<int32_t> before, int64_t eos, int64_t pad,
                            std::vector<int32_t> after) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->before = std::move(before);
  impl->eos = static_cast<int32_t>(eos);
  impl->pad = static_cast<int32_t>(pad);
  if (!after.empty()) impl->after = std::move(after);
  if (!impl->after.empty() && std::ranges::count(impl->after, impl->eos) == 0)
    impl->after.push_back(impl->eos);
  // The end alone is what there is without a frame: one form, so that one fingerprint.
  if (impl->after.size() == 1) impl->after.clear();
  impl->framed = true;
  const std::string frame = fmt::format("{} {} {} {}", fmt::join(impl->before, ","), eos, pad,
                                        fmt::join(impl->after, ","));
  impl->fingerprint = XXH3_64bits_withSeed(frame.data(), frame.size(), impl_->fingerprint);
  // A pad of its own making, which the model does not have.
  if (impl->spm && !impl->own_ids && impl->spm->pad_id() < 0 &&
      std::ssize(impl->pieces) > impl->spm->GetPieceSize() && pad + 1 != std::ssize(impl->pieces))
    impl->pieces.pop_back();
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::ids(int64_t vocab_size, int64_t eos, int64_t pad) {
  auto impl = std::make_shared<Impl>();
  impl->plain_ids = static_cast<int32_t>(vocab_size);
  for (int64_t id = 0; id < vocab_size; ++id) impl->pieces.push_back(fmt::format("{}", id));
  impl->eos = static_cast<int32_t>(eos);
  impl->pad = static_cast<int32_t>(pad);
  impl->unk = -1;
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::load(const std::string& model_path, const std::string& vocab_json_path) {
  return parse(read_file(model_path), model_path,
               vocab_json_path.empty() ? "" : read_file(vocab_json_path), vocab_json_path);
}

std::vector<std::string> Tokenizer::read_vocab(const std::string& vocab_json_path) {
  return parse_vocab(read_file(vocab_json_path), vocab_json_path);
}

Tokenizer Tokenizer::parse(const std::string& serialized, const std::string& name,
                           const std::string& vocab_json, const std::string& vocab_name) {
  if (serialized.starts_with('{')) {
    auto impl = std::make_shared<Impl>();
    impl->json = std::make_shared<const JsonTokenizer>(serialized, name);
    impl->serialized = serialized;
    impl->pieces = impl->json->pieces();
    impl->before = impl->json->before();
    impl->after = impl->json->after();
    impl->eos = impl->unk = impl->pad = -1;  // the file does not say; framed() does
    impl->fingerprint = XXH3_64bits(serialized.data(), serialized.size());
    return Tokenizer(std::move(impl));
  }
  Tokenizer own = parse_spm(serialized, name);
  return vocab_json.empty() ? own : own.renumbered(parse_vocab(vocab_json, vocab_name), vocab_name);
}

Tokenizer Tokenizer::parse_spm(const std::string& serialized, const std::string& name) {
  if (const Fit safe = sentencepiece_model_is_sound(serialized); !safe)
    fail(name, fmt::format("is not a usable SentencePiece model: {}; train or copy it again",
                           safe.reason));
  auto impl = std::make_shared<Impl>();
  auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
  const sentencepiece::SentencePieceProcessor& spm = *processor;
  if (const auto status = processor->LoadFromSerializedProto(serialized); !status.ok())
    fail(name,
         "is not a usable SentencePiece model: " + status.ToString() + "; train or copy it again");
  impl->spm = std::move(processor);
  impl->serialized = serialized;
  const int size = spm.GetPieceSize();
  if (size < 1 || size > kMaxVocab) fail(name, fmt::format("has {} pieces", size));
  if (spm.eos_id() < 0) fail(name, "has no end-of-sentence piece; train it with --eos_id");
  for (int i = 0; i < size; ++i) {
    impl->pieces.push_back(spm.IdToPiece(i));
    impl->from_spm.push_back(i);
  }
  impl->eos = spm.eos_id();
  impl->unk = spm.unk_id();
  impl->pad = spm.pad_id();
  if (impl->pad < 0) {
    impl->pad = size;
    impl->pieces.push_back("<pad>");
  }
  impl->fingerprint =
      XXH3_64bits_withSeed(serialized.data(), serialized.size(), XXH3_64bits("", 0));
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::renumbered(std::vector<std::string> pieces, const std::string& name,
                                const std::vector<std::string>& silent) const {
  SAT_ASSERT(impl_->spm != nullptr);
  auto impl = std::make_shared<Impl>(*impl_);
  impl->pieces = std::move(pieces);
  std::unordered_map<std::string_view, int32_t> id_of;
  for (size_t i = 0; i < impl->pieces.size(); ++i)
    id_of.emplace(impl->pieces[i], static_cast<int32_t>(i));
  const auto find = [&](const char* piece) {
    const auto it = id_of.find(piece);
    if (it == id_of.end()) fail(name, fmt::format("has no piece {}", piece));
    return it->second;
  };
  impl->eos = find("</s>");
  impl->unk = find("<unk>");
  impl->pad = find("<pad>");
  for (size_t i = 0; i < impl->from_spm.size(); ++i) {
    const auto it = id_of.find(impl->spm->IdToPiece(static_cast<int>(i)));
    impl->from_spm[i] = it == id_of.end() ? impl->unk : it->second;
  }
  // Pieces that only repeat the model, as our own vocab.json does, make no other tokenizer.
  std::vector<std::string> own = impl_->pieces;
  if (impl_->spm->pad_id() >= 0 && own.size() + 1 == impl->pieces.size()) own.push_back("<pad>");
  impl->own_ids = own != impl->pieces;
  for (const auto& [piece, id] : id_of) {
    if (piece.size() > 4 && piece.starts_with(">>") && piece.ends_with("<<"))
      impl->languages.emplace(piece, id);
  }
  impl->silent.assign(impl->pieces.size(), 0);
  for (const std::string& piece : silent) {
    const auto it = id_of.find(piece);
    if (it != id_of.end()) impl->silent[static_cast<size_t>(it->second)] = 1;
  }
  std::string ids;
  if (impl->own_ids)
    for (const std::string& piece : impl->pieces) ids += piece + '\n';
  impl->fingerprint = XXH3_64bits_withSeed(impl->serialized.data(), impl->serialized.size(),
                                           XXH3_64bits(ids.data(), ids.size()));
  return Tokenizer(std::move(impl));
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!is_ids()) ids.insert(ids.end(), impl_->before.begin(), impl_->before.end());
  encode_text(text, ids);
}

// Without what stands around it.
void Tokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  if (impl_->plain_ids > 0) {
    std::istringstream in{std::string(text)};
    for (std::string word; in >> word;) {
      int32_t id = -1;
      const auto end = std::from_chars(word.data(), word.data() + word.size(), id).ptr;
      if (end != word.data() + word.size() || id < 0 || id >= impl_->plain_ids)
        fail("--ids", fmt::format("\"{:.40}\" is no token id of this model; give numbers from 0 to "
                                  "{} with spaces between",
                                  word, impl_->plain_ids - 1));
      ids.push_back(id);
    }
    return;
  }
  if (impl_->json) return impl_->json->encode(text, ids);
  if (!impl_->languages.empty() && text.starts_with(">>")) {
    const size_t end = text.find("<<");
    const auto language = end == std::string_view::npos
                              ? impl_->languages.end()
                              : impl_->languages.find(std::string(text.substr(0, end + 2)));
    if (language != impl_->languages.end()) {
      ids.push_back(language->second);
      text.remove_prefix(end + 2);
    }
  }
  if (!impl_->spm) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + kByteOffset);
    return;
  }
  std::vector<int> own;
  const auto status = impl_->spm->Encode(text, &own);
  if (!status.ok()) throw Error(Errc::internal, "tokenizer", status.ToString());
  for (const int id : own) ids.push_back(impl_->from_spm[static_cast<size_t>(id)]);
}

std::vector<int32_t> Tokenizer::encode_sentence(std::string_view text) const {
  std::vector<int32_t> ids;
  encode(text, ids);
  const std::span<const int32_t> end = sentence_end();
  if (!is_ids()) ids.insert(ids.end(), end.begin(), end.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode_sentence(std::string_view text,
                                                const TextFrame& frame) const {
  std::vector<int32_t> ids;
  if (!is_ids()) ids = frame.before;
  encode_text(text, ids);
  if (!is_ids()) ids.insert(ids.end(), frame.after.begin(), frame.after.end());
  return ids;
}

std::span<const int32_t> Tokenizer::sentence_begin() const noexcept { return impl_->before; }

std::span<const int32_t> Tokenizer::sentence_end() const noexcept {
  if (impl_->after.empty()) return {&impl_->eos, 1};
  return impl_->after;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  if (is_ids()) return fmt::format("{}", fmt::join(ids, " "));
  if (impl_->json) return impl_->json->decode(ids);
  std::string text;
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || id == impl_->eos || id == impl_->pad) continue;
    if (!impl_->silent.empty() && impl_->silent[static_cast<size_t>(id)] != 0) continue;
    if (impl_->spm)
      pieces.push_back(impl_->pieces[static_cast<size_t>(id)]);
    else if (id >= kByteOffset)
      text += static_cast<char>(id - kByteOffset);
  }
  if (!impl_->spm) return text;
  const auto status = impl_->spm->Decode(pieces, &text);
  if (!status.ok()) throw Error(Errc::internal, "tokenizer", status.ToString());
  return text;
}

bool Tokenizer::keeps_lines() const {
  constexpr std::string_view kLines = "a\n\nb\n";
  std::vector<int32_t> ids;
  encode(kLines, ids);
  const std::string back = decode(ids);
  return std::ranges::count(back, '\n') == 3;
}

int32_t Tokenizer::vocab_size() const noexcept {
  return is_ids() ? impl_->plain_ids : static_cast<int32_t>(impl_->pieces.size());
}
int32_t Tokenizer::eos_id() const noexcept { return impl_->eos; }
int32_t Tokenizer::unk_id() const noexcept { return impl_->unk; }
int32_t Tokenizer::pad_id() const noexcept { return impl_->pad; }
const std::vector<std::string>& Tokenizer::pieces() const noexcept { return impl_->pieces; }
bool Tokenizer::is_bytes() const noexcept { return !impl_->spm && !is_ids() && !impl_->json; }
Tokenizer Tokenizer::with_chat_template(std::string text) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->chat_template = std::move(text);
  return Tokenizer(std::move(impl));
}
const std::string& Tokenizer::chat_template() const noexcept { return impl_->chat_template; }
Tokenizer Tokenizer::with_settings(std::string json) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->settings = std::move(json);
  return Tokenizer(std::move(impl));
}
const std::string& Tokenizer::settings() const noexcept { return impl_->settings; }

bool Tokenizer::is_json() const noexcept { return impl_->json != nullptr; }
bool Tokenizer::is_foreign() const noexcept { return impl_->framed || impl_->json; }
bool Tokenizer::is_ids() const noexcept { return impl_->plain_ids > 0; }
bool Tokenizer::has_own_ids() const noexcept { return impl_->own_ids; }
uint64_t Tokenizer::fingerprint() const noexcept { return impl_->fingerprint; }
const std::string& Tokenizer::serialized() const noexcept { return impl_->serialized; }

const std::string& Tokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw Error(Errc::invalid_argument, "tokenizer",
                fmt::format("id {} is outside the vocabulary of {}", id, vocab_size()));
  return impl_->pieces[static_cast<size_t>(id)];
}

void Tokenizer::save(const std::string& model_path) const {
  if (is_bytes())
    throw Error(Errc::invalid_argument, "tokenizer", "a byte-level tokenizer has no model file");
  write_durable_file(model_path, impl_->serialized);
}

}  // namespace saturate::data
