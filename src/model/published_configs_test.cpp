// SPDX-License-Identifier: Apache-2.0
// What published models say in their config.json (tests/checkpoints/published_configs.json: the fields,
// and how many weights the model has by its publisher), read to those numbers of weights. That the
// same switches compute what transformers computes is bench/peers/published_configs.py.
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"

namespace saturate::model {
namespace {

TEST(PublishedConfigs, AreReadToTheSizesPublished) {
  const std::string path = SATURATE_SOURCE_DIR "/tests/checkpoints/published_configs.json";
  const Json all = read_json_file(path);
  ASSERT_GE(all.size(), 33u);
  for (const Json& one : *all.if_array()) {
    const std::string& name = *one["name"].if_string();
    SCOPED_TRACE(name);
    const ModelConfig c = from_hf_config(one["config"], name);
    ASSERT_FALSE(hf_refusal(c)) << *hf_refusal(c);
    int64_t weights = 0;
    for (const TensorMapping& m : hf_tensor_mapping(c)) {
      int64_t elements = m.parameter.empty() ? 0 : 1;
      for (const int64_t size : m.hf_shape) elements *= size;
      weights += elements;
    }
    EXPECT_EQ(weights, *one["parameters"].if_int());
    // What is written of it is read as the same model.
    EXPECT_EQ(from_hf_config(to_hf_config(c), name), c) << to_json(c).dump();
  }
}

}  // namespace
}  // namespace saturate::model
