// SPDX-License-Identifier: Apache-2.0
#include "serve/log_probabilities.h"

#include <gtest/gtest.h>

#include "data/tokenizer_json.h"

namespace saturate::serve {
namespace {

std::vector<std::string> names(const std::vector<ScoredToken>& tokens) {
  std::vector<std::string> all;
  for (const ScoredToken& t : tokens) all.push_back(t.token.text);
  return all;
}

std::vector<int64_t> offsets(const std::vector<ScoredToken>& tokens) {
  std::vector<int64_t> all;
  const Json made = completion_logprobs(tokens, false);
  for (const Json& at : *made["text_offset"].if_array()) all.push_back(*at.if_int());
  return all;
}

TEST(LogProbabilities, PartsOfACharacterAreNamedByTheirBytes) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  std::vector<int32_t> ids;
  bytes.encode("é \xE2\x82\xAC!", ids);
  const std::vector<train::TokenScore> scores(ids.size() - 1, {-1.5, {}});
  const auto tokens = scored_tokens(bytes, ids, 0, scores);
  EXPECT_EQ(names(tokens),
            (std::vector<std::string>{"<0xC3>", "<0xA9>", " ", "<0xE2>", "<0x82>", "<0xAC>", "!"}));
  // Characters that are whole.
  EXPECT_EQ(offsets(tokens), (std::vector<int64_t>{0, 0, 1, 2, 2, 2, 3}));
  EXPECT_TRUE(tokens[0].first);
  EXPECT_FALSE(tokens[1].first);
  const Json chat = chat_logprobs(std::span(tokens).subspan(1));
  EXPECT_EQ(*chat["content"][0]["bytes"][0].if_int(), 0xA9);
  EXPECT_EQ(chat["content"].size(), 6u);
}

// What makes no character stands as U+FFFD in the text, and counts.
TEST(LogProbabilities, OffsetsCountWhatIsNoCharacter) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  const auto id = [](unsigned char byte) { return static_cast<int32_t>(byte) + 2; };
  const std::vector<int32_t> ids = {id('a'),  id(0xFF), id('b'),  id(0xE2),
                                    id(0x82), id('c'),  id(0x82), id('d')};
  const std::vector<train::TokenScore> scores(ids.size(), {-1.5, {}});
  EXPECT_EQ(offsets(scored_tokens(bytes, ids, 0, scores)),
            (std::vector<int64_t>{0, 1, 2, 3, 3, 4, 5, 6}));
}

// Byte-level BPE has letters of its own for bytes; special tokens add nothing; models have more rows
// than pieces.
TEST(LogProbabilities, EveryTokenHasANameOfItsOwn) {
  const std::string json =
      data::tokenizer_json(data::Tokenizer::bytes(), data::SentenceEnd::left_out);
  const data::Tokenizer t = data::Tokenizer::parse(json, "tokenizer.json");
  std::vector<int32_t> ids;
  t.encode("é a", ids);
  ASSERT_EQ(ids.size(), 4u);
  const int32_t eos = data::Tokenizer::bytes().eos_id();
  ids.insert(ids.end(), {eos, 300, 301});
  std::vector<train::TokenScore> scores(ids.size() - 1, {-2, {}});
  scores[3].likeliest = {{ids[4], -1}, {302, -2}, {300, -3}, {ids[1], -4}};
  const auto tokens = scored_tokens(t, ids, 0, scores);
  const std::string& end = t.piece(eos);
  EXPECT_EQ(names(tokens),
            (std::vector<std::string>{"<0xC3>", "<0xA9>", " ", "a", end, "<id 300>", "<id 301>"}));
  EXPECT_EQ(offsets(tokens), (std::vector<int64_t>{0, 0, 1, 2, 3, 3, 3}));
  const Json made = completion_logprobs(tokens, true);
  EXPECT_EQ(made["top_logprobs"][4].size(), 4u) << made.dump();
  EXPECT_TRUE(chat_logprobs(tokens)["content"][4]["bytes"].is_null());
}

}  // namespace
}  // namespace saturate::serve
