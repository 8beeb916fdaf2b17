// SPDX-License-Identifier: Apache-2.0
#include "model/generation_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/hf_config.h"

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

TEST(GenerationConfig, KeepsHowOthersDraw) {
  const TempFolder folder;
  write_json_file(folder / "config.json", to_hf_config(model_preset("gpt2-124m")));
  write_file(folder / "generation_config.json",
             R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null,
                 "bad_words_ids": [[1]], "transformers_version": "4.51"})");
  const ModelConfig read = read_model_config(folder.path());
  EXPECT_EQ(read.sampling, R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95})");
  EXPECT_EQ(model_config_from_json(to_json(read), "here"), read);
  const Json written = to_generation_config(read, {});
  EXPECT_EQ(sampling_of(written), read.sampling);
  EXPECT_EQ(written.find("bad_words_ids"), nullptr);
  ModelConfig damaged = read;
  damaged.sampling = "[1]";
  EXPECT_THROW(validate(damaged), Error);
}

TEST(GenerationConfig, NamesWhatIsNotTakenFromThere) {
  const TempFolder folder;
  EXPECT_TRUE(unused_decoding(folder.path()).empty());
  write_file(folder / "generation_config.json",
             R"({"num_beams": 4, "no_repeat_ngram_size": 3, "repetition_penalty": 1.0,
                 "min_length": null, "encoder_no_repeat_ngram_size": 2, "diversity_penalty": "x"})");
  const std::vector<UnusedField> unused = unused_decoding(folder.path());
  ASSERT_EQ(unused.size(), 2u);
  EXPECT_EQ(unused[0].name, "no_repeat_ngram_size");
  EXPECT_EQ(unused[0].flag, "--no-repeat-ngram");
  EXPECT_EQ(unused[0].value, 3);
  EXPECT_EQ(unused[1].flag, "");
  // What this program writes itself says nothing that it does not do.
  write_json_file(folder / "generation_config.json",
                  to_generation_config(model_preset("base"), TranslateConfig()));
  EXPECT_TRUE(unused_decoding(folder.path()).empty());
}

}  // namespace
}  // namespace saturate::model
