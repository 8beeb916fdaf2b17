// SPDX-License-Identifier: Apache-2.0
// Against the ids that Hugging Face's tokenizers give: tests/tokenizers, written by
// bench/peers/tokenizer_json.py (tokenizers 0.23).
#include "data/json_tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

namespace saturate::data {
namespace {

// SATURATE_TOKENIZERS: another folder of the script, with more texts.
std::string folder() {
  const char* other = std::getenv("SATURATE_TOKENIZERS");
  return other != nullptr ? other : SATURATE_SOURCE_DIR "/tests/tokenizers";
}
std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class JsonTokenizerOf : public testing::TestWithParam<const char*> {
 protected:
  const std::string name = GetParam();
  const std::string path = folder() + "/" + name + ".json";
  const JsonTokenizer tokenizer{read(path), path};
};

TEST_P(JsonTokenizerOf, GivesTheLibrarysIdsAndText) {
  JsonLimits limits;
  limits.max_bytes = size_t{1} << 30, limits.max_values = size_t{1} << 26;
  const Json rows = read_json_file(folder() + "/texts.json", limits);
  ASSERT_GT(rows.size(), 30u);
  size_t wrong = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string& text = *rows[i]["text"].if_string();
    std::vector<int32_t> ids, want;
    tokenizer.encode(text, ids);
    const Json& list = rows[i][name]["ids"];
    for (size_t k = 0; k < list.size(); ++k)
      want.push_back(static_cast<int32_t>(*list[k].if_int()));
    if (ids != want && ++wrong < 5) {
      EXPECT_EQ(ids, want) << i << ": " << Json(text).dump();
    }
    // What is broken off is one sign for each ill-formed part there.
    EXPECT_EQ(encode_utf8(decode_utf8(tokenizer.decode(want))), *rows[i][name]["text"].if_string())
        << i;
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(JsonTokenizerOf, KnowsWhatSurroundsAText) {
  const std::vector<int32_t> start{tokenizer.id_of("<|start|>")};
  EXPECT_EQ(tokenizer.before(), name == "llama3" ? start : std::vector<int32_t>{});
  const bool of_bytes = tokenizer.id_of("</s>") < 0;
  const int32_t end = tokenizer.id_of(of_bytes ? "<|end|>" : "</s>");
  EXPECT_EQ(tokenizer.after(), of_bytes ? std::vector<int32_t>{} : std::vector<int32_t>{end});
  const Tokenizer t = Tokenizer::load(path).framed(tokenizer.before(), end, -1);
  std::vector<int32_t> want = tokenizer.before();
  tokenizer.encode("the end", want);
  want.push_back(end);
  EXPECT_EQ(t.encode_sentence("the end"), want);
  EXPECT_EQ(t.decode(want), "the end");
}

// A word of a hundred thousand letters takes n log n steps, not n squared.
TEST_P(JsonTokenizerOf, LongWordsTakeNoTimeWithoutMeasure) {
  std::vector<int32_t> ids;
  tokenizer.encode(std::string(100'000, 'a'), ids);
  EXPECT_EQ(tokenizer.decode(ids), std::string(100'000, 'a'));
}

TEST_P(JsonTokenizerOf, RefusesDamage) {
  const std::string whole = read(path);
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = whole;
    if (i % 2 == 0) damaged.resize(random() % whole.size());
    for (int k = 0; k < 3 && !damaged.empty(); ++k)
      damaged[random() % damaged.size()] = static_cast<char>(' ' + random() % 95);
    try {
      std::vector<int32_t> ids;
      const JsonTokenizer read_anyway(damaged, "damaged");
      read_anyway.encode("the 123 it's", ids);
    } catch (const Error&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, JsonTokenizerOf,
                         testing::Values("gpt2", "llama3", "qwen2", "t5", "mbart", "nllb", "llama2",
                                         "gemma"),
                         [](const auto& one) { return std::string(one.param); });

TEST(JsonTokenizer, SaysWhatItDoesNotRead) {
  const auto refusal = [](const std::string& json) -> std::string {
    try {
      JsonTokenizer(json, "here");
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  const auto refuses = [&](const char* json, const char* why) {
    EXPECT_NE(refusal(json).find("here"), std::string::npos) << json;
    EXPECT_NE(refusal(json).find(why), std::string::npos) << refusal(json);
  };
  refuses(R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})", "WordPiece");
  refuses(R"({"pre_tokenizer": {"type": "ByteLevel"},
              "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})",
          "byte 0");
  refuses(R"({"model": {"type": "Unigram", "unk_id": null, "vocab": [["a", 0]]}})", "unk_id");
  refuses(R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a"]]}})", "score");
  refuses(R"({"normalizer": {"type": "Lowercase"}, "model": {}})", "Lowercase");
  refuses(
      R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA////"}, "model": {}})",
      "normalisation table");
  refuses(R"({"pre_tokenizer": {"type": "Digits"}, "model": {}})", "Digits");
  refuses(
      R"({"decoder": {"type": "CTC"}, "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0]]}})",
      "CTC");
  EXPECT_NE(refusal("{}").find("no \"model\""), std::string::npos);
}

}  // namespace
}  // namespace saturate::data
