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
    save_model(folder.path(), config, {}, saved, saved.masters());
    load_weights(folder.path(), config, loaded);
    for (const ParameterShape& p : model_parameters(config)) {
      const ParameterId id = saved.find(p.name);
      ASSERT_GE(id.index, 0) << p.name;
      ASSERT_GE(saved.spec(id).size(), p.elements()) << p.name;
      EXPECT_EQ(saved.spec(id).cols, p.cols) << p.name;
      std::vector<float> a(static_cast<size_t>(saved.spec(id).size())), b(a.size());
      saved.get(stream, id, a.data());
      loaded.get(stream, id, b.data());
      const auto used = static_cast<ptrdiff_t>(p.elements());
      EXPECT_TRUE(std::equal(a.begin(), a.begin() + used, b.begin())) << p.name;
      EXPECT_TRUE(std::all_of(b.begin() + used, b.end(), [](float v) { return v == 0.0f; }))
          << p.name;
    }
    EXPECT_EQ(model_parameters(config).size(), saved.specs().size()) << preset;
  }
}

}  // namespace
}  // namespace saturate::model
