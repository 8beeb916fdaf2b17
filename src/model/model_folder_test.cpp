// SPDX-License-Identifier: Apache-2.0
#include "model/model_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/testing/temp_folder.h"
#include "model/transformer.h"

namespace saturate::model {
namespace {

ModelConfig small(std::string_view preset) {
  ModelConfig c = model_preset(preset);
  c.d_model = 8;
  c.ffn = 16;
  c.heads = c.kv_heads = 2;
  c.head_size = 4;
  c.decoder_layers = 2;
  c.vocab_target = 70;
  c.pad_id = c.bos_id = 0;
  c.eos_id = 1;
  if (c.kind == ModelKind::encoder_decoder) {
    c.encoder_layers = 1;
    c.vocab_source = 70;
    c.decoder_start_id = 0;
  }
  return c;
}

TEST(ModelFolder, RestoresEveryParameter) {
  const Device cpu;
  const Stream stream(cpu);
  for (const char* preset : {"base", "gpt2-124m", "llama-110m"}) {
    const ModelConfig config = small(preset);
    ParameterStore saved(cpu, DType::f32), loaded(cpu, DType::f32);
    const Transformer first(config, saved), second(config, loaded);
    saved.allocate(ParameterStore::Purpose::inference);
    saved.initialise(stream, 1);
    loaded.allocate(ParameterStore::Purpose::inference);
    loaded.initialise(stream, 2);
    const testing::TempFolder folder;
    save_model(folder.path(), config, {}, saved);
    load_weights(folder.path(), config, loaded);
    for (const ParameterShape& p : model_parameters(config)) {
      const ParameterId id = saved.find(p.name);
      ASSERT_GE(id.index, 0) << p.name;
      ASSERT_GE(saved.spec(id).size(), p.elements()) << p.name;
      EXPECT_EQ(saved.spec(id).cols, p.cols) << p.name;
      std::vector<float> a(static_cast<size_t>(saved.spec(id).size())), b(a.size());
      saved.get(stream, id, a);
      loaded.get(stream, id, b);
      const auto used = static_cast<ptrdiff_t>(p.elements());
      EXPECT_TRUE(std::equal(a.begin(), a.begin() + used, b.begin())) << p.name;
      EXPECT_TRUE(std::all_of(b.begin() + used, b.end(), [](float v) { return v == 0.0f; }))
          << p.name;
    }
    EXPECT_EQ(model_parameters(config).size(), saved.specs().size()) << preset;
  }
}

// Only a translation model that starts from the padding symbol has such a row.
TEST(ModelFolder, TheRowThatStartsTheDecoderIsZero) {
  const Device cpu;
  const Stream stream(cpu);
  ModelConfig separate = small("base");
  separate.shared_embeddings = false;
  ModelConfig elsewhere = small("base");
  elsewhere.decoder_start_id = 2;
  struct Case {
    ModelConfig config;
    int64_t row;
  };
  for (const Case& c : {Case{small("base"), 0}, Case{separate, 0}, Case{elsewhere, -1},
                        Case{small("gpt2-124m"), -1}}) {
    ParameterStore store(cpu, DType::f32);
    const Transformer transformer(c.config, store);
    store.allocate(ParameterStore::Purpose::inference);
    store.initialise(stream, 1);
    const ParameterId table = store.find(target_embedding_name(c.config));
    EXPECT_EQ(store.spec(table).zero_row, c.row);
    const auto* values = static_cast<const float*>(store.master(table));
    const bool zero =
        std::all_of(values, values + c.config.d_model, [](float v) { return v == 0; });
    EXPECT_EQ(zero, c.row == 0);
    const auto others = std::count_if(store.specs().begin(), store.specs().end(),
                                      [](const ParameterSpec& p) { return p.zero_row >= 0; });
    EXPECT_EQ(others, c.row == 0 ? 1 : 0);
  }
}

TEST(ModelFolder, WarnsOfAMarianModelThatStartsFromAnotherRow) {
  const Device cpu;
  const Stream stream(cpu);
  const ModelConfig config = small("base");
  ParameterStore store(cpu, DType::f32);
  const Transformer transformer(config, store);
  store.allocate(ParameterStore::Purpose::inference);
  store.initialise(stream, 1);
  const testing::TempFolder folder;
  const auto messages = [&] {
    ::testing::internal::CaptureStderr();
    save_model(folder.path(), config, {}, store);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(messages(), "");
  static_cast<float*>(store.master(store.find("shared.weight")))[3] = 0.5f;
  EXPECT_NE(messages().find("pad row is not zero"), std::string::npos);
  EXPECT_EQ(messages(), "") << "told once";
}

}  // namespace
}  // namespace saturate::model
