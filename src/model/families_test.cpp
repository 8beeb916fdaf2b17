// SPDX-License-Identifier: Apache-2.0
// What published families have of their own, as far as it trains, and what says that the rest does not.
#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"
#include "model/transformer.h"
#include "ops/cross_entropy.h"
#include "ops/gradient_check_test.h"

namespace saturate::model {
namespace {

const std::vector<int32_t> kIds{3, 1, 4, 0, 2, 0}, kPositions{0, 1, 2, 0, 1, 0}, kCu{0, 3, 5, 5},
    kOrder{3, 1, 4, 0, 2}, kLabels{1, 2, 4, 0, 3, -1};
const int32_t kValid = 5;

PackedSide side() {
  return {.tokens = {.ids = kIds.data(),
                     .positions = kPositions.data(),
                     .cu = kCu.data(),
                     .order = kOrder.data(),
                     .valid = &kValid,
                     .rows = 6,
                     .sequences = 3},
          .max_length = 3};
}

void check_gradients_of(const ModelConfig& config) {
  validate(config);
  EXPECT_EQ(training_refusal(config), nullptr);
  std::optional<Transformer> model;
  const PackedSide text = side();
  const GradientCase test{
      .declare =
          [&](ParameterStore& store) {
            model.emplace(config, store);
            model->make_tables(store);
          },
      .record =
          [&](Tape& tape, double* totals) {
            const bool translates = config.kind == ModelKind::encoder_decoder;
            const Value memory = translates ? model->encode(tape, text) : Value{};
            const Value hidden = model->decode(tape, text, memory, translates ? &text : nullptr);
            ops::cross_entropy(
                tape, model->logits(tape, hidden),
                {.labels = kLabels.data(), .vocab = config.vocab_target, .totals = totals});
          }};
  const GradientReport r = check_gradients(test);
  EXPECT_LT(r.worst, 1e-6) << r.where;
  EXPECT_GT(r.checked, 200);
}

ModelConfig small(const char* preset) {
  ModelConfig c = model_preset(preset);
  c.d_model = 16;
  c.decoder_layers = 2;
  c.heads = c.kv_heads = 4;
  c.head_size = 4;
  c.ffn = 24;
  c.vocab_target = 29;
  c.max_positions = 48;
  c.bos_id = c.eos_id = 2;
  c.dropout = 0;
  if (c.kind == ModelKind::encoder_decoder) {
    c.encoder_layers = 1;
    c.vocab_source = 29;
    c.pad_id = c.decoder_start_id = 28;
  }
  return c;
}

// Gemma 2's layers without the cap of the output, on Llama 3's rotations and with Qwen's biases.
TEST(Families, GradientsOfALanguageModelAreThoseOfTheLoss) {
  ModelConfig c = small("llama-110m");
  c.kv_heads = 2;
  c.norm_position = NormPosition::sandwich;
  c.scale_embedding = c.qkv_biases = true;
  c.attention_scale = 0.3f;
  c.attention_soft_cap = 1.5f;
  c.window = 2;
  c.full_attention_every = 2;
  c.rotary_factor = 8;
  c.rotary_original = 20;
  check_gradients_of(c);
}

// BART's norm of embeddings and the bias of the output, on M2M100's positions.
TEST(Families, GradientsOfATranslatorAreThoseOfTheLoss) {
  ModelConfig c = small("base");
  c.embedding_norm = c.output_bias = true;
  c.sinusoid_spacing = SinusoidSpacing::tensor2tensor;
  c.first_position = 2;
  check_gradients_of(c);
}

TEST(Families, WhatHasNoGradientSaysSo) {
  ModelConfig c = small("llama-110m");
  EXPECT_EQ(training_refusal(c), nullptr);
  c.qk_norm = true;
  EXPECT_NE(std::string(training_refusal(c)).find("Qwen 3"), std::string::npos);
  c.qk_norm = false;
  c.output_soft_cap = 30;
  EXPECT_NE(std::string(training_refusal(c)).find("Gemma 2"), std::string::npos);
}

// Values of T5's published function for 32 buckets up to distance 128.
TEST(Families, DistancesFallIntoT5sBuckets) {
  ModelConfig c = small("base");
  c.positions = PositionKind::relative;
  c.relative_buckets = 32;
  c.relative_distance = 128;
  for (const auto& [distance, encoder, decoder] : {std::tuple{0, 0, 0},
                                                   {1, 17, 0},
                                                   {-1, 1, 1},
                                                   {-7, 7, 7},
                                                   {-8, 8, 8},
                                                   {-15, 9, 15},
                                                   {-16, 10, 16},
                                                   {16, 26, 0},
                                                   {-32, 12, 21},
                                                   {-127, 15, 31},
                                                   {-128, 15, 31},
                                                   {200, 31, 0}}) {
    EXPECT_EQ(relative_bucket(c, true, distance), encoder) << distance;
    EXPECT_EQ(relative_bucket(c, false, distance), decoder) << distance;
  }
}

TEST(Families, NonsenseIsRefused) {
  const auto refusal = [](auto change) -> std::string {
    ModelConfig c = small("llama-110m");
    change(c);
    try {
      validate(c);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal([](ModelConfig&) {}), "none");
  EXPECT_NE(refusal([](auto& c) { c.window = -1; }).find("window"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.output_soft_cap = -1; }).find("soft_cap"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.relative_buckets = 8; }).find("buckets"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.rotary_factor = 0.5f; }).find("rotary"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.more_eos_ids = {99}; }).find("more_eos"), std::string::npos);
}

}  // namespace
}  // namespace saturate::model
