// SPDX-License-Identifier: Apache-2.0
#include "model/hf_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/half.h"
#include "base/json.h"
#include "base/testing/temp_folder.h"
#include "model/hf_config.h"
#include "model/hf_tokenizer.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

using testing::TempFolder;
using Values = std::map<std::string, std::vector<float>>;

ModelConfig small(std::string_view preset) {
  ModelConfig c = model_preset(preset);
  c.d_model = 12;
  c.ffn = 10;
  c.heads = c.kv_heads = 3;
  c.head_size = 4;
  c.decoder_layers = 2;
  c.max_positions = 7;
  c.vocab_target = 11;
  c.bos_id = c.pad_id = 0;
  c.eos_id = 1;
  if (c.kind == ModelKind::encoder_decoder) {
    c.encoder_layers = 2;
    c.vocab_source = 11;
    c.decoder_start_id = 0;
  }
  return c;
}

// Every element has a value of its own, so that any exchange shows.
Values numbered(const ModelConfig& config) {
  Values values;
  float next = 1;
  for (const ParameterShape& p : model_parameters(config)) {
    std::vector<float>& v = values[p.name];
    for (int64_t i = 0; i < p.elements(); ++i) v.push_back(next++);
  }
  return values;
}

void save(const std::string& folder, const ModelConfig& config, const Values& values) {
  save_hf(folder, config, {},
          [&values](const std::string& name) -> std::span<const float> { return values.at(name); });
}

Values load(const std::string& folder, const ModelConfig& config) {
  Values values;
  load_hf_weights(folder, config, [&values](const std::string& name, std::span<const float> v) {
    EXPECT_FALSE(values.contains(name)) << name;
    values[name].assign(v.begin(), v.end());
  });
  return values;
}

struct Variant {
  const char* name;
  ModelConfig config;
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {
      {"marian", small("base")}, {"gpt2", small("gpt2-124m")}, {"llama", small("llama-110m")}};
  ModelConfig separate = small("base");
  separate.shared_embeddings = separate.tied_output = false;
  separate.vocab_source = 13;
  all.push_back({"marian_separate", separate});
  ModelConfig pre = small("base");
  pre.norm_position = NormPosition::pre;
  pre.final_norm = true;
  all.push_back({"pegasus", pre});
  ModelConfig grouped = small("llama-110m");
  grouped.kv_heads = 1;
  grouped.head_size = 6;
  grouped.tied_output = false;
  all.push_back({"llama_grouped", grouped});
  ModelConfig mixtral = small("llama-110m");
  mixtral.experts = 4;
  mixtral.kv_heads = 1;
  mixtral.router_z_loss = 0.004f;
  all.push_back({"mixtral", mixtral});
  ModelConfig biased = small("base");
  biased.output_bias = true;
  all.push_back({"marian_bias", biased});
  ModelConfig m2m100 = pre;
  m2m100.sinusoid_spacing = SinusoidSpacing::tensor2tensor;
  m2m100.first_position = 2;
  all.push_back({"m2m100", m2m100});
  ModelConfig bart = biased;
  bart.positions = PositionKind::learned;
  bart.embedding_norm = true;
  all.push_back({"bart", bart});
  ModelConfig mbart = bart;
  mbart.norm_position = NormPosition::pre;
  mbart.final_norm = true;
  all.push_back({"mbart", mbart});
  ModelConfig t5 = small("base");
  t5.d_model = 16;  // whose root is exact in floats
  t5.norm = kernels::NormKind::rms_norm;
  t5.norm_position = NormPosition::pre;
  t5.final_norm = t5.scaled_final_norm = true;
  t5.positions = PositionKind::relative;
  t5.relative_buckets = 8;
  t5.biases = t5.scale_embedding = false;
  t5.attention_scale = 1.0f;
  t5.attention_dropout = t5.activation_dropout = t5.dropout;
  all.push_back({"t5", t5});
  t5.tied_output = t5.scaled_final_norm = false;
  t5.gated = true;
  t5.activation = kernels::ActivationKind::gelu_tanh;
  all.push_back({"t5_gated", t5});
  ModelConfig llama3 = small("llama-110m");
  llama3.rotary_factor = 8;
  llama3.rotary_original = 64;
  llama3.more_eos_ids = {3, 5};
  all.push_back({"llama3", llama3});
  ModelConfig mistral = small("llama-110m");
  mistral.window = 4;
  all.push_back({"mistral", mistral});
  ModelConfig qwen2 = small("llama-110m");
  qwen2.qkv_biases = true;
  all.push_back({"qwen2", qwen2});
  ModelConfig qwen3 = small("llama-110m");
  qwen3.qk_norm = true;
  all.push_back({"qwen3", qwen3});
  ModelConfig gemma2 = small("llama-110m");
  gemma2.norm_position = NormPosition::sandwich;
  gemma2.scale_embedding = true;
  gemma2.activation = kernels::ActivationKind::gelu_tanh;
  gemma2.attention_scale = 0.25f;
  gemma2.attention_soft_cap = 50;
  gemma2.output_soft_cap = 30;
  gemma2.window = 3;
  gemma2.full_attention_every = 2;
  gemma2.tied_output = true;
  all.push_back({"gemma2", gemma2});
  ModelConfig own = small("base");
  own.norm_position = NormPosition::pre;
  own.final_norm = own.gated = true;
  own.positions = PositionKind::learned;
  all.push_back({"own", own});
  return all;
}

TEST(HfWeights, RoundTripOfEveryForm) {
  for (const auto& [name, config] : variants()) {
    const TempFolder folder;
    const Values values = numbered(config);
    save(folder.path(), config, values);
    EXPECT_TRUE(read_model_config(folder.path()) == config)
        << name << to_json(read_model_config(folder.path())).dump() << to_json(config).dump();
    EXPECT_EQ(load(folder.path(), config), values) << name;
  }
}

TEST(HfWeights, MappingCoversEveryParameterOnce) {
  for (const auto& [name, config] : variants()) {
    std::map<std::string, int64_t> elements;
    std::set<std::string> names;
    for (const TensorMapping& m : hf_tensor_mapping(config)) {
      EXPECT_TRUE(names.insert(m.hf_name).second) << m.hf_name;
      if (m.parameter.empty()) continue;
      EXPECT_EQ(elements[m.parameter], m.first_row * m.cols) << m.hf_name;
      elements[m.parameter] += m.rows * m.cols;
    }
    for (const ParameterShape& p : model_parameters(config))
      EXPECT_EQ(elements[p.name], p.elements()) << p.name;
    EXPECT_EQ(elements.size(), model_parameters(config).size()) << name;
  }
}

TEST(HfWeights, FusedRowsGoWhereMarianReadsThem) {
  const TempFolder folder;
  const ModelConfig config = small("base");
  const Values values = numbered(config);
  save(folder.path(), config, values);
  const SafetensorsReader file(folder.path());
  std::vector<float> k(12 * 12), v(12), up(10 * 12);
  const TensorView* t = file.find("model.decoder.layers.1.encoder_attn.v_proj.weight");
  ASSERT_NE(t, nullptr);
  read_floats(*t, 0, k);
  const std::vector<float>& kv = values.at("decoder.layers.1.cross.kv.weight");
  EXPECT_EQ(k, std::vector<float>(kv.begin() + 144, kv.end()));
  read_floats(*file.find("model.encoder.layers.0.self_attn.k_proj.bias"), 0, v);
  const std::vector<float>& bias = values.at("encoder.layers.0.self.qkv.bias");
  EXPECT_EQ(v, std::vector<float>(bias.begin() + 12, bias.begin() + 24));
  read_floats(*file.find("model.decoder.layers.0.fc1.weight"), 0, up);
  EXPECT_EQ(up, values.at("decoder.layers.0.ffn.in.weight"));
  EXPECT_EQ(file.find("final_logits_bias")->shape, (std::vector<int64_t>{1, 11}));
  EXPECT_EQ(file.find("model.shared.weight")->shape, (std::vector<int64_t>{11, 12}));
}

TEST(HfWeights, ExpertsAreTensorsOfTheirOwn) {
  const TempFolder folder;
  ModelConfig config = small("llama-110m");
  config.experts = 4;
  const Values values = numbered(config);
  save(folder.path(), config, values);
  const SafetensorsReader file(folder.path());
  // Of expert 2: the gate, what it multiplies, and the way back, each 10 x 12 or 12 x 10.
  const auto expect = [&](const std::string& part, const std::vector<int64_t>& shape,
                          const std::string& parameter, int64_t place) {
    const TensorView* t = file.find("model.layers.1.block_sparse_moe." + part + ".weight");
    ASSERT_NE(t, nullptr) << part;
    EXPECT_EQ(t->shape, shape);
    std::vector<float> got(static_cast<size_t>(shape[0] * shape[1]));
    read_floats(*t, 0, got);
    const auto from =
        values.at("decoder.layers.1.experts." + parameter).begin() + place * std::ssize(got);
    EXPECT_EQ(got, std::vector<float>(from, from + std::ssize(got))) << part;
  };
  expect("gate", {4, 12}, "router.weight", 0);
  expect("experts.2.w1", {10, 12}, "in.weight", 4);
  expect("experts.2.w3", {10, 12}, "in.weight", 5);
  expect("experts.2.w2", {12, 10}, "out.weight", 2);
}

// What Pegasus computes was written under our own names before Pegasus was known here.
TEST(HfWeights, ReadsOwnNamesWhereTheFolderHasThem) {
  const TempFolder folder;
  ModelConfig config = small("base");
  config.norm_position = NormPosition::pre;
  config.final_norm = true;
  const Values values = numbered(config);
  save(folder.path(), config, values);
  EXPECT_NE(SafetensorsReader(folder.path()).find("model.decoder.layer_norm.weight"), nullptr);
  std::vector<TensorSpec> specs;
  for (const TensorMapping& m : own_tensor_mapping(config))
    specs.push_back({m.hf_name, "F32", m.hf_shape});
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const TensorSpec& s : specs) writer.write(std::span<const float>(values.at(s.name)));
  writer.commit();
  write_json_file(folder / "config.json", to_json(config));
  EXPECT_TRUE(read_model_config(folder.path()) == config);
  check_hf_weights(folder.path(), config);
  EXPECT_EQ(load(folder.path(), config), values);
}

TEST(HfWeights, Gpt2MatricesAreTransposed) {
  const TempFolder folder;
  const ModelConfig config = small("gpt2-124m");
  const Values values = numbered(config);
  save(folder.path(), config, values);
  const SafetensorsReader file(folder.path());
  const TensorView* t = file.find("transformer.h.1.attn.c_attn.weight");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->shape, (std::vector<int64_t>{12, 36}));
  std::vector<float> w(12 * 36);
  read_floats(*t, 0, w);
  EXPECT_EQ(w[2 * 36 + 5], values.at("decoder.layers.1.self.qkv.weight")[5 * 12 + 2]);
}

// Rewrites a saved file under other names, types or with other tensors.
void rewrite(const std::string& folder,
             const std::function<void(std::vector<TensorSpec>&)>& change) {
  std::vector<TensorSpec> specs;
  std::vector<std::vector<std::byte>> data;
  {
    const SafetensorsReader file(folder);
    for (const TensorView& t : file.tensors()) specs.push_back({t.name, t.dtype, t.shape});
    const size_t before = specs.size();
    change(specs);
    for (size_t i = 0; i < before; ++i)
      data.emplace_back(file.tensors()[i].data, file.tensors()[i].data + file.tensors()[i].bytes);
  }
  SafetensorsWriter writer(folder + "/model.safetensors", specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    size_t bytes = safetensors_element_bytes(specs[i].dtype);
    for (const int64_t size : specs[i].shape) bytes *= static_cast<size_t>(size);
    std::vector<std::byte> content = i < data.size() ? data[i] : std::vector<std::byte>(bytes);
    writer.write(std::span<const std::byte>(content));
  }
  writer.commit();
}

TEST(HfWeights, ReadsPublishedGpt2NamesAndBuffers) {
  const TempFolder folder;
  const ModelConfig config = small("gpt2-124m");
  const Values values = numbered(config);
  save(folder.path(), config, values);
  rewrite(folder.path(), [](std::vector<TensorSpec>& specs) {
    for (TensorSpec& t : specs) t.name = t.name.substr(std::string("transformer.").size());
    specs.push_back({"h.0.attn.bias", "U8", {1, 1, 7, 7}});
    specs.push_back({"lm_head.weight", "F32", {11, 12}});
  });
  EXPECT_EQ(load(folder.path(), config), values);
}

std::string load_error(const std::string& folder, const ModelConfig& config) {
  try {
    load_hf_weights(folder, config,
                    [](const std::string&, std::span<const float>) { ADD_FAILURE(); });
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(HfWeights, NamesTensorsThatDoNotFit) {
  const TempFolder folder;
  const ModelConfig config = small("base");
  save(folder.path(), config, numbered(config));
  ModelConfig other = config;
  other.vocab_source = other.vocab_target = 12;
  EXPECT_NE(load_error(folder.path(), other)
                .find("\"model.shared.weight\" is (11, 12), config.json asks for (12, 12)"),
            std::string::npos);
  other = config;
  other.decoder_layers = 3;
  EXPECT_NE(load_error(folder.path(), other).find("missing"), std::string::npos);
  other.decoder_layers = 1;
  EXPECT_NE(load_error(folder.path(), other).find("has no place"), std::string::npos);
  rewrite(folder.path(), [](std::vector<TensorSpec>& specs) {
    specs.push_back({"stray", "F32", {2}});
  });
  EXPECT_NE(load_error(folder.path(), config).find("\"stray\" (2) has no place"),
            std::string::npos);
}

TEST(HfWeights, ShardsIn16BitsReadBackAsRounded) {
  const ModelConfig config = small("base");
  Values values = numbered(config);
  const auto get = [&values](const std::string& name) -> std::span<const float> {
    return values.at(name);
  };
  const TempFolder folder;
  save_hf(folder.path(), config, {}, get, {.dtype = "BF16", .shard_bytes = 600});
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_LT(entry.file_size(), 600u + 4000u);  // with a header
  }
  EXPECT_GT(files, 5);
  EXPECT_EQ(*read_json_file(folder / "config.json")["torch_dtype"].if_string(), "bfloat16");
  for (auto& [name, list] : values)
    for (float& v : list) v = to_float(to_bf16(v));
  EXPECT_EQ(load(folder.path(), config), values);
  values.begin()->second.front() = 1e6f;
  const TempFolder half;
  EXPECT_THROW(save_hf(half.path(), config, {}, get, {.dtype = "F16"}), Error);
}

TEST(HfWeights, RefusesWeightsThatAreNotFinite) {
  for (const char* preset : {"base", "gpt2-124m"}) {  // the second holds transposed tensors
    const TempFolder folder;
    const ModelConfig config = small(preset);
    save(folder.path(), config, numbered(config));
    std::string file = testing::read_file(folder / "model.safetensors");
    file.replace(file.size() - 1000, 4, std::string("\0\0\x80\x7f", 4));  // infinity
    testing::write_file(folder / "model.safetensors", file);
    std::string what;
    try {
      load_hf_weights(folder.path(), config, [](const std::string&, std::span<const float>) {});
    } catch (const Error& e) {
      what = e.what();
    }
    EXPECT_NE(what.find("\" holds inf: weights must be finite"), std::string::npos) << what;
  }
}

// Marian's file has the bias always; the model has it where it is not zero.
TEST(HfWeights, FindsABiasOfTheOutputInTheWeights) {
  const TempFolder folder;
  const ModelConfig config = small("base");
  save(folder.path(), config, numbered(config));
  EXPECT_FALSE(read_model_config(folder.path()).output_bias);
  std::string file = testing::read_file(folder / "model.safetensors");
  file[file.size() - 1] = 0x3F;  // final_logits_bias is the last tensor
  testing::write_file(folder / "model.safetensors", file);
  const ModelConfig found = read_model_config(folder.path());
  EXPECT_TRUE(found.output_bias);
  EXPECT_EQ(load(folder.path(), found).at("output.bias").back(), 0.5f);
}

// As transformers, which takes what the file holds; a class without an output of its own refuses.
TEST(HfWeights, AnOutputThatIsNotTheEmbeddingIsRead) {
  ModelConfig apart = small("llama-110m");
  apart.tied_output = false;
  const TempFolder folder;
  const Values values = numbered(apart);
  save(folder.path(), apart, values);
  const std::string path = folder.path() + "/config.json";
  Json json = read_json_file(path);
  json["tie_word_embeddings"] = true;
  write_json_file(path, json);
  const ModelConfig read = read_model_config(folder.path());
  EXPECT_FALSE(read.tied_output);
  EXPECT_EQ(load(folder.path(), read), values);
  // The same numbers twice are one.
  Values same = values;
  same["output.weight"] = same["decoder.embed.weight"];
  save(folder.path(), apart, same);
  json = read_json_file(path);
  json["tie_word_embeddings"] = true;
  write_json_file(path, json);
  EXPECT_TRUE(read_model_config(folder.path()).tied_output);
}

// Gemma2Config of transformers: 50 and 30 where config.json leaves them out, none where it says null.
TEST(HfWeights, CapsOfGemma2HaveTheirUsualValues) {
  ModelConfig config = small("llama-110m");
  for (const auto& [name, variant] : variants())
    if (std::string_view(name) == "gemma2") config = variant;
  Json json = to_hf_config(config);
  Json::Object without;
  for (const auto& [key, value] : *json.if_object())
    if (!key.ends_with("softcapping")) without.push_back({key, value});
  const ModelConfig usual = from_hf_config(Json(without), "config.json");
  EXPECT_EQ(usual.attention_soft_cap, 50);
  EXPECT_EQ(usual.output_soft_cap, 30);
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] = nullptr;
  const ModelConfig none = from_hf_config(json, "config.json");
  EXPECT_EQ(none.attention_soft_cap, 0);
  EXPECT_EQ(none.output_soft_cap, 0);
}

TEST(HfTokenizer, WritesWhatMarianTokenizerReads) {
  const TempFolder folder;
  testing::write_file(folder / "joint.model", "spm");
  MarianTokenizerFiles files;
  files.source_spm = files.target_spm = folder / "joint.model";
  files.source_pieces = {"<pad>", "<unk>", "</s>", "\u2581a"};
  files.source_language = "en";
  save_marian_tokenizer(folder.path(), files);
  EXPECT_EQ(*read_json_file(folder / "vocab.json").find("\u2581a")->if_int(), 3);
  EXPECT_EQ(testing::read_file(folder / "target.spm"), "spm");
  const Json config = read_json_file(folder / "tokenizer_config.json");
  EXPECT_EQ(*config.find("source_lang")->if_string(), "en");
  EXPECT_FALSE(*config.find("separate_vocabs")->if_bool());
  EXPECT_FALSE(std::filesystem::exists(folder / "target_vocab.json"));
  files.source_pieces.pop_back();
  files.source_pieces[2] = "a";
  EXPECT_THROW(save_marian_tokenizer(folder.path(), files), Error);
}

}  // namespace
}  // namespace saturate::model
