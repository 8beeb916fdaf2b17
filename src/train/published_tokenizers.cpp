// SPDX-License-Identifier: Apache-2.0
#include "train/published_tokenizers.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer_json.h"
#include "model/hf_config.h"
#include "model/marian_npz.h"
#include "train/languages.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

}  // namespace

void check_vocabulary(const std::string& folder, const model::ModelConfig& config,
                      const Tokenizers& tokenizers) {
  const auto differs = [&](const char* side, int64_t model, int64_t tokenizer) {
    // Published models have rows behind their vocabulary, so that sizes are round.
    const bool may_have_more = tokenizers.target.is_foreign();
    if (model == tokenizer || (may_have_more && tokenizer < model)) return;
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{}: the model has a {} vocabulary of {} and its tokenizer {}; the files are "
                    "not of one training run",
                    folder, side, model, tokenizer));
  };
  differs("target", config.vocab_target, tokenizers.target.vocab_size());
  if (config.kind == model::ModelKind::encoder_decoder) {
    differs("source", config.vocab_source, tokenizers.source.vocab_size());
  }
}

namespace {

using model::HfClass;

void put_languages(std::vector<std::string>& pieces, const std::vector<LanguageToken>& languages,
                   int64_t vocab) {
  for (const LanguageToken& l : languages) {
    const auto at = l.id < 0 ? pieces.size() : static_cast<size_t>(l.id);
    if (std::cmp_greater_equal(at, vocab)) {
      throw Error(Errc::invalid_argument, "model",
                  fmt::format("the language {} has the id {}, and the model {} ids: tokenizer and "
                              "weights are not of one model",
                              l.text, at, vocab));
    }
    if (at >= pieces.size()) pieces.resize(at + 1);
    pieces[at] = l.text;
  }
}

// Pieces by id where SentencePiece's are counted as fairseq counted them: four special ones, its own from
// the third on, the languages, a mask.
std::vector<std::string> fairseq_pieces(const data::Tokenizer& own,
                                        const std::vector<LanguageToken>& languages,
                                        int64_t vocab) {
  std::vector<std::string> pieces{"<s>", "<pad>", "</s>", "<unk>"};
  constexpr int32_t kSpecialOfSpm = 3;  // <unk>, <s>, </s>
  for (int32_t id = kSpecialOfSpm; id < own.vocab_size(); ++id)
    if (id != own.pad_id()) pieces.push_back(own.piece(id));
  put_languages(pieces, languages, vocab);
  if (std::ssize(pieces) < vocab) pieces.emplace_back("<mask>");
  return pieces;
}

// Of Google's Pegasus: ids of pre-training between the end of sentence and SentencePiece's third piece.
// Source: google-research/pegasus, pretrain_parsing_ops.cc.
std::vector<std::string> pegasus_pieces(const data::Tokenizer& own, const std::string& folder) {
  const std::string settings = folder + "/tokenizer_config.json";
  const Json json = fs::exists(settings) ? read_json_file(settings) : Json(Json::Object{});
  const int64_t* given = json["offset"].if_int();
  const int64_t offset = given != nullptr ? *given : 103;
  if (offset < 2 || offset > (1 << 16)) return own.pieces();
  std::vector<std::string> pieces{"<pad>", "</s>", "<mask_1>", "<mask_2>"};
  for (int64_t i = 2; i < offset; ++i) pieces.push_back(fmt::format("<unk_{}>", i));
  for (int32_t id = 2; id < own.vocab_size(); ++id) pieces.push_back(own.piece(id));
  return pieces;
}

// SentencePiece's model of M2M100, NLLB, mBART or Pegasus.
std::optional<data::Tokenizer> renumbered_tokenizer(const std::string& folder,
                                                    const model::ModelConfig& c) {
  const HfClass family = model::nearest_hf_class(c);
  const bool fairseq = family == HfClass::m2m100 || family == HfClass::mbart;
  const std::string path = folder + (fairseq ? "/sentencepiece.bpe.model" : "/spiece.model");
  if ((!fairseq && family != HfClass::pegasus) || !fs::exists(path)) return std::nullopt;
  const data::Tokenizer own = data::Tokenizer::load(path);
  const std::vector<LanguageToken> languages = language_tokens(folder, c);
  const std::string vocab = folder + "/vocab.json";
  std::vector<std::string> pieces;
  if (!fairseq) {
    pieces = pegasus_pieces(own, folder);
  } else if (family == HfClass::m2m100 && fs::exists(vocab)) {
    pieces = data::Tokenizer::read_vocab(vocab);
    put_languages(pieces, languages, c.vocab_target);
  } else {
    pieces = fairseq_pieces(own, languages, c.vocab_target);
  }
  std::vector<std::string> silent{"<s>", "<unk>", "<mask>"};
  for (const LanguageToken& l : languages) silent.push_back(l.text);
  for (const std::string& p : pieces)
    if (!fairseq && (p.starts_with("<mask_") || p.starts_with("<unk_"))) silent.push_back(p);
  return own.renumbered(std::move(pieces), path, silent).framed({}, c.eos_id, c.pad_id);
}

// Of a model that others have published: SentencePiece's model under the name that its family gives
// it, or a tokenizer.json. Nothing where there is neither.
std::optional<Tokenizers> published_tokenizers(const std::string& folder,
                                               const model::ModelConfig& c) {
  const HfClass family = model::nearest_hf_class(c);
  const auto both = [](const data::Tokenizer& t) { return Tokenizers{t, t}; };
  const auto path = [&](const char* name) { return folder + "/" + name; };
  const bool llama = c.kind == model::ModelKind::decoder_only && family != HfClass::gpt2;
  if (family == HfClass::t5 && fs::exists(path("spiece.model"))) {
    return both(data::Tokenizer::load(path("spiece.model")).framed({}, c.eos_id, c.pad_id));
  }
  if (const auto t = renumbered_tokenizer(folder, c)) return both(*t);
  if (llama && fs::exists(path("tokenizer.model"))) {
    const std::string settings = path("tokenizer_config.json");
    const Json json = fs::exists(settings) ? read_json_file(settings) : Json(Json::Object{});
    const bool* adds = json["add_bos_token"].if_bool();
    std::vector<int32_t> before;
    if (c.bos_id >= 0 && (adds == nullptr || *adds)) before = {static_cast<int32_t>(c.bos_id)};
    return both(data::Tokenizer::load(path("tokenizer.model")).framed(before, c.eos_id, c.pad_id));
  }
  if (fs::exists(path("tokenizer.json"))) {
    const data::Tokenizer t = data::Tokenizer::load(path("tokenizer.json"));
    const std::span<const int32_t> begin = t.sentence_begin();
    return both(t.framed({begin.begin(), begin.end()}, c.eos_id, c.pad_id)
                    .with_chat_template(chat_template_text(folder))
                    .with_settings(tokenizer_settings(folder)));
  }
  return std::nullopt;
}

// One side of a model that Marian wrote: its SentencePiece model is the vocabulary, or the vocabulary
// is a .yml and `spm` makes the pieces.
data::Tokenizer marian_tokenizer(const std::string& folder, const std::string& vocabulary,
                                 const char* spm, int64_t ids) {
  if (vocabulary.ends_with(".spm")) return data::Tokenizer::load(vocabulary);
  const std::string path = folder + "/" + spm;
  if (!fs::exists(path)) {
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{} numbers pieces that {} makes, which is not there; put it beside, or "
                    "give token ids with --ids",
                    vocabulary, path));
  }
  std::vector<std::string> pieces = model::read_marian_vocabulary(vocabulary);
  pieces.resize(static_cast<size_t>(ids - 1));  // as Marian does where the model has another number
  pieces.emplace_back("<pad>");
  return data::Tokenizer::load(path).renumbered(std::move(pieces), vocabulary);
}

Tokenizers marian_tokenizers(const std::string& folder, const model::ModelConfig& c) {
  const std::vector<std::string> names = model::marian_files(folder).vocabularies;
  if (names.empty()) {
    throw Error(Errc::invalid_argument, "model",
                folder +
                    " has no vocabulary of Marian's model (NAME.spm or NAME.yml with \"vocab\" in "
                    "its name, or named under \"vocabs\" in decoder.yml); put it there, or give "
                    "token ids with --ids");
  }
  const data::Tokenizer target =
      marian_tokenizer(folder, names.back(), "target.spm", c.vocab_target);
  if (target.eos_id() != c.eos_id) {
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{}: sentences end with id {} there, and Marian's models with {}; it is "
                    "not the vocabulary of this model",
                    names.back(), target.eos_id(), c.eos_id));
  }
  if (names.size() == 1 && names[0].ends_with(".spm")) return {target, target};
  return {marian_tokenizer(folder, names.front(), "source.spm", c.vocab_source), target};
}

// Whether the folder says that one id is one byte, in the tokenizer.json that such models are saved with.
bool says_bytes(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  if (!fs::exists(path)) return false;
  const std::string ours =
      data::tokenizer_json(data::Tokenizer::bytes(), data::SentenceEnd::left_out);
  return read_json_file(path)["model"] == parse_json(ours, "bytes")["model"];
}

}  // namespace

Tokenizers load_tokenizers_of(const std::string& folder, const model::ModelConfig& config) {
  std::optional<Tokenizers> t;
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  if (model::is_marian_folder(folder)) {
    t = marian_tokenizers(folder, config);
  } else if (fs::exists(folder + "/target.spm")) {
    t = load_tokenizers(folder);
  } else if (config.vocab_target == bytes.vocab_size() && says_bytes(folder)) {
    t = Tokenizers{bytes, bytes};
  } else {
    t = published_tokenizers(folder, config);
  }
  if (!t) {
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format(
            "{} has no tokenizer that Saturate reads (source.spm and target.spm; spiece.model of "
            "T5 and Pegasus; sentencepiece.bpe.model of NLLB, M2M100 and mBART; "
            "tokenizer.model of Llama and those like it; or a tokenizer.json, which a model "
            "of bytes has too); put the one it was trained with there, or give token ids "
            "with --ids",
            folder));
  }
  check_vocabulary(folder, config, *t);
  return *t;
}

}  // namespace saturate::train
