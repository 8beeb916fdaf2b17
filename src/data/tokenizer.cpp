// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.h"

#include <fmt/format.h>
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
#include "data/byte_bpe.h"
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
  std::optional<sentencepiece::SentencePieceProcessor> spm;  // none: one id per byte
  std::string serialized;
  std::vector<std::string> pieces;  // by id
  std::vector<int32_t> from_spm;    // id of each SentencePiece id
  int32_t eos = 0, unk = 1, pad = 0;
  bool own_ids = false;
  int32_t plain_ids = 0;  // text is ids below this; 0: it is not
  std::shared_ptr<const ByteBpe> bpe;
  std::vector<int32_t> before, after;  // of a text
  bool framed = false;
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

Tokenizer Tokenizer::framed(std::vector<int32_t> before, int64_t eos, int64_t pad) const {
  auto impl = std::make_shared<Impl>();
  impl->spm.reset();
  if (impl_->spm) {
    impl->spm.emplace();
    if (!impl->spm->LoadFromSerializedProto(impl_->serialized).ok())
      throw Error(Errc::internal, "tokenizer", "a model that was read cannot be read again");
  }
  impl->serialized = impl_->serialized;
  impl->pieces = impl_->pieces;
  impl->from_spm = impl_->from_spm;
  impl->unk = impl_->unk;
  impl->own_ids = impl_->own_ids;
  impl->bpe = impl_->bpe;
  impl->after = impl_->after;
  impl->languages = impl_->languages;
  impl->before = std::move(before);
  impl->eos = static_cast<int32_t>(eos);
  impl->pad = static_cast<int32_t>(pad);
  impl->framed = true;
  const std::string frame = fmt::format("{} {} {}", fmt::join(impl->before, ","), eos, pad);
  impl->fingerprint = XXH3_64bits_withSeed(frame.data(), frame.size(), impl_->fingerprint);
  // A pad of its own making, which the model does not have.
  if (impl->spm && impl_->spm->pad_id() < 0 && pad + 1 != std::ssize(impl->pieces))
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

Tokenizer Tokenizer::parse(const std::string& serialized, const std::string& name,
                           const std::string& vocab_json, const std::string& vocab_name) {
  if (serialized.starts_with('{')) {
    auto json = std::make_shared<Impl>();
    json->bpe = std::make_shared<const ByteBpe>(serialized, name);
    json->serialized = serialized;
    json->pieces = json->bpe->pieces();
    json->before = json->bpe->before();
    json->after = json->bpe->after();
    json->eos = json->unk = json->pad = -1;  // the file does not say; framed() does
    json->fingerprint = XXH3_64bits(serialized.data(), serialized.size());
    return Tokenizer(std::move(json));
  }
  if (const Fit safe = sentencepiece_model_is_sound(serialized); !safe)
    fail(name, fmt::format("is not a usable SentencePiece model: {}; train or copy it again",
                           safe.reason));
  auto impl = std::make_shared<Impl>();
  auto& spm = impl->spm.emplace();
  if (const auto status = spm.LoadFromSerializedProto(serialized); !status.ok())
    fail(name,
         "is not a usable SentencePiece model: " + status.ToString() + "; train or copy it again");
  impl->serialized = serialized;
  const int size = spm.GetPieceSize();
  if (size < 1 || size > kMaxVocab) fail(name, fmt::format("has {} pieces", size));
  if (spm.eos_id() < 0) fail(name, "has no end-of-sentence piece; train it with --eos_id");

  std::vector<std::string> own;
  for (int i = 0; i < size; ++i) own.push_back(spm.IdToPiece(i));
  impl->from_spm.resize(own.size());
  if (vocab_json.empty()) {
    for (int i = 0; i < size; ++i) impl->from_spm[i] = i;
    impl->eos = spm.eos_id();
    impl->unk = spm.unk_id();
    impl->pad = spm.pad_id();
    impl->pieces = std::move(own);
    if (impl->pad < 0) {
      impl->pad = size;
      impl->pieces.push_back("<pad>");
    }
  } else {
    impl->pieces = parse_vocab(vocab_json, vocab_name);
    std::unordered_map<std::string_view, int32_t> id_of;
    for (size_t i = 0; i < impl->pieces.size(); ++i)
      id_of.emplace(impl->pieces[i], static_cast<int32_t>(i));
    const auto find = [&](const char* piece) {
      const auto it = id_of.find(piece);
      if (it == id_of.end()) fail(vocab_name, fmt::format("has no piece {}", piece));
      return it->second;
    };
    impl->eos = find("</s>");
    impl->unk = find("<unk>");
    impl->pad = find("<pad>");
    for (size_t i = 0; i < own.size(); ++i) {
      const auto it = id_of.find(own[i]);
      impl->from_spm[i] = it == id_of.end() ? impl->unk : it->second;
    }
    // A vocab.json that only repeats the model, as our own do, makes no other tokenizer.
    if (own.size() + 1 == impl->pieces.size()) own.push_back("<pad>");
    impl->own_ids = own != impl->pieces;
    for (const auto& [piece, id] : id_of) {
      if (piece.size() > 4 && piece.starts_with(">>") && piece.ends_with("<<"))
        impl->languages.emplace(piece, id);
    }
  }
  std::string ids;
  if (impl->own_ids)
    for (const std::string& piece : impl->pieces) ids += piece + '\n';
  impl->fingerprint = XXH3_64bits_withSeed(serialized.data(), serialized.size(),
                                           XXH3_64bits(ids.data(), ids.size()));
  return Tokenizer(std::move(impl));
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
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
  ids.insert(ids.end(), impl_->before.begin(), impl_->before.end());
  if (impl_->bpe) return impl_->bpe->encode(text, ids);
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
  for (const int32_t id : impl_->after)
    if (id != impl_->eos) ids.push_back(id);
  if (!is_ids()) ids.push_back(impl_->eos);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  if (is_ids()) return fmt::format("{}", fmt::join(ids, " "));
  if (impl_->bpe) return impl_->bpe->decode(ids);
  std::string text;
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || id == impl_->eos || id == impl_->pad) continue;
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
bool Tokenizer::is_bytes() const noexcept { return !impl_->spm && !is_ids() && !impl_->bpe; }
bool Tokenizer::is_foreign() const noexcept { return impl_->framed || impl_->bpe; }
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
