// SPDX-License-Identifier: Apache-2.0
#include "train/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/testing/temp_folder.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "model/model_folder.h"
#include "model/safetensors.h"
#include "model/transformer.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

model::ModelConfig small(std::string_view preset) {
  model::ModelConfig c = model::model_preset(preset);
  c.d_model = 12;
  c.ffn = 20;
  c.heads = c.kv_heads = 2;
  c.head_size = 6;
  c.decoder_layers = 2;
  c.vocab_target = 70;
  c.pad_id = c.bos_id = 0;
  c.eos_id = 1;
  if (c.kind == model::ModelKind::encoder_decoder) {
    c.encoder_layers = 1;
    c.vocab_source = 70;
    c.decoder_start_id = 0;
  }
  return c;
}

struct Folders {
  testing::TempFolder root;
  std::string from() const { return root.path() + "/from"; }
  std::string to() const { return root.path() + "/to"; }
};

// A folder of random weights, as the store has them.
void save(const Folders& f, const model::ModelConfig& config, ParameterStore& store) {
  const Stream stream(Device{});
  store.allocate(ParameterStore::Purpose::inference);
  store.initialise(stream, 1);
  fs::create_directories(f.from());
  model::save_model(f.from(), config, {}, store);
  std::ofstream(f.from() + "/vocab.json") << "{}";
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// gpt2: its files hold matrices transposed.
TEST(Quantize, MatricesAreWithinHalfAStepAndPackToTheSameBytes) {
  for (const char* preset : {"base", "gpt2-124m", "llama-110m"}) {
    SCOPED_TRACE(preset);
    const Folders f;
    const model::ModelConfig config = small(preset);
    ParameterStore store({}, DType::f32), loaded({}, DType::f32);
    const model::Transformer first(config, store), second(config, loaded);
    save(f, config, store);
    EXPECT_FALSE(is_quantized(f.from()));
    const QuantizedFolder made = quantize_folder(f.from(), f.to());
    EXPECT_TRUE(is_quantized(f.to()));
    EXPECT_TRUE(fs::exists(f.to() + "/vocab.json"));
    EXPECT_GT(made.bytes_before, made.bytes_after);  // of so small a model most are names
    EXPECT_GT(made.matrices, 5);
    uint64_t matrices = 0, others = 0, scales = 0;
    const model::SafetensorsReader file(f.to());
    for (const model::TensorView& t : file.tensors())
      (t.dtype == "I8" ? matrices : others) += t.bytes;
    for (const ParameterSpec& p : store.specs()) scales += p.rows > 1 && !p.wide ? 1 : 0;
    EXPECT_EQ(made.matrix_bytes, matrices);
    EXPECT_GE(made.scale_bytes, scales * sizeof(float)) << "one for each output at least";
    EXPECT_GT(made.kept_bytes, 0U);
    EXPECT_LT(made.matrix_bytes + made.scale_bytes + made.kept_bytes, made.bytes_after);
    loaded.allocate(ParameterStore::Purpose::inference);
    model::load_weights(f.to(), config, loaded);
    size_t rounded = 0;
    for (const ParameterSpec& p : store.specs()) {
      const auto* want = static_cast<const float*>(store.master(store.find(p.name)));
      const auto* got = static_cast<const float*>(loaded.master(loaded.find(p.name)));
      const bool matrix = p.rows > 1 && !p.wide;
      const int64_t rows = p.rows - p.padding_rows;
      for (int64_t r = 0; r < rows; ++r) {
        float most = 0;
        for (int64_t c = 0; c < p.cols; ++c) most = std::max(most, std::abs(want[r * p.cols + c]));
        for (int64_t c = 0; c < p.cols; ++c) {
          const float a = want[r * p.cols + c], b = got[r * p.cols + c];
          if (matrix) {
            ASSERT_LE(std::abs(a - b), most / 127 * 0.50001f) << p.name;
          } else {
            ASSERT_EQ(a, b) << p.name;
          }
        }
      }
      if (!matrix) continue;
      ++rounded;
      using kernels::PackedType;
      const kernels::PackedWeights x(PackedType::s8, want, rows, p.cols),
          y(PackedType::s8, got, rows, p.cols);
      const int64_t bytes = (rows + 15) / 16 * ((p.cols + 3) / 4) * 64;
      EXPECT_EQ(std::memcmp(x.view().panels, y.view().panels, static_cast<size_t>(bytes)), 0)
          << p.name;
    }
    EXPECT_GT(rounded, 5u);
  }
}

TEST(Quantize, RefusesWhatItCannotDo) {
  const Folders f;
  const model::ModelConfig config = small("base");
  ParameterStore store({}, DType::f32);
  const model::Transformer model(config, store);
  save(f, config, store);
  fs::create_directories(f.to());
  EXPECT_NE(message_of([&] { quantize_folder(f.from(), f.to()); }).find("is not there yet"),
            std::string::npos);
  fs::remove(f.to());
  quantize_folder(f.from(), f.to());
  EXPECT_NE(message_of([&] { quantize_folder(f.to(), f.to() + "2"); }).find("quantized already"),
            std::string::npos);
  Json json = read_json_file(f.from() + "/config.json");
  json.add("quantization_config", Json({{"quant_method", "gptq"}}));
  write_json_file(f.from() + "/config.json", json);
  EXPECT_NE(message_of([&] { quantize_folder(f.from(), f.to() + "3"); }).find("another program"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(f.to() + "2") || fs::exists(f.to() + "3"));
}

TEST(Quantize, ScalesOfAnotherShapeAreNamed) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/w.safetensors";
  {
    model::SafetensorsWriter w(path, {{"w", "I8", {2, 3}}, {"w_scale", "F32", {3, 1}}});
    const std::vector<int8_t> values(6, 1);
    w.write(std::as_bytes(std::span(values)));
    w.write(std::vector<float>(3, 1.0f));
    w.commit();
  }
  const std::string message = message_of([&] { model::SafetensorsReader reader(path); });
  EXPECT_NE(message.find("\"w_scale\" is (3, 1)"), std::string::npos) << message;
}

}  // namespace
}  // namespace saturate::train
