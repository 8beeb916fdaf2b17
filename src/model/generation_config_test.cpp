// SPDX-License-Identifier: Apache-2.0
#include "model/generation_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate::model {
namespace {

using testing::TempFolder;
using testing::write_file;

TEST(GenerationConfig, CarriesHowTheRunTranslates) {
  const TranslateConfig given{.beam = 7,
                              .length_penalty = 0.6,
                              .max_length_factor = 1.5,
                              .max_length_offset = 3,
                              .batch_tokens = 512};
  const TempFolder folder;
  const Json json = to_generation_config(model_preset("base"), given);
  EXPECT_EQ(*json.find("num_beams")->if_int(), 7);
  write_json_file(folder / "generation_config.json", json);
  EXPECT_TRUE(read_translate_config(folder.path()) == given);
  EXPECT_EQ(to_generation_config(model_preset("gpt2-124m"), given).find("num_beams"), nullptr);
}

TEST(GenerationConfig, LeavesTheDefaultsWhereNothingIsSaid) {
  const TempFolder folder;
  EXPECT_TRUE(read_translate_config(folder.path()) == TranslateConfig());
  const std::string path = folder / "generation_config.json";
  write_file(path, R"({"num_beams": 6, "length_penalty": null, "transformers_version": "4"})");
  EXPECT_TRUE(read_translate_config(folder.path()) == TranslateConfig{.beam = 6});
  write_file(path, R"({"num_beams": [4], "length_penalty": 0.5, "saturate": 3})");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(read_translate_config(folder.path()) == TranslateConfig{.length_penalty = 0.5});
  write_file(path, R"({"num_beams": 1000, "length_penalty": -1})");
  EXPECT_TRUE(read_translate_config(folder.path()) == TranslateConfig());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("num_beams must be a whole number from 1 to 64, got 1000"), said.npos)
      << said;
  EXPECT_NE(said.find("length_penalty must be a number from 0 to 10, got -1"), said.npos) << said;
  write_file(path, "[]");
  EXPECT_THROW(read_translate_config(folder.path()), Error);
}

}  // namespace
}  // namespace saturate::model
