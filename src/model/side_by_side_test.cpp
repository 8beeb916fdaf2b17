// SPDX-License-Identifier: Apache-2.0
// Several adapters in one batch against each merged into the model's weights.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "model/adapter_folder.h"
#include "model/generator.h"
#include "runtime/device.h"

namespace saturate::model {
namespace {

using Values = std::map<std::string, std::vector<float>>;

ModelConfig small_llama() {
  ModelConfig c = model_preset("llama-110m");
  c.d_model = 16;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 8;
  c.ffn = 24;
  c.decoder_layers = 2;
  c.vocab_target = 29;
  c.max_positions = 48;
  c.eos_id = 2;
  return c;
}

std::vector<float> draw(int64_t count, unsigned seed, float scale) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = scale * normal(engine);
  return values;
}

Values base_values(const ModelConfig& c) {
  Values values;
  for (const ParameterShape& p : model_parameters(c)) {
    std::vector<float>& v = values[p.name] =
        draw(p.elements(), static_cast<unsigned>(values.size() + 1), p.is_vector ? 0.1f : 0.4f);
    if (p.is_vector)
      for (float& x : v) x += 1;
  }
  return values;
}

Adapter make_adapter(const ModelConfig& c, const std::vector<std::string>& targets, int64_t rank,
                     unsigned seed) {
  const std::vector<TensorMapping> mapping = hf_tensor_mapping(c);
  Adapter a{
      .lora = lora_for(
          {.rank = rank, .alpha = 3.0 * static_cast<double>(rank), .targets = targets, .base = {}},
          mapping),
      .values = {}};
  for (const LoraLinear& l : a.lora.linears) {
    a.values[l.a_name()] = draw(l.rank() * l.columns, seed++, 0.3f);
    for (size_t i = 0; i < l.parts.size(); ++i)
      a.values[l.b_name(i)] = draw(l.parts[i].rows * l.parts[i].rank, seed++, 0.3f);
  }
  return a;
}

// A model with these weights, and of adapters one merged or all beside.
struct Loaded {
  Loaded(ModelConfig c, Values values, const Adapter* adapter, Device device, DType type,
         bool packed)
      : store(device, type) {
    if (adapter != nullptr && adapter->lora.side_by_side > 0) {
      c.lora = adapter->lora;
      values.insert(adapter->values.begin(), adapter->values.end());
    } else if (adapter != nullptr) {
      for (auto& [name, v] : values) adapter->merge(name, v);
    }
    model = std::make_unique<Transformer>(c, store);
    store.allocate(ParameterStore::Purpose::inference);
    model->make_tables(store);
    if (packed) store.pack(kernels::PackedType::f32);
    const Stream stream(device);
    for (auto& [name, v] : values) {
      const ParameterId id = store.find(name);
      v.resize(static_cast<size_t>(store.spec(id).size()));
      store.set(stream, id, v.data());
    }
    store.refresh_compute(stream);
    stream.synchronize();
  }
  ParameterStore store;
  std::unique_ptr<Transformer> model;
};

struct Wish {
  std::vector<int32_t> prompt;
  int32_t adapter;
};

std::vector<Continuation> continue_all(const Loaded& m, const std::vector<Wish>& wishes,
                                       bool use_adapters) {
  Generator generator(*m.model, m.store, {.sequences = 4, .max_length = 40, .prompt_rows = 16});
  std::map<int64_t, size_t> order;
  for (const Wish& w : wishes) {
    const int64_t ticket = generator.add(w.prompt, {.temperature = 0,
                                                    .max_tokens = 20,
                                                    .stop_at_eos = false,
                                                    .adapter = use_adapters ? w.adapter : -1,
                                                    .log_probabilities = true});
    order.emplace(ticket, order.size());
  }
  std::vector<Continuation> all(wishes.size());
  while (generator.held() > 0)
    generator.step({},
                   [&](int64_t ticket, Continuation c) { all[order.at(ticket)] = std::move(c); });
  return all;
}

const std::vector<Wish> kWishes = {{{5, 9, 3}, 0},
                                   {{5, 9, 3}, 1},
                                   {{5, 9, 3}, -1},
                                   {{7}, 1},
                                   {{1, 4, 20, 11, 12, 13, 6}, 0},
                                   {{8, 8, 8, 8, 1}, -1},
                                   {{7}, 0}};

std::vector<Adapter> two_adapters(const ModelConfig& c) {
  return {make_adapter(c, {"q_proj", "v_proj"}, 2, 100), make_adapter(c, {"all-linear"}, 3, 200)};
}

void expect_as_merged(Device device, DType type, bool packed, double tolerance) {
  const ModelConfig c = small_llama();
  const Values base = base_values(c);
  const std::vector<Adapter> adapters = two_adapters(c);
  const Adapter together = side_by_side(adapters);
  const Loaded beside(c, base, &together, device, type, packed);
  const std::vector<Continuation> got = continue_all(beside, kWishes, true);
  std::vector<std::vector<int32_t>> texts;
  for (int32_t a = -1; a < 2; ++a) {
    const Loaded merged(c, base, a < 0 ? nullptr : &adapters[static_cast<size_t>(a)], device, type,
                        packed);
    const std::vector<Continuation> want = continue_all(merged, kWishes, false);
    texts.push_back(want[0].ids);
    for (size_t i = 0; i < kWishes.size(); ++i) {
      if (kWishes[i].adapter != a) continue;
      SCOPED_TRACE(::testing::Message() << "sequence " << i << " adapter " << a);
      EXPECT_EQ(got[i].ids, want[i].ids);
      ASSERT_EQ(got[i].log_probabilities.size(), want[i].log_probabilities.size());
      for (size_t t = 0; t < want[i].log_probabilities.size(); ++t)
        EXPECT_NEAR(got[i].log_probabilities[t], want[i].log_probabilities[t], tolerance);
    }
  }
  EXPECT_NE(texts[0], texts[1]);  // or nothing was compared
  EXPECT_NE(texts[1], texts[2]);
}

TEST(SideBySide, EachSequenceHasItsOwnAdapter) {
  // Logits up to 10 in fp32, summed in another order.
  expect_as_merged({}, DType::f32, false, 1e-4);
  expect_as_merged({}, DType::f32, true, 1e-4);
  expect_as_merged({}, DType::f64, false, 1e-4);  // log-probabilities are floats
}

TEST(SideBySide, EachSequenceHasItsOwnAdapterOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  expect_as_merged({DeviceKind::cuda, 0}, DType::f32, false, 2e-3);
}

TEST(SideBySide, CompanyChangesNoBit) {
  const ModelConfig c = small_llama();
  const Adapter together = side_by_side(two_adapters(c));
  for (const bool packed : {false, true}) {
    const Loaded m(c, base_values(c), &together, {}, DType::f32, packed);
    const std::vector<Continuation> company = continue_all(m, kWishes, true);
    for (size_t i = 0; i < kWishes.size(); ++i) {
      const Continuation alone = continue_all(m, {kWishes[i]}, true).front();
      EXPECT_EQ(alone.ids, company[i].ids);
      EXPECT_EQ(alone.log_probabilities, company[i].log_probabilities) << i << " packed " << packed;
    }
  }
}

TEST(SideBySide, RefusesWhatIsNotThere) {
  const ModelConfig c = small_llama();
  const Adapter together = side_by_side(two_adapters(c));
  const Loaded m(c, base_values(c), &together, {}, DType::f32, false);
  Generator generator(*m.model, m.store, {.sequences = 2, .max_length = 40});
  EXPECT_THROW(generator.add({5}, {.adapter = 2}), Error);
  EXPECT_NO_THROW(generator.add({5}, {.adapter = 1}));
  EXPECT_THROW(side_by_side(std::vector<Adapter>(65)), Error);
}

}  // namespace
}  // namespace saturate::model
