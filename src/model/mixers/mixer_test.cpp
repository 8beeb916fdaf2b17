// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/transformer.h"

namespace saturate::model {
namespace {

ModelConfig complete(std::string_view preset) {
  ModelConfig c = model_preset(preset);
  if (c.kind == ModelKind::encoder_decoder) {
    c.vocab_source = c.vocab_target = 1000;
    c.eos_id = 2;
    c.pad_id = c.decoder_start_id = 3;
  }
  return c;
}

std::vector<std::string> names(const ModelConfig& config, Stack stack, int64_t layer) {
  std::vector<std::string> out;
  for (const MixerKind* kind : layer_mixers(config, stack, layer)) out.emplace_back(kind->name);
  return out;
}

using Names = std::vector<std::string>;

TEST(Mixers, LayersAreLists) {
  const ModelConfig base = complete("base");
  const ModelConfig gpt2 = complete("gpt2-124m");
  EXPECT_EQ(names(base, Stack::encoder, 1), (Names{"self_attention", "feed_forward"}));
  EXPECT_EQ(names(base, Stack::decoder, 1),
            (Names{"self_attention", "cross_attention", "feed_forward"}));
  EXPECT_EQ(names(gpt2, Stack::decoder, 1), (Names{"self_attention", "feed_forward"}));
}

TEST(Mixers, OnlyThoseThatMixTokensCanBeChosen) {
  for (const char* name : {"feed_forward", "cross_attention", "self-attention", ""}) {
    ModelConfig c = complete("gpt2-124m");
    c.mixers = {"self_attention", name};
    try {
      validate(c);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("it takes self_attention"), std::string::npos)
          << e.what();
    }
  }
}

// Of the whole step, from the formula of the architecture rather than from its mixers.
TEST(Mixers, CountTheStepsOperations) {
  for (const std::string_view preset : {"base", "gpt2-124m", "llama-110m"}) {
    ModelConfig c = complete(preset);
    if (preset == "llama-110m") c.kv_heads = 4;
    ParameterStore store({}, DType::f32);
    const Transformer model(c, store);
    const bool lm = c.kind == ModelKind::decoder_only;
    const auto d = static_cast<double>(c.d_model);
    const auto q = static_cast<double>(c.heads * c.head_size);
    const auto kv = static_cast<double>(c.kv_heads * c.head_size);
    const double ffn = static_cast<double>(c.ffn) * d * (c.gated ? 3 : 2);
    const double self = d * (q + 2 * kv) + q * d;
    const auto enc = static_cast<double>(c.encoder_layers);
    const auto dec = static_cast<double>(c.decoder_layers);
    const double source = lm ? 0 : 700, target = 900, pairs_s = lm ? 0 : 5000, pairs_t = 6000,
                 pairs_c = lm ? 0 : 7000;
    double products = source * enc * (self + ffn) + target * dec * (self + ffn) +
                      target * static_cast<double>(c.vocab_target) * d;
    if (!lm) products += dec * (target * 2 * d * q + source * 2 * d * kv);
    const double scores = 2 * q * (enc * pairs_s + dec * pairs_t + dec * pairs_c);
    const double want = 6 * (products + scores);
    EXPECT_NEAR(model.training_flops(source, target, pairs_s, pairs_t, pairs_c), want, 1e-12 * want)
        << preset;
  }
}

// What files and checks ask before there is memory is what training declares.
TEST(Mixers, ShapesBeforeMemoryAreTheStores) {
  for (const std::string_view preset : {"base", "gpt2-124m", "llama-110m"}) {
    const ModelConfig c = complete(preset);
    ParameterStore store({}, DType::f32);
    const Transformer model(c, store);
    const std::vector<ParameterShape> shapes = model_parameters(c);
    ASSERT_EQ(shapes.size(), store.specs().size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      const ParameterSpec& p = store.specs()[i];
      EXPECT_EQ(shapes[i].name, p.name);
      EXPECT_EQ(shapes[i].cols, p.cols);
      const bool vocabulary = p.name.ends_with("embed.weight") || p.name == "shared.weight" ||
                              p.name == "output.weight";
      EXPECT_EQ(p.rows, vocabulary ? (c.vocab_target + 63) / 64 * 64 : shapes[i].rows) << p.name;
      EXPECT_EQ(shapes[i].rows, vocabulary ? c.vocab_target : p.rows) << p.name;
      int64_t blocks = 0;
      for (const int64_t rows : p.blocks) blocks += rows;
      const int64_t out = shapes[i].is_vector ? p.cols : p.rows;
      EXPECT_TRUE(p.blocks.empty() || blocks == out) << p.name;
      EXPECT_EQ(p.blocks.size() == 3, p.name.find("self.qkv.") != std::string::npos) << p.name;
    }
  }
}

}  // namespace
}  // namespace saturate::model
