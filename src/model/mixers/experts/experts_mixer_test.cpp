// SPDX-License-Identifier: Apache-2.0
// Models with experts: gradients, generation, folders, refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "kernels/experts/routing.h"
#include "model/decode_reference_test.h"
#include "model/generator.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "ops/cross_entropy.h"
#include "ops/gradient_check_test.h"

namespace saturate::model {
namespace {

ModelConfig language_model(ExpertRouting routing, int64_t experts = 5, int64_t every = 1) {
  ModelConfig c = model_preset("gpt2-124m");
  c.d_model = 16;
  c.decoder_layers = 3;
  c.heads = c.kv_heads = 4;
  c.head_size = 4;
  c.ffn = 24;
  c.vocab_target = 29;
  c.max_positions = 48;
  c.bos_id = c.eos_id = 2;
  c.experts = experts;
  c.expert_routing = routing;
  c.experts_per_token = routing == ExpertRouting::switch_one ? 1 : 2;
  c.expert_every = every;
  c.capacity_factor = 0.7f;
  validate(c);
  return c;
}

// Two sequences, an empty one, and rows outside all of them.
struct Batch {
  std::vector<int32_t> ids{3, 1, 4, 0, 2, 5, 7, 0, 0}, positions{0, 1, 2, 3, 0, 1, 2, 0, 0};
  std::vector<int32_t> cu{0, 4, 7, 7}, order{3, 1, 4, 0, 2, 5, 6};
  std::vector<int32_t> labels{1, 2, 4, 0, 3, 6, 7, -1, -1};
  int32_t valid = 7;
  PackedSide side() const {
    return {.tokens = {.ids = ids.data(),
                       .positions = positions.data(),
                       .cu = cu.data(),
                       .order = order.data(),
                       .valid = &valid,
                       .rows = 9,
                       .sequences = 3},
            .max_length = 4};
  }
};

// Without the losses of the router alone, which totals do not hold: kernels/gradient_test.cpp has
// them. Places are few enough that some choices are dropped.
TEST(ExpertsMixer, GradientsAreThoseOfTheLoss) {
  const Batch batch;
  for (const ExpertRouting routing :
       {ExpertRouting::dropless, ExpertRouting::switch_one, ExpertRouting::gshard}) {
    for (const bool gated : {false, true}) {
      if (gated && routing != ExpertRouting::dropless) continue;
      ModelConfig config = language_model(routing);
      config.router_aux_loss = config.router_z_loss = 0;
      config.gated = gated;
      std::optional<Transformer> model;
      const GradientCase test{
          .declare = [&](ParameterStore& store) { model.emplace(config, store); },
          .record =
              [&](Tape& tape, double* totals) {
                ops::cross_entropy(
                    tape, model->logits(tape, model->decode(tape, batch.side(), {}, nullptr)),
                    {.labels = batch.labels.data(),
                     .vocab = config.vocab_target,
                     .totals = totals});
              }};
      const GradientReport r = check_gradients(test, 4);
      EXPECT_LT(r.worst, 1e-6) << r.where << ", " << name_of(routing);
      EXPECT_GT(r.checked, 100);
    }
  }
}

TEST(ExpertsMixer, CountsWhatItRoutes) {
  const Batch batch;
  const ModelConfig config = language_model(ExpertRouting::switch_one);
  ParameterStore store({}, DType::f64);
  const Transformer model(config, store);
  store.allocate(ParameterStore::Purpose::training);
  store.initialise(Stream(store.device()), 1);
  const uint64_t rng[2] = {11, 3};
  const size_t width = 5 + kernels::kRoutingTotals, layer = kernels::kRoutingBlocks * width;
  std::vector<double> routing(3 * layer);
  Tape tape(store, TapeMode::training, rng);
  tape.set_auxiliary({.grad_scale = 1.0f, .device_scale = nullptr, .routing = routing.data()});
  double totals[4] = {};
  ops::cross_entropy(tape, model.logits(tape, model.decode(tape, batch.side(), {}, nullptr)),
                     {.labels = batch.labels.data(), .vocab = 29, .totals = totals});
  tape.backward();
  std::vector<char> arena(tape.plan() + 256);
  tape.run({}, arena.data(), false);
  tape.run({}, arena.data(), true);
  for (size_t l = 0; l < 3; ++l) {
    const double* row = &routing[l * layer];
    double choices = 0;
    for (size_t e = 0; e < 5; ++e) choices += row[e];
    EXPECT_EQ(choices, 14) << "seven tokens twice";
    EXPECT_EQ(row[5], 14);
    // Each of five experts has ceil(0.7 * 7 / 5) = 1 place.
    double dropped = 0;
    for (size_t e = 0; e < 5; ++e) dropped += std::max(row[e] / 2 - 1, 0.0) * 2;
    EXPECT_EQ(row[5 + static_cast<size_t>(kernels::RoutingTotal::dropped)], dropped);
    EXPECT_GT(dropped, 0);
  }
}

TEST(ExpertsMixer, GenerationEqualsDecodingWithoutCache) {
  std::vector<std::vector<int32_t>> prompts(9);
  for (uint64_t i = 0; i < prompts.size(); ++i) {
    for (uint64_t j = 0; j <= i * 5 % 22; ++j) {
      prompts[i].push_back(static_cast<int32_t>(philox4x32(i, j, 0).x[0] % 29));
    }
  }
  for (const ExpertRouting routing : {ExpertRouting::dropless, ExpertRouting::gshard}) {
    const TestModel m(language_model(routing), DType::f64, {}, 6);
    const ReferenceDecoder decoder(m);
    Generator generator(m.model, m.store, {.sequences = 3, .max_length = 30});
    const auto got =
        generator.generate(prompts, {.temperature = 0.0f, .max_tokens = 6, .stop_at_eos = false});
    std::set<int32_t> said;
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> all = prompts[i], want;
      while (want.size() < 6 && all.size() < 30) {
        const std::vector<double> z = decoder.last_logits({}, all);
        want.push_back(static_cast<int32_t>(std::max_element(z.begin(), z.end()) - z.begin()));
        all.push_back(want.back());
      }
      EXPECT_EQ(got[i], want) << "prompt " << i << ", " << name_of(routing);
      said.insert(want.begin(), want.end());
    }
    EXPECT_GT(said.size(), 2u) << "too few tokens to tell one expert from another";
  }
}

TEST(ExpertsMixer, StandsInForFeedForwardInEveryNthLayer) {
  const ModelConfig c = language_model(ExpertRouting::dropless, 4, 2);
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_STREQ(layer_mixers(c, Stack::decoder, layer)[1]->name,
                 layer == 1 ? "experts" : "feed_forward");
  }
  ParameterStore store({}, DType::f32);
  const Transformer model(c, store);
  const ParameterSpec& in = store.spec(store.find("decoder.layers.1.experts.in.weight"));
  const ParameterSpec& out = store.spec(store.find("decoder.layers.1.experts.out.weight"));
  EXPECT_EQ(std::pair(in.rows, in.cols), std::pair(int64_t{4 * 24}, int64_t{16}));
  EXPECT_EQ(std::pair(out.rows, out.cols), std::pair(int64_t{4 * 16}, int64_t{24}));
  // Two experts of four and the router's four products, in place of one feed-forward block.
  ModelConfig dense = c;
  dense.experts = 0;
  dense.expert_every = 1;
  ParameterStore dense_store({}, DType::f32);
  const double more = 6 * 100 * 16 * (24 * 2 + 4);
  EXPECT_DOUBLE_EQ(model.training_flops(0, 100, 0, 900, 0),
                   Transformer(dense, dense_store).training_flops(0, 100, 0, 900, 0) + more);
}

TEST(ExpertsMixer, HasAFolderOfOurOwnAndNoOther) {
  const Stream stream(Device{});
  const ModelConfig config = language_model(ExpertRouting::gshard);
  EXPECT_EQ(hf_refusal(config), "of the classes that it reads or writes only Mixtral has experts");
  ParameterStore saved({}, DType::f32), loaded({}, DType::f32);
  const Transformer first(config, saved), second(config, loaded);
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

TEST(ExpertsMixer, SaysWhichModelsCannotHaveIt) {
  const auto message = [](const auto& change) -> std::string {
    ModelConfig c = language_model(ExpertRouting::gshard);
    change(c);
    try {
      validate(c);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const auto expect = [&](const char* word, const auto& change) {
    EXPECT_NE(message(change).find(word), std::string::npos) << message(change);
  };
  expect("experts is 1", [](ModelConfig& c) { c.experts = 1; });
  expect("experts_per_token is 6", [](ModelConfig& c) { c.experts_per_token = 6; });
  expect("gshard two", [](ModelConfig& c) { c.experts_per_token = 3; });
  expect("expert_every is 4", [](ModelConfig& c) { c.expert_every = 4; });
  expect("capacity_factor is 0", [](ModelConfig& c) { c.capacity_factor = 0; });
  expect("router_z_loss is -1", [](ModelConfig& c) { c.router_z_loss = -1; });
  expect("activation_dropout", [](ModelConfig& c) { c.activation_dropout = 0.1f; });
}

}  // namespace
}  // namespace saturate::model
