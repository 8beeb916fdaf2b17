// SPDX-License-Identifier: Apache-2.0
// Models that transformers made and saved, and what it computes of them: tests/checkpoints, written by
// bench/peers/checkpoints.py --golden (transformers 5.23, torch 2.11, fp32).
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "model/generator.h"
#include "model/hf_config.h"
#include "train/line_translator.h"
#include "train/scorer.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i) ids.push_back(static_cast<int32_t>(*list[i].if_int()));
  return ids;
}

std::vector<int32_t> greedy(const LoadedModel& m, const std::vector<int32_t>& prompt,
                            int64_t most) {
  if (m.config.kind == model::ModelKind::decoder_only) {
    model::Generator generator(*m.transformer, *m.store, {.sequences = 1, .max_length = 64});
    return generator
        .generate(std::vector<std::vector<int32_t>>{prompt}, {.temperature = 0, .max_tokens = most})
        .front();
  }
  TranslateConfig c = m.translate;
  c.beam = 1;
  c.max_length_factor = 0;
  c.max_length_offset = most;
  std::vector<int32_t> ids;
  m.tokenizers.target.encode(translate_lines(m, c, {{m.tokenizers.source.decode(prompt)}}).front(),
                             ids);
  return ids;
}

TEST(Checkpoints, ScoreAndContinueAsTransformersDoes) {
  size_t models = 0;
  for (const auto& entry : fs::directory_iterator(SATURATE_SOURCE_DIR "/tests/checkpoints")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++models;
    LoadHooks hooks;
    hooks.ids = true;
    const LoadedModel m = load_model(entry.path().string(), "cpu", "fp32", hooks);
    const Json golden = read_json_file((entry.path() / "golden.json").string());
    const bool translates = m.config.kind == model::ModelKind::encoder_decoder;
    const std::vector<ScoredText> texts{
        {translates ? ids_of(golden["source"]) : std::vector<int32_t>{}, ids_of(golden["target"])}};
    // Sums of about 30 logarithms, each of which errs by some units of fp32 times logits up to 10.
    EXPECT_NEAR(score_texts(m, 512, texts).front().log_probability,
                golden["log_probability"].number().value(), 2e-4);
    const std::vector<int32_t> wanted = ids_of(golden["greedy"]);
    std::vector<int32_t> got = greedy(m, ids_of(golden["prompt"]), 41);
    got.resize(std::min(got.size(), wanted.size()));
    EXPECT_EQ(got, wanted);
  }
  EXPECT_EQ(models, 13u);
}

// Its generation_config.json alone names all ids that end a text.
TEST(Checkpoints, KnowEveryIdThatEndsAText) {
  const model::ModelConfig c =
      model::read_model_config(SATURATE_SOURCE_DIR "/tests/checkpoints/llama3");
  EXPECT_EQ(c.eos_id, 2);
  EXPECT_EQ(c.more_eos_ids, (std::vector<int64_t>{3, 4}));
}

TEST(Checkpoints, TextNeedsATokenizer) {
  try {
    load_model(SATURATE_SOURCE_DIR "/tests/checkpoints/qwen2", "cpu", "fp32");
    FAIL() << "a model without a tokenizer was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--ids"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace saturate::train
