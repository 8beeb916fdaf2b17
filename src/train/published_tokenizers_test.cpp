// SPDX-License-Identifier: Apache-2.0
// Vocabularies beside a model that Marian wrote.
#include "train/published_tokenizers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate::train {
namespace {

using data::Tokenizer;
using testing::TempFolder;

Tokenizer small_tokenizer() {
  int line = 0;
  return Tokenizer::train(
      [&line](std::string_view& text) {
        text = line % 2 == 0 ? "the sea is wide and deep" : "a dog runs over the wide field";
        return line++ < 40;
      },
      {.vocab_size = 40});
}

// Of a model of so many pieces, without the row for padding.
model::ModelConfig config_of(int64_t pieces) {
  model::ModelConfig c;
  c.vocab_source = c.vocab_target = pieces + 1;
  c.eos_id = 0;
  c.pad_id = c.decoder_start_id = pieces;
  return c;
}

std::string refusal(const TempFolder& folder, const model::ModelConfig& c) {
  try {
    load_tokenizers_of(folder.path(), c);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(MarianTokenizers, SentencePieceIsTheVocabulary) {
  const Tokenizer own = small_tokenizer();
  const TempFolder folder;
  testing::write_file(folder / "model.npz", "");
  own.save(folder / "vocab.deen.spm");
  // Ours has a piece <pad>, the last, as the row that Marian lacks.
  const model::ModelConfig c = config_of(own.vocab_size() - 1);
  const Tokenizers t = load_tokenizers_of(folder.path(), c);
  EXPECT_EQ(t.source.encode_sentence("the dog"), own.encode_sentence("the dog"));
  EXPECT_EQ(t.target.pad_id(), c.pad_id);
  EXPECT_NE(refusal(folder, config_of(7)).find("not of one training run"), std::string::npos);
}

TEST(MarianTokenizers, VocabularyNumbersPieces) {
  const Tokenizer own = small_tokenizer();
  const TempFolder folder;
  testing::write_file(folder / "model.npz", "");
  // The end and <unk> first, then a mark of a language, then the pieces from last to first.
  std::vector<std::string> pieces{"</s>", "<unk>", ">>fr<<"};
  for (int32_t id = own.vocab_size() - 2; id >= 2; --id) pieces.push_back(own.piece(id));
  std::string yml;
  for (size_t id = 0; id < pieces.size(); ++id)
    yml += "\"" + pieces[id] + "\": " + std::to_string(id) + "\n";
  testing::write_file(folder / "opus.vocab.yml", yml);
  const model::ModelConfig c = config_of(static_cast<int64_t>(pieces.size()));
  EXPECT_NE(refusal(folder, c).find("target.spm makes, which is not there"), std::string::npos);
  own.save(folder / "source.spm");
  own.save(folder / "target.spm");
  const Tokenizers t = load_tokenizers_of(folder.path(), c);
  std::vector<int32_t> wanted{2};
  for (const int32_t id : own.encode_sentence("the dog"))
    wanted.push_back(
        static_cast<int32_t>(std::ranges::find(pieces, own.piece(id)) - pieces.begin()));
  EXPECT_EQ(t.source.encode_sentence(">>fr<<the dog"), wanted);
  EXPECT_EQ(t.target.decode(t.target.encode_sentence("the dog")), "the dog");
  // What is written of it reads back with the same ids.
  const TempFolder copy;
  save_tokenizers(copy.path(), t.source, t.target);
  EXPECT_EQ(load_tokenizers_of(copy.path(), c).source.encode_sentence(">>fr<<the dog"), wanted);
  model::ModelConfig other = c;
  other.eos_id = 1;
  EXPECT_NE(refusal(folder, other).find("sentences end with id 0"), std::string::npos);
}

TEST(MarianTokenizers, SomeVocabularyIsNeeded) {
  const TempFolder folder;
  testing::write_file(folder / "model.npz", "");
  EXPECT_NE(refusal(folder, config_of(5)).find("--ids"), std::string::npos);
}

}  // namespace
}  // namespace saturate::train
