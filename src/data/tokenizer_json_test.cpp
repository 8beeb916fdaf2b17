// SPDX-License-Identifier: Apache-2.0
// What the file says; tests/interop asks the program that reads it.
#include "data/tokenizer_json.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/json.h"

namespace saturate::data {
namespace {

Tokenizer trained(TokenizerTraining::Kind kind) {
  int line = 0;
  return Tokenizer::train(
      [&line](std::string_view& text) {
        text = line % 2 == 0 ? "the cat sat on the mat" : "the dog sat on the log";
        return line++ < 200;
      },
      {.kind = kind, .vocab_size = 40});
}

TEST(TokenizerJson, NamesEveryByteOnce) {
  const Json file = parse_json(tokenizer_json(Tokenizer::bytes(), SentenceEnd::left_out), "test");
  const Json& vocab = file["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 259u);
  EXPECT_EQ(vocab["A"], 'A' + 2);
  EXPECT_EQ(vocab["\u0120"], ' ' + 2);   // the stand-in of GPT-2 for a space
  EXPECT_EQ(vocab["\u010A"], '\n' + 2);  // and for a line feed
  EXPECT_EQ(vocab["\u0143"], 0xAD + 2);  // the last that is not printable
  EXPECT_EQ(vocab["\u00FF"], 0xFF + 2);
  EXPECT_EQ(file["added_tokens"].size(), 3u);
  EXPECT_TRUE(file["post_processor"].is_null());
}

TEST(TokenizerJson, KeepsIdsAndEndsSentences) {
  const Tokenizer t = trained(TokenizerTraining::Kind::unigram);
  const Json file = parse_json(tokenizer_json(t, SentenceEnd::appended), "test");
  const Json& vocab = file["model"]["vocab"];
  ASSERT_EQ(vocab.size(), t.pieces().size());
  for (int32_t id = 0; id < t.vocab_size(); ++id) EXPECT_EQ(vocab[id][0], t.piece(id));
  EXPECT_EQ(file["model"]["unk_id"], t.unk_id());
  EXPECT_EQ(file["post_processor"]["single"][1]["SpecialToken"]["id"], "</s>");
  EXPECT_EQ(file["added_tokens"][2]["id"], t.pad_id());
}

TEST(TokenizerJson, MergesOnlyWhatIsThere) {
  const Tokenizer t = trained(TokenizerTraining::Kind::bpe);
  const Json file = parse_json(tokenizer_json(t, SentenceEnd::left_out), "test");
  const Json& vocab = file["model"]["vocab"];
  EXPECT_EQ(vocab.size(), t.pieces().size());
  EXPECT_GT(file["model"]["merges"].size(), 5u);
  for (const Json& pair : *file["model"]["merges"].if_array()) {
    const std::string left = *pair[0].if_string(), right = *pair[1].if_string();
    EXPECT_TRUE(vocab.find(left) && vocab.find(right) && vocab.find(left + right));
  }
}

// trainer_spec (field 2) again at the end: the last value of a field counts.
TEST(TokenizerJson, SaysWhatItCannotSay) {
  const std::string model = trained(TokenizerTraining::Kind::unigram).serialized();
  const auto with = [&model](std::string_view field) {
    return Tokenizer::parse(model + "\x12" + static_cast<char>(field.size()) + std::string(field),
                            "changed");
  };
  const Tokenizer suffix = with(std::string_view("\xC0\x01\x01", 3));  // field 24: 1
  EXPECT_THROW(tokenizer_json(suffix, SentenceEnd::left_out), Error);
  const Tokenizer same = with(std::string_view("\xC0\x01\x00", 3));
  EXPECT_NO_THROW(tokenizer_json(same, SentenceEnd::left_out));
}

}  // namespace
}  // namespace saturate::data
