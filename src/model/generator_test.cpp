// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "model/decode_reference_test.h"
#include "model/finite.h"

namespace saturate::model {
namespace {

ModelConfig language_model(bool llama) {
  ModelConfig c;
  c.kind = ModelKind::decoder_only;
  c.d_model = 16;
  c.encoder_layers = 0;
  c.decoder_layers = 2;
  c.heads = 4;
  c.kv_heads = llama ? 2 : 4;
  c.head_size = 8;
  c.ffn = 24;
  c.vocab_source = 0;
  c.vocab_target = 29;
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  c.max_positions = 48;
  c.positions = llama ? PositionKind::rotary : PositionKind::learned;
  c.scale_embedding = false;
  c.eos_id = 2;
  return c;
}

std::vector<std::vector<int32_t>> make_prompts() {
  return {{5}, {7, 8, 9, 10}, {3, 3}, {28, 1, 4, 20, 11, 12, 13}, {6, 5, 4}};
}

TEST(Generator, GreedyEqualsDecodingWithoutCache) {
  for (const bool llama : {false, true}) {
    const TestModel m(language_model(llama), DType::f64, {}, 6);
    const ReferenceDecoder decoder(m);
    Generator generator(m.model, m.store, {.sequences = 3, .max_length = 30});
    const auto prompts = make_prompts();
    const auto got = generator.generate(prompts, {.temperature = 0.0f, .max_tokens = 25});
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> ids = prompts[i], want;
      while (want.size() < 25 && ids.size() < 30) {
        const auto z = decoder.last_logits({}, ids);
        const auto id = static_cast<int32_t>(std::max_element(z.begin(), z.end()) - z.begin());
        if (id == 2) break;
        ids.push_back(id);
        want.push_back(id);
      }
      EXPECT_EQ(got[i], want) << "prompt " << i << " llama " << llama;
    }
  }
}

TEST(Generator, RefusesScoresThatAreNotFinite) {
  for (const float value : {NAN, 1e38f}) {  // the second is finite, its sums are not
    TestModel m(language_model(false), DType::f32, {}, 6);
    Generator generator(m.model, m.store, {.sequences = 3, .max_length = 30});
    EXPECT_NO_THROW(generator.generate(make_prompts(), {.max_tokens = 5}));
    std::fill_n(m.store.masters().as<float>(), m.store.padded_count(), value);
    EXPECT_THROW(generator.generate(make_prompts(), {.max_tokens = 5}), NonFiniteScores);
    EXPECT_THROW(generator.generate(make_prompts(), {.temperature = 0.0f, .max_tokens = 5}),
                 NonFiniteScores);
  }
}

TEST(Generator, DrawsDependOnSeedAndPlaceOnly) {
  const TestModel m(language_model(true), DType::f32, {}, 6);
  Generator wide(m.model, m.store, {.sequences = 8, .max_length = 40});
  Generator narrow(m.model, m.store, {.sequences = 2, .max_length = 40});
  const auto prompts = make_prompts();
  const SamplingOptions sampling{
      .temperature = 0.9f, .top_k = 20, .top_p = 0.95f, .max_tokens = 20};
  std::vector<std::vector<int32_t>> streamed(prompts.size());
  const auto first = wide.generate(
      prompts, sampling, [&](size_t prompt, int32_t id) { streamed[prompt].push_back(id); });
  EXPECT_EQ(streamed, first);
  EXPECT_EQ(wide.generate(prompts, sampling), first);
  EXPECT_EQ(narrow.generate(prompts, sampling), first);
  SamplingOptions other = sampling;
  other.seed = 2;
  EXPECT_NE(wide.generate(prompts, other), first);
  const std::vector<std::vector<int32_t>> same(8, prompts[1]);
  const auto samples = wide.generate(same, sampling);
  EXPECT_GT(std::set(samples.begin(), samples.end()).size(), size_t{4});
}

TEST(Generator, StopsWhereItIsTold) {
  const TestModel m(language_model(false), DType::f32, {}, 6);
  Generator generator(m.model, m.store, {.sequences = 2, .max_length = 12});
  const std::vector<std::vector<int32_t>> prompts{{4, 5, 6}, std::vector<int32_t>(12, 4), {9}};
  const auto all = generator.generate(prompts, {.max_tokens = 100, .stop_at_eos = false});
  EXPECT_EQ(all[0].size(), size_t{9});
  EXPECT_EQ(all[1].size(), size_t{0});
  EXPECT_EQ(all[2].size(), size_t{11});
  const auto none = generator.generate(prompts, {.max_tokens = 0});
  EXPECT_TRUE(none[0].empty() && none[1].empty() && none[2].empty());
}

TEST(Generator, CudaAgreesWithCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const bool llama : {false, true}) {
    const TestModel cpu(language_model(llama), DType::f32, {}, 6);
    const TestModel gpu(language_model(llama), DType::f32, {DeviceKind::cuda, 0}, 6);
    const auto prompts = make_prompts();
    Generator on_cpu(cpu.model, cpu.store, {.sequences = 3, .max_length = 40});
    for (const bool graph : {false, true}) {
      Generator on_gpu(gpu.model, gpu.store, {.sequences = 3, .max_length = 40, .graph = graph});
      for (const float temperature : {0.0f, 1.0f}) {
        const SamplingOptions sampling{
            .temperature = temperature, .top_k = 12, .top_p = 0.9f, .max_tokens = 30};
        const auto got = on_gpu.generate(prompts, sampling);
        // A draw differs where the drawn number lies within the rounding of a running sum: 1e-5 a
        // token.
        EXPECT_EQ(got, on_cpu.generate(prompts, sampling)) << temperature << " graph " << graph;
        EXPECT_EQ(got, on_gpu.generate(prompts, sampling)) << "a second call";
      }
    }
  }
}

TEST(Generator, NamesWhatItCannotTake) {
  const TestModel m(language_model(false), DType::f32, {}, 6);
  Generator generator(m.model, m.store, {.sequences = 2, .max_length = 12});
  const auto message = [&](const std::vector<std::vector<int32_t>>& prompts, SamplingOptions s) {
    try {
      generator.generate(prompts, s);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message({{1}, {}}, {}).find("prompt 1 has 0 tokens"), std::string::npos);
  EXPECT_NE(message({std::vector<int32_t>(13, 1)}, {}).find("prompt 0 has 13"), std::string::npos);
  EXPECT_NE(message({{29}}, {}).find("prompt 0 holds id 29"), std::string::npos);
  EXPECT_NE(message({{1}}, {.top_p = 0.0f}).find("top_p 0"), std::string::npos);
  EXPECT_THROW(Generator(m.model, m.store, {.sequences = 0}), Error);
}

}  // namespace
}  // namespace saturate::model
