// SPDX-License-Identifier: Apache-2.0
// Adapters: their gradients, that beside the weights and merged into them they compute the same, their files, refusals.
#include "model/adapter_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/model_folder.h"
#include "model/transformer.h"
#include "ops/cross_entropy.h"
#include "ops/gradient_check_test.h"

namespace saturate::model {
namespace {

ModelConfig small(std::string_view preset) {
  ModelConfig c = model_preset(preset);
  c.d_model = 16;
  c.heads = 4;
  c.kv_heads = preset == "llama-110m" ? 2 : 4;
  c.head_size = 4;
  c.ffn = 24;
  c.decoder_layers = 2;
  c.vocab_target = 29;
  c.max_positions = 48;
  c.pad_id = c.bos_id = c.eos_id = 2;
  if (c.kind == ModelKind::encoder_decoder) {
    c.encoder_layers = 2;
    c.vocab_source = 29;
    c.decoder_start_id = 2;
  }
  return c;
}

constexpr const char* kPresets[] = {"base", "gpt2-124m", "llama-110m"};

ModelConfig adapted(ModelConfig c, std::vector<std::string> targets = {"all-linear"},
                    double dropout = 0) {
  c.lora = lora_for({.rank = 3,
                     .alpha = 5,
                     .dropout = dropout,
                     .rank_stabilised = true,
                     .targets = std::move(targets),
                     .base = "base"},
                    hf_tensor_mapping(c));
  return c;
}

// Two sequences, an empty one, and rows outside all of them; the source of a translation is another.
struct Side {
  std::vector<int32_t> ids, positions, cu, order;
  int32_t valid;
  PackedSide side() const {
    return {.tokens = {.ids = ids.data(),
                       .positions = positions.data(),
                       .cu = cu.data(),
                       .order = order.data(),
                       .valid = &valid,
                       .rows = std::ssize(ids),
                       .sequences = 3},
            .max_length = 5};
  }
};
struct Batch {
  Side source{{3, 1, 4, 0, 9, 5, 7, 8, 6, 0, 0},
              {0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0},
              {0, 5, 9, 9},
              {3, 1, 0, 2, 5, 8, 6, 7, 4},
              9};
  Side target{{3, 1, 4, 0, 2, 5, 7, 0, 0},
              {0, 1, 2, 3, 0, 1, 2, 0, 0},
              {0, 4, 7, 7},
              {3, 1, 4, 0, 2, 5, 6},
              7};
  std::vector<int32_t> labels{1, 2, 4, 0, 3, 6, 7, -1, -1};

  void record(Tape& t, const Transformer& m, double* totals) const {
    const PackedSide from = source.side(), to = target.side();
    const bool translates = m.config().kind == ModelKind::encoder_decoder;
    const Value memory = translates ? m.encode(t, from) : Value{};
    const Value logits = m.logits(t, m.decode(t, to, memory, translates ? &from : nullptr));
    ops::cross_entropy(
        t, logits, {.labels = labels.data(), .vocab = m.config().vocab_target, .totals = totals});
  }
};

double loss_of(const ModelConfig& config, ParameterStore& store, Transformer& model) {
  const Batch batch;
  double totals[4] = {};
  model.make_tables(store);
  Tape tape(store, TapeMode::inference, nullptr);
  batch.record(tape, model, totals);
  std::vector<char> arena(tape.plan() + 256);
  tape.run({}, arena.data(), false);
  EXPECT_GT(totals[0], 0) << config.d_model;
  return totals[0];
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Adapter, GradientsAreThoseOfTheLossAndOfAdaptersAlone) {
  const Batch batch;
  for (const auto& [preset, quantized] : {std::pair{kPresets[0], false},
                                          {kPresets[1], false},
                                          {kPresets[2], false},
                                          {kPresets[0], true},
                                          {kPresets[1], true},
                                          {kPresets[2], true}}) {
    ModelConfig config = adapted(small(preset), {"all-linear"}, 0.2);
    config.lora.quantized_base = quantized;
    config.dropout = config.attention_dropout = 0.1f;
    std::optional<Transformer> model;
    int64_t base = 0, adapters = 0;
    const GradientCase test{
        .declare =
            [&](ParameterStore& store) {
              model.emplace(config, store);
              model->make_tables(store);
              for (const ParameterSpec& p : store.specs()) ++(p.frozen ? base : adapters);
            },
        .record = [&](Tape& t, double* totals) { batch.record(t, *model, totals); }};
    const GradientReport r = check_gradients(test, 2);
    EXPECT_LT(r.worst, 1e-6) << r.where << ", " << preset;
    EXPECT_EQ(base, std::ssize(model_parameters(config)));
    EXPECT_GT(adapters, 10);
    EXPECT_GT(r.checked, adapters);
  }
}

// Where the base is held in 4 bits, no product reads the weights that were given but those that the codes
// stand for; and nothing else differs.
TEST(Adapter, ABaseInFourBitsIsTheModelOfItsCodes) {
  const Device cpu;
  const Stream stream(cpu);
  const Batch batch;
  for (const char* preset : kPresets) {
    ModelConfig config = adapted(small(preset), {preset == kPresets[1] ? "c_attn" : "q_proj"}, 0.2);
    config.dropout = config.attention_dropout = 0.1f;
    ModelConfig codes = config;
    codes.lora.quantized_base = true;
    ParameterStore of_codes(cpu, DType::f32), rounded(cpu, DType::f32);
    Transformer in_codes(codes, of_codes), in_full(config, rounded);
    std::vector<std::vector<float>> gradients;
    std::vector<double> losses;
    size_t bytes[2] = {};
    for (ParameterStore* s : {&of_codes, &rounded}) {
      const bool full = s == &rounded;
      Transformer& m = full ? in_full : in_codes;
      s->allocate(ParameterStore::Purpose::training);
      m.make_tables(*s);
      s->initialise(stream, 3);
      for (size_t i = 0; i < s->specs().size(); ++i) {
        const ParameterId id{static_cast<int32_t>(i)};
        const ParameterSpec& p = s->spec(id);
        EXPECT_EQ(p.storage == Storage::nf4, !full && p.frozen && p.multiplied) << p.name;
        std::vector<float> values(static_cast<size_t>(p.size()));
        if (full) {
          of_codes.get(stream, of_codes.find(p.name), values);
        } else if (p.frozen) {
          continue;
        } else {
          for (size_t e = 0; e < values.size(); ++e)
            values[e] = std::sin(static_cast<float>(7 * e + 11 * i));
        }
        s->set(stream, id, values.data());
      }
      for (const StateArray a : kStateArrays)
        bytes[full] += s->bytes(a, ParameterStore::Purpose::training);
      const uint64_t rng_state[2] = {11, 3};
      double totals[4] = {};
      Tape tape(*s, TapeMode::training, rng_state);
      batch.record(tape, m, totals);
      tape.backward();
      std::vector<char> arena(tape.plan(), '\xFF');
      tape.run({}, arena.data(), false);
      for (size_t i = 0; i < tape.operations(); ++i) {
        const Tape::Operation& o = tape.operation(i);
        if (std::string_view(o.name) != "dequantize") continue;
        int readers = 0;  // one: weights live for one product
        for (size_t k = 0; k < tape.operations(); ++k)
          readers += static_cast<int>(std::ranges::count(tape.operation(k).reads, o.writes[0]));
        EXPECT_EQ(readers, 1);
        EXPECT_FALSE(full);
      }
      losses.push_back(totals[0]);
      const float* const g = s->gradients().as<float>();
      gradients.emplace_back(g, g + s->padded_count());
    }
    EXPECT_GT(losses[0], 0);
    EXPECT_EQ(losses[0], losses[1]) << preset;
    EXPECT_TRUE(gradients[0] == gradients[1]) << preset;
    EXPECT_LT(bytes[0], bytes[1]);
  }
}

// Through the files: weights of a base and of its adapters, saved, read, and merged.
TEST(Adapter, BesideTheWeightsAndMergedItComputesTheSame) {
  const Device cpu;
  const Stream stream(cpu);
  for (const char* preset : kPresets) {
    for (const std::vector<std::string>& targets :
         {std::vector<std::string>{"all-linear"},
          preset == kPresets[1]
              ? std::vector<std::string>{"attn.c_proj"}
              : std::vector<std::string>{"k_proj", "layers.1.self_attn.v_proj"}}) {
      const ModelConfig plain = small(preset);
      const testing::TempFolder folder;
      const std::string base = folder.path() + "/base", mine = folder.path() + "/adapter";
      std::filesystem::create_directory(base);
      std::filesystem::create_directory(mine);
      ModelConfig config = adapted(plain, targets);
      config.lora.base = base;
      ParameterStore bare(cpu, DType::f32), beside(cpu, DType::f32), merged(cpu, DType::f32),
          again(cpu, DType::f32);
      Transformer of_bare(plain, bare), of_beside(config, beside), of_merged(plain, merged),
          of_again(config, again);
      for (ParameterStore* s : {&bare, &beside, &merged, &again})
        s->allocate(ParameterStore::Purpose::inference);
      bare.initialise(stream, 3);
      save_model(base, plain, {}, bare);
      beside.initialise(stream, 3);
      for (size_t i = 0; i < beside.specs().size(); ++i) {
        const ParameterId id{static_cast<int32_t>(i)};
        const ParameterSpec& p = beside.spec(id);
        std::vector<float> values(static_cast<size_t>(p.size()));
        if (p.frozen) {
          bare.get(stream, bare.find(p.name), values);
        } else {
          for (size_t e = 0; e < values.size(); ++e)
            values[e] = std::sin(static_cast<float>(7 * e + 11 * i));
        }
        beside.set(stream, id, values.data());
      }
      beside.refresh_compute(stream);
      const double with = loss_of(config, beside, of_beside);
      const double without = loss_of(plain, bare, of_bare);
      EXPECT_GT(std::abs(with - without), 0.01) << preset;
      save_model(mine, config, {}, beside);
      EXPECT_TRUE(is_adapter_folder(mine));
      const Adapter adapter = read_adapter(mine, base, plain);
      load_weights(base, plain, merged, &adapter);
      EXPECT_NEAR(loss_of(plain, merged, of_merged), with, 1e-5 * with) << preset;
      load_weights(mine, config, again);
      EXPECT_EQ(loss_of(config, again, of_again), with) << preset;
      const std::vector<float> masters = read_weights(base, plain, &adapter);
      EXPECT_EQ(masters.size(), static_cast<size_t>(merged.padded_count()));
      EXPECT_TRUE(std::equal(masters.begin(), masters.end(), merged.masters().as<float>()));
    }
  }
}

// What PEFT injects for these targets: modules by the end of their names, and nothing else.
TEST(Adapter, TargetsAreModulesOfTransformers) {
  const auto modules = [](const char* preset, std::vector<std::string> targets) {
    std::vector<std::string> names;
    for (const LoraLinear& l : adapted(small(preset), std::move(targets)).lora.linears)
      for (const LoraPart& p : l.parts) names.push_back(p.module);
    return names;
  };
  EXPECT_EQ(
      modules("gpt2-124m", {"c_attn"}),
      (std::vector<std::string>{"transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"}));
  EXPECT_EQ(modules("base", {"decoder.layers.1.fc1"}),
            (std::vector<std::string>{"model.decoder.layers.1.fc1"}));
  EXPECT_EQ(modules("llama-110m", {"all-linear"}).size(), 2u * 7);
  EXPECT_EQ(modules("base", {"all-linear"}).size(), 2u * 6 + 2u * 10);
  const Lora llama = adapted(small("llama-110m"), {"q_proj", "v_proj"}).lora;
  ASSERT_EQ(llama.linears.size(), 2u);
  EXPECT_EQ(llama.linears[0].projection, "decoder.layers.0.self.qkv");
  EXPECT_EQ(llama.linears[0].parts[0].first_row, 0);
  EXPECT_EQ(llama.linears[0].parts[1].first_row, 16 + 8);  // behind q and k
  EXPECT_FLOAT_EQ(llama.linears[0].parts[0].scale, 5 / std::sqrt(3.0f));
  const auto error = [&](const char* preset, const char* target) {
    return error_of([&] { modules(preset, {target}); });
  };
  EXPECT_NE(error("base", "q_prj").find("did you mean 'q_proj'"), std::string::npos);
  EXPECT_NE(error("llama-110m", "embed_tokens").find("which no adapter can lie beside"),
            std::string::npos);
  EXPECT_NE(error("base", "roj").find("no module of this model is called so"), std::string::npos);
}

Json config_with(std::initializer_list<Json::Member> more) {
  Json json{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}, {"target_modules", nullptr}};
  for (const Json::Member& m : more) json[m.key] = m.value;
  return json;
}

TEST(Adapter, ReadsWhatPeftSaysOfRanksAndScales) {
  const AdapterConfig c =
      parse_adapter_config(config_with({{"rank_pattern", Json{{"fc1", 5}, {"^model.q_proj", 7}}},
                                        {"alpha_pattern", Json{{"decoder.layers.1.fc1", 10.5}}},
                                        {"use_dora", false},
                                        {"some_new_field", nullptr},
                                        {"loftq_config", Json::Object{}}}),
                           "file");
  EXPECT_EQ(c.rank_of("model.decoder.layers.0.fc1"), 5);
  EXPECT_EQ(c.rank_of("model.decoder.layers.0.xfc1"), 2);
  EXPECT_EQ(c.rank_of("model.q_proj"), 7);
  EXPECT_EQ(c.rank_of("model.layers.q_proj"), 2);
  EXPECT_FLOAT_EQ(c.scale_of("model.decoder.layers.1.fc1", 5), 2.1f);
  EXPECT_FLOAT_EQ(c.scale_of("model.decoder.layers.0.fc1", 2), 3);
}

TEST(Adapter, RefusesWhatItIsNot) {
  const auto refused = [](std::initializer_list<Json::Member> more) {
    return error_of([&] { parse_adapter_config(config_with(more), "file"); });
  };
  EXPECT_EQ(refused({}), "");
  for (const char* field : {"use_dora", "lora_bias", "use_qalora", "some_new_field"})
    EXPECT_NE(refused({{field, true}}).find(std::string("file: ") + field), std::string::npos);
  EXPECT_NE(refused({{"use_dora", true}}).find("magnitudes"), std::string::npos);
  EXPECT_NE(refused({{"modules_to_save", Json::Array{"lm_head"}}}).find("whole modules"),
            std::string::npos);
  EXPECT_NE(refused({{"peft_type", "IA3"}}).find("LORA alone"), std::string::npos);
  EXPECT_NE(refused({{"bias", "all"}}).find("biases of the base"), std::string::npos);
  EXPECT_NE(refused({{"init_lora_weights", "pissa"}}).find("changes the base"), std::string::npos);
  EXPECT_EQ(refused({{"init_lora_weights", "gaussian"}}), "");
  EXPECT_NE(refused({{"rank_pattern", Json{{"fc[12]", 3}}}}).find("regular expression"),
            std::string::npos);
  EXPECT_NE(refused({{"r", 0}}).find("no rank"), std::string::npos);
  EXPECT_NE(refused({{"lora_alpha", 1e300}}).find("no usual factor"), std::string::npos);
}

// Tensors of one module, changed one at a time.
TEST(Adapter, RefusesTensorsThatDoNotFit) {
  const ModelConfig model = small("llama-110m");
  const std::vector<TensorMapping> mapping = hf_tensor_mapping(model);
  const std::string module = "base_model.model.model.layers.0.self_attn.k_proj.";
  std::vector<float> values(32, 0.5f);
  struct File {
    std::string a = "lora_A.weight", b = "lora_B.weight";
    std::vector<int64_t> a_shape{2, 16}, b_shape{8, 2};
  };
  const auto read = [&](const File& f) {
    std::vector<TensorView> views;
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
      if (name.empty()) return;
      views.push_back({module + name, "F32", shape, reinterpret_cast<std::byte*>(values.data()),
                       static_cast<size_t>(shape[0] * shape[1]) * sizeof(float)});
    };
    add(f.a, f.a_shape), add(f.b, f.b_shape);
    return error_of(
        [&] { parse_adapter(parse_adapter_config(config_with({}), "c"), views, mapping, "file"); });
  };
  EXPECT_EQ(read({}), "");
  EXPECT_NE(read({.b = ""}).find("has no partner"), std::string::npos);
  EXPECT_NE(read({.a_shape = {1, 16}}).find("is (1, 16)"), std::string::npos);
  EXPECT_NE(read({.b_shape = {16, 2}}).find("ask for (8, 2)"), std::string::npos);
  EXPECT_NE(read({.a = "lora_magnitude_vector"}).find("no partner"), std::string::npos);
  EXPECT_NE(read({.a = "", .b = ""}).find("adapts nothing"), std::string::npos);
  EXPECT_NE(read({.a = "lora_embedding_A", .b = ""}).find("has no place"), std::string::npos);
  values[3] = NAN;
  EXPECT_NE(read({}).find("must be finite"), std::string::npos);
}

}  // namespace
}  // namespace saturate::model
