// SPDX-License-Identifier: Apache-2.0
// Language models with linear attention, alone and in turn with self-attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/decode_reference_test.h"
#include "model/generator.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "ops/cross_entropy.h"
#include "ops/gradient_check_test.h"

namespace saturate::model {
namespace {

using Mixers = std::vector<std::string>;
const Mixers kLinear = {"linear_attention"};
const Mixers kHybrid = {"linear_attention", "self_attention"};

ModelConfig language_model(const Mixers& mixers) {
  ModelConfig c = model_preset("gpt2-124m");
  c.d_model = 16;
  c.decoder_layers = 3;
  c.heads = c.kv_heads = 4;
  c.head_size = 4;
  c.ffn = 24;
  c.vocab_target = 29;
  c.max_positions = 48;
  c.bos_id = c.eos_id = 2;
  c.mixers = mixers;
  validate(c);
  return c;
}

// Two sequences, an empty one, and a row outside all of them.
TEST(LinearAttentionMixer, GradientsAreThoseOfTheLoss) {
  const std::vector<int32_t> ids{3, 1, 4, 0, 2, 0}, positions{0, 1, 2, 0, 1, 0}, cu{0, 3, 5, 5};
  const std::vector<int32_t> order{3, 1, 4, 0, 2}, labels{1, 2, 4, 0, 3, -1};
  const int32_t valid = 5;
  for (const Mixers& mixers : {kLinear, kHybrid}) {
    const ModelConfig config = language_model(mixers);
    std::optional<Transformer> model;
    const GradientCase test{
        .declare = [&](ParameterStore& store) { model.emplace(config, store); },
        .record =
            [&](Tape& tape, double* totals) {
              const PackedSide side{.tokens = {.ids = ids.data(),
                                               .positions = positions.data(),
                                               .cu = cu.data(),
                                               .order = order.data(),
                                               .valid = &valid,
                                               .rows = 6,
                                               .sequences = 3},
                                    .max_length = 3};
              ops::cross_entropy(
                  tape, model->logits(tape, model->decode(tape, side, {}, nullptr)),
                  {.labels = labels.data(), .vocab = config.vocab_target, .totals = totals});
            }};
    const GradientReport r = check_gradients(test);
    EXPECT_LT(r.worst, 1e-6) << r.where;
    EXPECT_GT(r.checked, 300);
  }
}

// Prompts of any length on three rows, so that later ones find the states of those before.
TEST(LinearAttentionMixer, GenerationEqualsDecodingWithoutCache) {
  std::vector<std::vector<int32_t>> prompts(16);
  for (uint64_t i = 0; i < prompts.size(); ++i) {
    for (uint64_t j = 0; j <= i * 5 % 22; ++j) {
      prompts[i].push_back(static_cast<int32_t>(philox4x32(i, j, 0).x[0] % 29));
    }
  }
  for (const Mixers& mixers : {kLinear, kHybrid}) {
    const TestModel m(language_model(mixers), DType::f64, {}, 6);
    const ReferenceDecoder decoder(m);
    Generator generator(m.model, m.store, {.sequences = 3, .max_length = 30});
    const auto got =
        generator.generate(prompts, {.temperature = 0.0f, .max_tokens = 8, .stop_at_eos = false});
    std::set<int32_t> said;
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> all = prompts[i], want;
      while (want.size() < 8 && all.size() < 30) {
        const std::vector<double> z = decoder.last_logits({}, all);
        want.push_back(static_cast<int32_t>(std::max_element(z.begin(), z.end()) - z.begin()));
        all.push_back(want.back());
      }
      EXPECT_EQ(got[i], want) << "prompt " << i << ", " << mixers.size() << " mixers";
      said.insert(want.begin(), want.end());
    }
    EXPECT_GT(said.size(), 2u) << "too few tokens to tell one state from another";
  }
}

TEST(LinearAttentionMixer, KeepsAStateOfOneSize) {
  const auto state_of = [](const Mixers& mixers, DType compute) {
    ParameterStore store({}, compute);
    const Transformer model(language_model(mixers), store);
    DecodeState sum;
    for (const Mixer* m : model.decoder_mixers()) {
      sum.slot_bytes += m->decode_state(compute).slot_bytes;
      sum.row_bytes += m->decode_state(compute).row_bytes;
    }
    return std::pair(sum.slot_bytes, sum.row_bytes);
  };
  const int64_t state = 4 * 4 * 5 * 4, keys_values = 2 * 16 * 2;  // fp32 and bf16
  EXPECT_EQ(state_of({}, DType::bf16), std::pair(3 * keys_values, int64_t{0}));
  EXPECT_EQ(state_of(kLinear, DType::bf16), std::pair(int64_t{0}, 3 * state));
  EXPECT_EQ(state_of(kHybrid, DType::bf16), std::pair(keys_values, 2 * state));
}

TEST(LinearAttentionMixer, TakesLayersInTurnAndCountsNoPairs) {
  const ModelConfig plain = language_model({});
  const auto flops = [](const Mixers& mixers) {
    ParameterStore store({}, DType::f32);
    return Transformer(language_model(mixers), store).training_flops(0, 100, 0, 900, 0);
  };
  // Of three layers two are linear in turn. A state of head_size^2 numbers a head is filled and
  // read for each token, in place of two products for each pair.
  const double width = 16, state = 2 * 100 * width * 4, scores = 2 * 900 * width;
  EXPECT_DOUBLE_EQ(flops(kLinear), flops({}) + 6 * 3 * (state - scores));
  EXPECT_DOUBLE_EQ(flops(kHybrid), flops({}) + 6 * 2 * (state - scores));
  const ModelConfig hybrid = language_model(kHybrid);
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_STREQ(layer_mixers(hybrid, Stack::decoder, layer)[0]->name,
                 layer == 1 ? "self_attention" : "linear_attention");
    EXPECT_STREQ(layer_mixers(plain, Stack::decoder, layer)[0]->name, "self_attention");
  }
}

TEST(LinearAttentionMixer, HasAFolderOfOurOwnAndNoOther) {
  const Stream stream(Device{});
  const ModelConfig config = language_model(kHybrid);
  EXPECT_EQ(hf_refusal(config), "no class of transformers has linear_attention");
  EXPECT_EQ(hf_refusal(language_model({})), std::nullopt);
  ParameterStore saved({}, DType::f32), loaded({}, DType::f32);
  const Transformer first(config, saved), second(config, loaded);
  EXPECT_GE(saved.find("decoder.layers.2.linear.qkv.weight").index, 0);
  EXPECT_GE(saved.find("decoder.layers.1.self.qkv.weight").index, 0);
  saved.allocate(ParameterStore::Purpose::inference);
  loaded.allocate(ParameterStore::Purpose::inference);
  saved.initialise(stream, 1);
  loaded.initialise(stream, 2);
  const testing::TempFolder folder;
  save_model(folder.path(), config, {}, saved);
  EXPECT_TRUE(read_model_config(folder.path()) == config);
  load_weights(folder.path(), config, loaded);
  for (const ParameterShape& p : model_parameters(config)) {
    const auto* a = static_cast<const float*>(saved.master(saved.find(p.name)));
    const auto* b = static_cast<const float*>(loaded.master(loaded.find(p.name)));
    EXPECT_TRUE(std::equal(a, a + p.elements(), b)) << p.name;
  }
}

TEST(LinearAttentionMixer, SaysWhichModelsCannotHaveIt) {
  const auto message = [](ModelConfig c) -> std::string {
    c.mixers = {"self_attention", "linear_attention"};
    try {
      validate(c);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  ModelConfig translation = model_preset("tiny");
  translation.vocab_source = translation.vocab_target = 100;
  translation.eos_id = translation.decoder_start_id = 1;
  EXPECT_NE(message(translation).find("decoder-only"), std::string::npos) << message(translation);
  ModelConfig grouped = language_model({});
  grouped.kv_heads = 2;
  EXPECT_NE(message(grouped).find("kv_heads"), std::string::npos) << message(grouped);
  ModelConfig rotary = language_model({});
  rotary.positions = PositionKind::rotary;
  EXPECT_NE(message(rotary).find("positions"), std::string::npos) << message(rotary);
  ModelConfig dropped = language_model({});
  dropped.attention_dropout = 0.1f;
  EXPECT_NE(message(dropped).find("attention_dropout"), std::string::npos) << message(dropped);
}

}  // namespace
}  // namespace saturate::model
