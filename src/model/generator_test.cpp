// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "model/decode_reference_test.h"
#include "model/finite.h"
#include "model/generator_memory.h"

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

// Keys and values of the last layer are what steps read; its attention and all after it are nobody's.
TEST(Generator, ReadsPromptsAsFarAsStepsNeed) {
  const TestModel m(language_model(true), DType::f32, {}, 6);
  const GeneratorOptions o{.sequences = 2, .max_length = 16, .prompt_rows = 32};
  const GeneratorMemory memory(m.model, m.store, o, 32);
  const std::unique_ptr<RecordedPlan> plan = record_prompts(m.store, memory, o, 32);
  std::map<std::string, int> count;
  for (size_t i = 0; i < plan->tape().operations(); ++i) ++count[plan->tape().operation(i).name];
  EXPECT_EQ(count["store_rows"], 2);
  EXPECT_EQ(count["attention"], 1);
  EXPECT_EQ(std::string_view(plan->tape().operation(plan->tape().operations() - 1).name),
            "store_rows");
}

TEST(Generator, PromptsAreReadByWhatFillsTheDeviceAndFits) {
  constexpr size_t kGb = 1'000'000'000;
  constexpr int64_t kRowOf1B = 53'248, kRowOf7B = 84'992;
  EXPECT_EQ(usual_prompt_rows(132, 141 * kGb, kRowOf7B), 8192);  // H200
  EXPECT_EQ(usual_prompt_rows(128, 24 * kGb, kRowOf1B), 2048) << "memory";
  EXPECT_EQ(usual_prompt_rows(108, 80 * kGb, kRowOf1B), 2048) << "multiprocessors";
  const Device gpu{DeviceKind::cuda, 0};
  const std::pair<int64_t, int64_t> sizes[] = {{5, 32},      {33, 128},    {600, 2048},
                                               {2048, 2048}, {2049, 4096}, {4097, 8192}};
  for (const auto& [tokens, rows] : sizes)
    EXPECT_EQ(prompt_pass_size(gpu, 8192, tokens, false), rows);
  EXPECT_EQ(prompt_pass_size(gpu, 2048, 513, false), 2048);
  EXPECT_EQ(prompt_pass_size(gpu, 8192, 5, true), 8192);
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

// Rules, ends and log-probabilities against decoding without a cache.
TEST(Generator, FollowsTheWishesOfEachSequence) {
  const TestModel m(language_model(true), DType::f64, {}, 6);
  const ReferenceDecoder decoder(m);
  const auto prompts = make_prompts();
  const auto wish = [](SamplingOptions o) {
    o.temperature = 0.0f;
    o.max_tokens = 20;
    o.log_probabilities = true;
    return o;
  };
  const std::vector<SamplingOptions> wishes{
      wish({.stop_ids = {9, 17}}),
      wish({.repetition_penalty = 1.6f}),
      wish({.no_repeat_ngram = 1}),
      wish({.no_repeat_ngram = 2, .min_tokens = 15}),
      wish({.presence_penalty = 0.5f, .frequency_penalty = 0.25f}),
      wish({.stop_ids = {9, 17, 8, 7, 6}, .min_tokens = 6})};
  Generator generator(m.model, m.store, {.sequences = 4, .max_length = 30, .suppressed = {11}});
  for (size_t i = 0; i < prompts.size(); ++i) generator.add(prompts[i], wishes[i]);
  std::vector<Continuation> got(prompts.size());
  std::vector<std::vector<int32_t>> streamed(prompts.size());
  while (generator.held() > 0) {
    generator.step(
        [&](int64_t t, int32_t id, float p) {
          streamed[static_cast<size_t>(t)].push_back(id);
          EXPECT_LT(p, 0.0f);
        },
        [&](int64_t t, Continuation all) { got[static_cast<size_t>(t)] = std::move(all); });
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    const SamplingOptions& w = wishes[i];
    std::vector<int32_t> said = prompts[i], want;
    std::vector<int32_t> ends = w.stop_ids;
    ends.push_back(2);
    Ending ending = Ending::length;
    while (want.size() < 20 && said.size() < 30) {
      auto z = decoder.last_logits({}, said);
      for (int32_t c = 0; c < 29; ++c) {
        double& x = z[static_cast<size_t>(c)];
        const bool known = std::ranges::find(said, c) != said.end();
        const auto penalty = static_cast<double>(w.repetition_penalty);
        if (known) x = x > 0 ? x / penalty : x * penalty;
        if (const auto times = std::ranges::count(want, c); times > 0)
          x -= static_cast<double>(w.presence_penalty) +
               static_cast<double>(times) * static_cast<double>(w.frequency_penalty);
        if (known && w.no_repeat_ngram == 1) x = -INFINITY;
        for (size_t j = 0; w.no_repeat_ngram == 2 && j + 1 < said.size(); ++j)
          if (said[j] == said.back() && said[j + 1] == c) x = -INFINITY;
        const bool end = std::ranges::find(ends, c) != ends.end();
        if ((end && std::ssize(want) < w.min_tokens) || c == 11) x = -INFINITY;
      }
      const auto id = static_cast<int32_t>(std::ranges::max_element(z) - z.begin());
      if (std::ranges::find(ends, id) != ends.end()) {
        ending = Ending::stop;
        break;
      }
      double sum = 0;
      for (const double x : z) sum += std::exp(x);
      ASSERT_LT(want.size(), got[i].log_probabilities.size());
      EXPECT_NEAR(got[i].log_probabilities[want.size()], z[static_cast<size_t>(id)] - std::log(sum),
                  1e-5);
      said.push_back(id);
      want.push_back(id);
    }
    EXPECT_EQ(got[i].ids, want);
    EXPECT_EQ(streamed[i], want);
    EXPECT_EQ(got[i].log_probabilities.size(), want.size());
    EXPECT_EQ(got[i].ending, ending);
  }
}

// Allows, behind a token, those that are it plus 1 .. width, and the end once there are `least` tokens.
class Ladder : public TokenConstraint {
 public:
  Ladder(int32_t width, int32_t least) : width_(width), least_(least) {}
  int32_t start() override { return state_of(2, 0); }
  int32_t next(int32_t state, int32_t id) override {
    EXPECT_TRUE(allowed(state)[0] >> id & 1u) << id;
    return state_of(id, state / 32 + 1);
  }
  std::span<const uint32_t> allowed(int32_t state) override {
    word_ = 0;
    for (int32_t id = state % 32 + 1; id <= std::min(28, state % 32 + width_); ++id)
      word_ |= 1u << id;
    if (state / 32 >= least_) word_ |= 1u << 2;
    return {&word_, 1};
  }

 private:
  static int32_t state_of(int32_t id, int32_t count) { return count * 32 + id; }
  const int32_t width_, least_;
  uint32_t word_ = 0;
};

// Constrained and biased sequences among others: each is what it is alone, and keeps to its form.
void expect_choices(Device device, DType type) {
  const TestModel m(language_model(true), type, device, 6);
  const GeneratorOptions options{
      .sequences = 3, .max_length = 40, .prompt_rows = 48, .same_bits = true};
  Generator alone(m.model, m.store, options), together(m.model, m.store, options);
  const auto prompts = make_prompts();
  const auto wish = [](size_t i) {
    SamplingOptions s{.temperature = 0.9f, .max_tokens = 30, .seed = i, .stream = 3};
    if (i % 3 != 0) s.constraint = std::make_shared<Ladder>(static_cast<int32_t>(1 + i % 5), 4);
    if (i % 2 == 1) s.biases = {{17, 3.0f}, {2, i % 4 == 1 ? -100.0f : 2.0f}, {9, 100.0f}};
    return s;
  };
  constexpr size_t kCount = 30;
  std::vector<Continuation> got(kCount), want(kCount);
  size_t added = 0;
  while (added < kCount || together.held() > 0) {
    for (int n = 0; n < 2 && added < kCount; ++n, ++added)
      together.add(prompts[added % prompts.size()], wish(added));
    together.step({},
                  [&](int64_t t, Continuation c) { got[static_cast<size_t>(t)] = std::move(c); });
  }
  bool biased = false;
  for (size_t i = 0; i < kCount; ++i) {
    SCOPED_TRACE(i);
    alone.add(prompts[i % prompts.size()], wish(i));
    while (alone.held() > 0)
      alone.step({}, [&](int64_t, Continuation c) { want[i] = std::move(c); });
    EXPECT_EQ(got[i].ids, want[i].ids);
    EXPECT_EQ(got[i].ending, want[i].ending);
    if (i % 3 == 0) {
      biased = biased || std::ranges::count(got[i].ids, 9) > 2;
      continue;
    }
    const auto width = static_cast<int32_t>(1 + i % 5);
    int32_t before = 2;
    for (const int32_t id : got[i].ids) {
      EXPECT_TRUE(id > before && id <= before + width) << id;
      before = id;
    }
    // No token stands above 28 and no end is kept from coming: it is the only one there.
    EXPECT_EQ(got[i].ending, Ending::stop);
    EXPECT_GE(got[i].ids.size(), size_t{4});
  }
  EXPECT_TRUE(biased);
  // Where nothing is allowed.
  Continuation none;
  alone.add({5}, {.max_tokens = 30, .constraint = std::make_shared<Ladder>(1, 99)});
  while (alone.held() > 0) alone.step({}, [&](int64_t, Continuation c) { none = std::move(c); });
  EXPECT_EQ(none.ending, Ending::no_token);
  EXPECT_EQ(none.ids.size(), size_t{26});
}

TEST(Generator, SequencesChooseAmongTokens) {
  for (const DType type : {DType::f32, DType::f64}) expect_choices({}, type);
}

TEST(Generator, SequencesChooseAmongTokensOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16}) expect_choices({DeviceKind::cuda, 0}, type);
}

// Sequences that come while others are under way, some of which are given up again: each becomes what
// it becomes alone.
void expect_independence(Device device, DType type) {
  const TestModel m(language_model(true), type, device, 6);
  const GeneratorOptions options{
      .sequences = 5, .max_length = 40, .prompt_rows = 48, .same_bits = true};
  Generator alone(m.model, m.store, options), together(m.model, m.store, options);
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> prompts(40);
  for (auto& p : prompts) {
    p.resize(1 + random() % 30);
    for (int32_t& id : p) id = static_cast<int32_t>(3 + random() % 26);
  }
  const auto wish = [](size_t i) {
    return SamplingOptions{.temperature = 0.9f,
                           .top_k = i % 2 == 0 ? 5 : 0,
                           .max_tokens = static_cast<int64_t>(1 + i % 17),
                           .seed = i,
                           .stream = 3,
                           .log_probabilities = true};
  };
  std::map<int64_t, Continuation> got;
  std::set<int64_t> given_up;
  size_t added = 0;
  while (added < prompts.size() || together.held() > 0) {
    for (uint64_t n = random() % 3; n > 0 && added < prompts.size(); --n, ++added)
      EXPECT_EQ(together.add(prompts[added], wish(added)), static_cast<int64_t>(added));
    together.step(
        [&](int64_t t, int32_t id, float) {
          EXPECT_FALSE(given_up.contains(t));
          if (id % 13 != 0) return;
          together.cancel(t);
          given_up.insert(t);
        },
        [&](int64_t t, Continuation all) { EXPECT_TRUE(got.emplace(t, std::move(all)).second); });
  }
  EXPECT_EQ(together.room(), 5);
  EXPECT_GT(given_up.size(), 3u);
  EXPECT_GT(got.size(), 10u);
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    const auto t = static_cast<int64_t>(i);
    ASSERT_NE(got.contains(t), given_up.contains(t));
    if (given_up.contains(t)) continue;
    Continuation want;
    alone.add(prompts[i], wish(i));
    while (alone.held() > 0) {
      alone.step({}, [&](int64_t, Continuation all) { want = std::move(all); });
    }
    EXPECT_EQ(got[t].ids, want.ids);
    EXPECT_EQ(got[t].log_probabilities, want.log_probabilities);
    EXPECT_EQ(got[t].ending, want.ending);
  }
}

TEST(Generator, SequencesComeAndGoOnTheirOwn) {
  for (const DType type : {DType::f32, DType::f64}) expect_independence({}, type);
}

TEST(Generator, SequencesComeAndGoOnTheirOwnOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16})
    expect_independence({DeviceKind::cuda, 0}, type);
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
  EXPECT_NE(message({{1}}, {.repetition_penalty = -1.0f}).find("repetition_penalty is -1"),
            std::string::npos);
  EXPECT_NE(message({{1}}, {.stop_ids = {29}}).find("prompt 0 holds id 29"), std::string::npos);
  EXPECT_NE(message({{1}}, {.stop_ids = std::vector<int32_t>(8, 1)}).find("ids are to end it"),
            std::string::npos);
  EXPECT_NE(message({{1}}, {.biases = {{29, 1.0f}}}).find("id 29 has the bias 1"),
            std::string::npos);
  EXPECT_NE(message({{1}}, {.biases = {{3, 1.0f}, {3, 1.0f}}}).find("each once"),
            std::string::npos);
  EXPECT_NE(message({{1}}, {.biases = {{3, INFINITY}}}).find("bias inf"), std::string::npos);
  EXPECT_NE(message({{1}}, {.stop_at_eos = false, .constraint = std::make_shared<Ladder>(1, 1)})
                .find("held to a form"),
            std::string::npos);
  EXPECT_THROW(Generator(m.model, m.store, {.sequences = 0}), Error);
  EXPECT_THROW(Generator(m.model, m.store, {.suppressed = {29}}), Error);
}

}  // namespace
}  // namespace saturate::model
