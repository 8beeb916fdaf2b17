// SPDX-License-Identifier: Apache-2.0
// Models of many families give the same bits whether saturate panels has laid out their weights or not.
#include "train/model_weights.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/testing/temp_folder.h"
#include "model/hf_config.h"
#include "train/quantize.h"
#include "train/scorer.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
using kernels::PackedType;

class ModelWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("SATURATE_CACHE", (temp_ / "cache").c_str(), 1); }
  void TearDown() override { ::unsetenv("SATURATE_CACHE"); }
  testing::TempFolder temp_;
};

double score(const std::string& folder, const std::string& golden, const std::string& precision) {
  LoadHooks hooks;
  hooks.ids = true;
  const LoadedModel m = load_model(folder, "cpu", precision, hooks);
  const Json json = read_json_file(golden + "/golden.json");
  const auto ids = [&](const char* key) {
    std::vector<int32_t> out;
    for (size_t i = 0; i < json[key].size(); ++i)
      out.push_back(static_cast<int32_t>(*json[key][i].if_int()));
    return out;
  };
  const bool translates = m.config.kind == model::ModelKind::encoder_decoder;
  const std::vector<ScoredText> texts{
      {translates ? ids("source") : std::vector<int32_t>{}, ids("target")}};
  return score_texts(m, 512, texts).front().log_probability;
}

bool is_mapped(const std::string& folder, PackedType type) {
  return model::PanelFile::open(folder, model::read_model_config(folder), type) != nullptr;
}

TEST_F(ModelWeightsTest, KeptPanelsGiveTheBitsOfReading) {
  for (const auto& entry : fs::directory_iterator(SATURATE_SOURCE_DIR "/tests/checkpoints")) {
    if (!entry.is_directory()) continue;
    const std::string folder = entry.path().string();
    for (const auto& [precision, type] : {std::pair{"fp32", PackedType::f32},
                                          {"int8", PackedType::s8},
                                          {"bf16", PackedType::bf16}}) {
      SCOPED_TRACE(folder + " " + precision);
      ASSERT_FALSE(is_mapped(folder, type));
      const double want = score(folder, folder, precision);
      EXPECT_GT(keep_panels(folder, precision).bytes, 4096u);
      EXPECT_TRUE(is_mapped(folder, type));
      EXPECT_EQ(score(folder, folder, precision), want);
    }
    EXPECT_GT(model::forget_panels(folder), 0u);
  }
}

TEST_F(ModelWeightsTest, KeptPanelsOfAQuantizedFolder) {
  const std::string from = SATURATE_SOURCE_DIR "/tests/checkpoints/qwen2", to = temp_ / "int8";
  quantize_folder(from, to);
  for (const auto& [precision, type] :
       {std::pair{"auto", PackedType::s8}, {"fp32", PackedType::f32}}) {
    SCOPED_TRACE(precision);
    const double want = score(to, from, precision);
    keep_panels(to, precision);
    EXPECT_TRUE(is_mapped(to, type));
    EXPECT_EQ(score(to, from, precision), want);
  }
}

TEST_F(ModelWeightsTest, KeepingNamesWhatTheCpuCannotDo) {
  try {
    keep_panels(SATURATE_SOURCE_DIR "/tests/checkpoints/qwen2", "fp16");
    FAIL() << "fp16 was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
  }
}

}  // namespace
}  // namespace saturate::train
