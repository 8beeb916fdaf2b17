// SPDX-License-Identifier: Apache-2.0
#include "train/skewed_routing.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "train/step_timing.h"

namespace saturate::train {
namespace {

RunConfig small(const char* experts) {
  RunConfig config;
  for (const char* setting :
       {"model.preset=gpt2-124m", "model.d_model=128", "model.heads=2", "model.ffn=64",
        "model.decoder_layers=1", "data.vocab_size=200", "batch.target_tokens=256",
        "train.device=cpu", "train.precision=fp32", "optimizer.lr=1e-9"})
    set_key(config, setting);
  set_key(config, experts);
  return config;
}

// Two of eight experts a token. By Zipf's law the first is chosen by nearly every token with the
// exponent 3, and by about two thirds with 1; evenly each has an eighth of the choices.
TEST(SkewedRouting, PrefersTheFirstExpertAsTheLawSays) {
  const RunConfig config = small("model.experts=8");
  const auto largest = [&](double skew) {
    return time_step(config, {.length = 32, .repeats = 1, .skew = skew}).largest_share;
  };
  const double even = largest(0), zipf = largest(1), steep = largest(3);
  EXPECT_LT(even, 0.25);
  EXPECT_GT(zipf, 0.26);
  EXPECT_LT(zipf, 0.42);
  EXPECT_GT(steep, 0.45);
  EXPECT_LE(steep, 0.5);
}

TEST(SkewedRouting, IsRefusedWithoutExperts) {
  EXPECT_THROW(time_step(small("model.experts=0"), {.length = 32, .repeats = 1, .skew = 1}), Error);
}

}  // namespace
}  // namespace saturate::train
