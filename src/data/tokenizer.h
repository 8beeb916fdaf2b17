// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/interrupt.h"

namespace saturate::data {

struct TokenizerProgress {
  int64_t lines_read = 0;
  int64_t lines_learnt_from = 0;  // 0 while lines are read
};

struct TokenizerTraining {
  enum class Kind : uint8_t { unigram, bpe, character };
  // normalised: NFKC, every run of white space one space, none at the ends: right for sentences,
  // whose line feed says nothing. kept: text comes back as it was, byte for byte; see
  // kByteFallback.
  enum class Text : uint8_t { normalised, kept };
  // Least vocabulary that has room for a piece of each byte, so that kept text with characters that
  // training has not seen comes back too; below it they become <unk>.
  static constexpr int64_t kByteFallback = 1024;
  Kind kind = Kind::unigram;
  Text text = Text::normalised;
  int64_t vocab_size = 8000;  // an upper bound that counts every id, </s>, <unk> and <pad> included
  double character_coverage = 1.0;
  int64_t max_lines = 100'000;         // a uniform sample of so many lines is used,
  int64_t max_bytes = 12'800'000;      // and of those so many bytes: they decide the time it takes
  uint64_t seed = 1;                   // of that sample
  std::string text_name = "the text";  // for messages
  Interrupt interrupt = {};
  // Called several times a second, from the caller's thread.
  std::function<void(const TokenizerProgress&)> progress = {};
};

// Ids around a text.
struct TextFrame {
  std::vector<int32_t> before, after;
};

// Text to ids and back. A value: copies share the same immutable tables, and all functions may be
// called from several threads.
//
// Ids follow Marian, so that models open as MarianMTModel: </s> 0, <unk> 1, <pad> the last id. A
// SentencePiece model trained elsewhere keeps its own ids; without a pad piece <pad> is added at
// the end.
class Tokenizer {
 public:
  // `next_line` gives the lines one by one, false at the end. A function of (lines, options). The
  // vocabulary is smaller than asked when the text has not enough pieces.
  // Errors: invalid_argument when there is no text, or the vocabulary cannot hold its characters;
  // Interrupted, within a fraction of a second. SentencePiece cannot be stopped: it then works on
  // in a thread of its own, on data of its own, until the process ends, which must not run the
  // destructors of static objects (std::_Exit).
  static Tokenizer train(const std::function<bool(std::string_view&)>& next_line,
                         const TokenizerTraining& options);
  // A SentencePiece .model, or a tokenizer.json (json_tokenizer.h). With `vocab_json` (a Marian folder's
  // vocab.json: piece -> id) ids are those of that file. Errors: io, invalid_argument for a file that is
  // not a usable model.
  static Tokenizer load(const std::string& model_path, const std::string& vocab_json_path = "");
  // Same from memory; the names are for messages.
  static Tokenizer parse(const std::string& serialized, const std::string& name,
                         const std::string& vocab_json = "",
                         const std::string& vocab_name = "vocab.json");
  // One id per byte (id = byte + 2); needs no training and no file.
  static Tokenizer bytes();

  // The same tokenizer for a model whose texts begin with other ids than this would give, and whose
  // eos_id() and pad_id() (-1: none) are these. `after`: what ends a sentence, eos among it; nothing:
  // what ended it before, eos at least.
  Tokenizer framed(std::vector<int32_t> before, int64_t eos, int64_t pad,
                   std::vector<int32_t> after = {}) const;
  // The same with the text (Jinja) that makes a prompt of a chat, which goes along unread; empty: none.
  Tokenizer with_chat_template(std::string text) const;
  const std::string& chat_template() const noexcept;
  // The same with what else a tokenizer_config.json says (a JSON object: names of special tokens, whether
  // they are added), which goes along unread, for other programs; empty: nothing.
  Tokenizer with_settings(std::string json) const;
  const std::string& settings() const noexcept;
  // A SentencePiece model's tokenizer with other ids: pieces[i] is that of id i, and what has no place
  // there is <unk>. `silent` ones are no text. Errors: invalid_argument, naming `name`, where </s>,
  // <unk> or <pad> is missing.
  Tokenizer renumbered(std::vector<std::string> pieces, const std::string& name,
                       const std::vector<std::string>& silent = {}) const;
  // Pieces by id, of a vocab.json. Errors: io, invalid_argument.
  static std::vector<std::string> read_vocab(const std::string& vocab_json_path);
  // Text that is ids already, as other programs' tokenizers write them: numbers with spaces between,
  // end-of-sentence among them. `eos` and `pad` (-1: none) are those of the model.
  static Tokenizer ids(int64_t vocab_size, int64_t eos, int64_t pad);

  // Appends the ids of `text`, without an end-of-sentence id; the ids that begin a text first. Where
  // ids are those of a vocab.json and it has the piece, ">>xx<<" at the start of a text is that one
  // piece (OPUS-MT's mark of the target language).
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // The same without what begins a text: for a part of a longer one.
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const;
  // Ids of `text` followed by eos_id(); of ids() these alone. Errors: invalid_argument for text that is
  // no list of ids.
  std::vector<int32_t> encode_sentence(std::string_view text) const;
  // The same with another frame; of ids() without any.
  std::vector<int32_t> encode_sentence(std::string_view text, const TextFrame& frame) const;
  // What it puts before a text and behind a sentence; live as long as this.
  std::span<const int32_t> sentence_begin() const noexcept;
  std::span<const int32_t> sentence_end() const noexcept;
  // </s>, <pad> and ids outside the vocabulary give nothing. A tokenizer trained with Text::kept
  // gives back what encode() was given, except U+2581, which stands for a space in SentencePiece.
  std::string decode(std::span<const int32_t> ids) const;
  // Whether line feeds come back, so that text of several lines can be learnt.
  bool keeps_lines() const;

  int32_t vocab_size() const noexcept;
  int32_t eos_id() const noexcept;
  int32_t unk_id() const noexcept;
  int32_t pad_id() const noexcept;
  const std::vector<std::string>& pieces() const noexcept;  // by id: what vocab.json lists
  const std::string& piece(int32_t id) const;               // Errors: invalid_argument
  bool is_bytes() const noexcept;
  bool is_json() const noexcept;  // a tokenizer.json
  bool is_ids() const noexcept;
  // Whether it is of a kind that a run does not keep beside its checkpoints: framed, or a tokenizer.json.
  bool is_foreign() const noexcept;
  bool has_own_ids() const noexcept;      // those of a vocab.json, not the SentencePiece model's
  uint64_t fingerprint() const noexcept;  // of everything that decides the ids
  const std::string& serialized() const noexcept;  // the .model; empty for bytes()
  void save(const std::string& model_path) const;  // Errors: io; invalid_argument for bytes()

 private:
  struct Impl;
  static Tokenizer parse_spm(const std::string& serialized, const std::string& name);
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;  // shared: joint vocabularies use one tokenizer on both sides
};

}  // namespace saturate::data
