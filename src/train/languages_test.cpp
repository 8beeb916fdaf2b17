// SPDX-License-Identifier: Apache-2.0
// Ids of published tokenizers and languages. Against transformers: bench/peers/checkpoint_text.py.
#include "train/languages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "data/testing/sample_corpus.h"
#include "data/tokenizer_json.h"
#include "train/published_tokenizers.h"

namespace saturate::train {
namespace {

using testing::TempFolder;
using testing::write_file;
using Told = Languages::Told;

std::string error_text(const auto& what) {
  try {
    what();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

// One of NLLB's class, M2M100's too; with `mbart` of mBART's.
model::ModelConfig config_of(bool mbart, int64_t vocab) {
  model::ModelConfig c = model::model_preset("base");
  c.norm_position = model::NormPosition::pre;
  c.final_norm = true;
  c.vocab_source = c.vocab_target = vocab;
  c.eos_id = c.decoder_start_id = 2;
  c.pad_id = 1;
  if (mbart) {
    c.positions = model::PositionKind::learned;
    c.embedding_norm = true;
  } else {
    c.sinusoid_spacing = model::SinusoidSpacing::tensor2tensor;
    c.first_position = 2;
  }
  return c;
}

TEST(Languages, AreBehindThePiecesThatFairseqCounted) {
  const TempFolder folder;
  const data::Tokenizer own = data::test_tokenizer(60);
  own.save(folder / "sentencepiece.bpe.model");
  write_file(folder / "special_tokens_map.json",
             R"({"additional_special_tokens": ["eng_Latn", {"content": "fra_Latn"}, "<other>"]})");
  write_file(folder / "tokenizer_config.json", R"({"src_lang": "eng_Latn"})");
  const int32_t first = own.pad_id() + 1;  // the model has no pad, which is the last here
  const model::ModelConfig c = config_of(false, first + 5);
  const data::Tokenizer t = load_tokenizers_of(folder.path(), c).source;
  EXPECT_EQ(t.piece(1), "<pad>");
  EXPECT_EQ(t.piece(4), own.piece(3));
  EXPECT_EQ(t.piece(first), "eng_Latn");
  EXPECT_EQ(t.piece(first + 1), "fra_Latn");
  EXPECT_EQ(t.piece(first + 2), "<mask>");
  const Languages l = read_languages(folder.path(), c, t);
  EXPECT_EQ(l.told, Told::source_before);
  EXPECT_EQ(l.source, "eng_Latn");
  EXPECT_EQ(l.target, "");
  EXPECT_EQ(l.code_of("en"), "eng_Latn");
  EXPECT_EQ(l.code_of("fra_Latn"), "fra_Latn");
  EXPECT_EQ(l.code_of("de"), "");
  EXPECT_EQ(l.target_begin("fr"), std::vector<int32_t>{first + 1});
  EXPECT_NE(error_text([&] { l.id_of("fra_Lat"); }).find("did you mean 'fra_Latn'"),
            std::string::npos);
  const data::TextFrame frame = l.source_frame("en", "fr", 2);
  EXPECT_EQ(frame.before, std::vector<int32_t>{first});
  EXPECT_EQ(frame.after, std::vector<int32_t>{2});
  // The languages are no text.
  std::vector<int32_t> ids = t.encode_sentence(data::test_sentence(3, 5), frame);
  EXPECT_EQ(ids.front(), first);
  EXPECT_EQ(t.decode(ids), data::test_sentence(3, 5));
  EXPECT_NE(error_text([&] {
              load_tokenizers_of(folder.path(), config_of(false, first + 1));
            }).find("not of one model"),
            std::string::npos);
}

TEST(Languages, IdsThatAFileNamesCount) {
  const TempFolder folder;
  const data::Tokenizer own = data::test_tokenizer(60);
  own.save(folder / "sentencepiece.bpe.model");
  const int32_t first = own.pad_id() + 1;
  write_file(folder / "tokenizer_config.json",
             fmt::format(R"({{"tokenizer_class": "MBartTokenizer", "added_tokens_decoder": {{
                "{}": {{"content": "ro_RO"}}, "{}": {{"content": "en_XX"}}, "1": {{"content": "<pad>"}}}}}})",
                         first + 3, first));
  model::ModelConfig c = config_of(true, first + 9);
  const data::Tokenizer t = load_tokenizers_of(folder.path(), c).source;
  EXPECT_EQ(t.piece(first), "en_XX");
  EXPECT_EQ(t.piece(first + 3), "ro_RO");
  Languages l = read_languages(folder.path(), c, t);
  EXPECT_EQ(l.told, Told::source_behind);
  EXPECT_FALSE(l.target_is_start);
  EXPECT_EQ(l.source_frame("en", "ro", 2).after, (std::vector<int32_t>{2, first}));
  EXPECT_EQ(l.target_begin("ro"), std::vector<int32_t>{first + 3});
  // Decoding that starts with a language has its target, and forces nothing.
  c.decoder_start_id = first + 3;
  l = read_languages(folder.path(), c, t);
  EXPECT_TRUE(l.target_is_start);
  EXPECT_EQ(l.target, "ro_RO");
  EXPECT_TRUE(l.target_begin("ro").empty());
}

TEST(Languages, FoldersThatNameNoneHaveThoseOfTheirFamily) {
  const TempFolder folder;
  write_file(folder / "vocab.json", "{}");
  EXPECT_EQ(language_tokens(folder.path(), config_of(false, 200)).size(), 100u);
  EXPECT_EQ(language_tokens(folder.path(), config_of(false, 200)).back().text, "__zu__");
  EXPECT_EQ(language_tokens(folder.path(), config_of(true, 200)).size(), 25u);
  write_file(folder / "tokenizer_config.json", R"({"tokenizer_class": "MBart50Tokenizer"})");
  EXPECT_EQ(language_tokens(folder.path(), config_of(true, 200)).size(), 52u);
}

TEST(Languages, AForcedFirstTokenIsOneOfTheVocabulary) {
  const TempFolder folder;
  const model::ModelConfig c = config_of(true, 50);
  EXPECT_EQ(read_forced_first(folder.path(), c), -1);
  write_file(folder / "config.json", R"({"forced_bos_token_id": 7})");
  EXPECT_EQ(read_forced_first(folder.path(), c), 7);
  write_file(folder / "generation_config.json", R"({"forced_bos_token_id": 50})");
  EXPECT_NE(error_text([&] { read_forced_first(folder.path(), c); }).find("50 ids"),
            std::string::npos);
}

// What Google's ids are: bench/peers/checkpoint_text.py. A model whose third piece is not <unk> has none.
TEST(PublishedTokenizers, PegasusWithoutAnOffsetHasSentencePiecesIds) {
  const TempFolder folder;
  const data::Tokenizer own = data::test_tokenizer(60);
  own.save(folder / "spiece.model");
  model::ModelConfig c = config_of(false, own.vocab_size() + 200);
  c.sinusoid_spacing = model::SinusoidSpacing::paper;
  c.first_position = 0;
  EXPECT_NE(error_text([&] { load_tokenizers_of(folder.path(), c); }).find("has no piece <unk>"),
            std::string::npos);
  write_file(folder / "tokenizer_config.json", R"({"offset": 0})");
  EXPECT_EQ(load_tokenizers_of(folder.path(), c).source.piece(5), own.piece(5));
}

TEST(PublishedTokenizers, BytesAreSaidNotSupposed) {
  const TempFolder folder;
  model::ModelConfig c = model::model_preset("gpt2-124m");
  c.vocab_target = data::Tokenizer::bytes().vocab_size();
  EXPECT_NE(error_text([&] { load_tokenizers_of(folder.path(), c); }).find("no tokenizer"),
            std::string::npos);
  write_file(folder / "tokenizer.json",
             data::tokenizer_json(data::Tokenizer::bytes(), data::SentenceEnd::left_out));
  EXPECT_TRUE(load_tokenizers_of(folder.path(), c).target.is_bytes());
}

}  // namespace
}  // namespace saturate::train
