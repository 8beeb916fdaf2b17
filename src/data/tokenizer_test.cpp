// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

TEST(Tokenizer, KeepsTheIdsOfMarian) {
  const Tokenizer t = test_tokenizer(40);
  EXPECT_EQ(t.eos_id(), 0);
  EXPECT_EQ(t.unk_id(), 1);
  EXPECT_EQ(t.pad_id(), t.vocab_size() - 1);
  EXPECT_LE(t.vocab_size(), 40);
  EXPECT_EQ(t.pieces().size(), static_cast<size_t>(t.vocab_size()));
  EXPECT_EQ(t.piece(0), "</s>");
  EXPECT_EQ(t.piece(1), "<unk>");
  EXPECT_EQ(t.piece(t.pad_id()), "<pad>");
  EXPECT_NE(error_of([&] { t.piece(t.vocab_size()); }), "");
}

TEST(Tokenizer, TextSurvivesEveryKind) {
  for (const auto kind : {TokenizerTraining::Kind::unigram, TokenizerTraining::Kind::bpe,
                          TokenizerTraining::Kind::character}) {
    uint64_t i = 0;
    std::string line;
    TokenizerTraining options;
    options.kind = kind;
    options.vocab_size = 45;
    options.max_lines = 100;
    const Tokenizer t = Tokenizer::train(
        [&](std::string_view& text) {
          line = test_sentence(i, 9);
          text = line;
          return i++ < 300;
        },
        options);
    const std::string text = test_sentence(1000, 12);
    const auto ids = t.encode_sentence(text);
    EXPECT_EQ(ids.back(), t.eos_id());
    EXPECT_EQ(t.decode(ids), text);
  }
}

// Paragraphs, verses, code: what a language model reads must come back as it was.
TEST(Tokenizer, KeptTextComesBackByteForByte) {
  const std::string known =
      "A first line.\n\nA  second\tparagraph ,\n    indented   \n\n\n x\xC2\xA0y \xEF\xAC\x81n \n";
  const std::string unseen = "\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\x01\n";
  for (const auto kind : {TokenizerTraining::Kind::unigram, TokenizerTraining::Kind::bpe,
                          TokenizerTraining::Kind::character}) {
    for (const int64_t vocab : {int64_t{100}, TokenizerTraining::kByteFallback}) {
      TokenizerTraining options;
      options.kind = kind;
      options.text = TokenizerTraining::Text::kept;
      options.vocab_size = vocab;
      std::vector<std::string> lines;
      for (uint64_t i = 0; i < 200; ++i) {
        lines.push_back(test_sentence(i, 9) + "\n");
        if (i % 3 == 0) lines.emplace_back("\n");
        if (i % 5 == 0) lines.push_back(known);
      }
      size_t at = 0;
      const Tokenizer t = Tokenizer::train(
          [&](std::string_view& text) {
            if (at == lines.size()) return false;
            text = lines[at++];
            return true;
          },
          options);
      EXPECT_TRUE(t.keeps_lines());
      std::vector<int32_t> ids;
      for (const std::string& line : lines) t.encode(line, ids);
      std::string all;
      for (const std::string& line : lines) all += line;
      EXPECT_EQ(t.decode(ids), all) << "vocabulary of " << vocab;
      if (vocab < TokenizerTraining::kByteFallback) continue;
      ids.clear();
      t.encode(unseen, ids);
      EXPECT_EQ(t.decode(ids), unseen);
    }
  }
  EXPECT_FALSE(test_tokenizer().keeps_lines());
  EXPECT_TRUE(Tokenizer::bytes().keeps_lines());
}

TEST(Tokenizer, TrainingIsAFunctionOfItsInput) {
  EXPECT_EQ(test_tokenizer().serialized(), test_tokenizer().serialized());
}

TEST(Tokenizer, SavesAndLoadsTheSame) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  t.save(dir.file("a.model"));
  const Tokenizer u = Tokenizer::load(dir.file("a.model"));
  EXPECT_EQ(t.fingerprint(), u.fingerprint());
  EXPECT_EQ(t.encode_sentence("ein Hund"), u.encode_sentence("ein Hund"));
}

TEST(Tokenizer, TakesIdsFromAMarianVocabulary) {
  const SampleFolder dir;
  const Tokenizer t = test_tokenizer();
  t.save(dir.file("a.model"));
  std::string json = "{";
  for (int32_t i = 0; i < t.vocab_size(); ++i)  // ids in reverse
    json += (i ? ", \"" : "\"") + t.piece(i) + "\": " + std::to_string(t.vocab_size() - 1 - i);
  const Tokenizer u = Tokenizer::load(dir.file("a.model"), dir.write("vocab.json", json + "}"));
  EXPECT_EQ(u.eos_id(), t.vocab_size() - 1);
  EXPECT_EQ(u.pad_id(), 0);
  EXPECT_EQ(u.decode(u.encode_sentence("ein Hund")), "ein Hund");
  for (const char* bad : {"[]", "{}", "{\"a\": 1}", "{\"</s>\": 0, \"<unk>\": 0}", "{\"</s>\": -1}",
                          "{\"</s>\": \"0\"}", "{\"</s>\": 0}"})
    EXPECT_NE(error_of([&] { Tokenizer::load(dir.file("a.model"), dir.write("bad.json", bad)); }),
              "")
        << bad;
}

TEST(Tokenizer, BytesNeedNoModel) {
  const Tokenizer t = Tokenizer::bytes();
  EXPECT_EQ(t.vocab_size(), 259);
  const std::string text = "Gr\xC3\xBC\xC3\x9F\n\xF0\x9F\x98\x80";
  EXPECT_EQ(t.encode_sentence(text).size(), text.size() + 1);
  EXPECT_EQ(t.decode(t.encode_sentence(text)), text);
  EXPECT_EQ(t.decode(std::vector<int32_t>{-5, 400, t.pad_id(), t.unk_id(), 'a' + 2}), "a");
}

TEST(Tokenizer, IdsAreTheirOwnPieces) {
  const Tokenizer t = Tokenizer::ids(40, 0, 39);
  EXPECT_EQ(t.piece(7), "7");
  EXPECT_EQ(t.piece(39), "39");
  EXPECT_THROW(t.piece(40), Error);
}

TEST(Tokenizer, SaysWhyItCannotTrain) {
  const auto train = [](const std::string& text, TokenizerTraining options) {
    bool given = false;
    return error_of([&] {
      Tokenizer::train(
          [&](std::string_view& line) {
            line = text;
            return !std::exchange(given, true);
          },
          options);
    });
  };
  EXPECT_NE(train("", {}).find("no line has text"), std::string::npos);
  TokenizerTraining small;
  small.vocab_size = 8;
  EXPECT_NE(train("abcdefghijklmnop", small).find("raise data.vocab_size"), std::string::npos);
  small.vocab_size = 0;
  EXPECT_NE(train("abc", small).find("at least 1"), std::string::npos);
}

TEST(Tokenizer, DamagedModelsGiveAnErrorOrATokenizer) {
  const std::string model = test_tokenizer().serialized();
  EXPECT_NE(error_of([&] { Tokenizer::parse("", "empty"); }), "");
  EXPECT_NE(error_of([&] { Tokenizer::parse(std::string(1000, 'x'), "text"); }), "");
  for (uint64_t i = 0; i < 300; ++i) {
    std::string bytes = model;
    const Random4 r = philox4x32(9, i, 0);
    // The normalisation table fills most of the file, so damage falls there and, every other time,
    // among the pieces at its start.
    for (uint32_t n = 0; n <= r.x[3] % 8; ++n) {
      const Random4 at = philox4x32(10, i, n);
      bytes[at.x[0] % (i % 2 ? 600 : bytes.size())] = static_cast<char>(at.x[1]);
    }
    if (i % 5 == 0) bytes.resize(r.x[2] % bytes.size());
    error_of([&] {
      const Tokenizer t = Tokenizer::parse(bytes, "damaged");
      t.decode(t.encode_sentence(
          "ein gr\xC3\xBCner Hund \xEF\xBC\xA1 \xC2\xBD \xE2\x91\xA0 l\xC3\xA4uft"));
    });
  }
}

}  // namespace
}  // namespace saturate::data
