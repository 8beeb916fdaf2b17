// SPDX-License-Identifier: Apache-2.0
#include "observe/read/operator_work.h"

#include <gtest/gtest.h>

#include <string>

namespace saturate::observe {
namespace {

struct Case {
  const char *name, *dims, *types, *values;
  double flops, bytes;
  Precision precision;
};

constexpr const char* kBf16x3 = R"(["c10::BFloat16","c10::BFloat16","c10::BFloat16"])";
constexpr const char* kFloat3 = R"(["float","float","float"])";

// By hand: operations and bytes of each.
TEST(OperatorWork, IsThatOfTheFormulas) {
  const Case cases[] = {
      {"aten::mm", "[[64, 128], [128, 32]]", kBf16x3, "", 2.0 * 64 * 128 * 32,
       2.0 * (64 * 128 + 128 * 32 + 64 * 32), Precision::f16},
      {"aten::addmm", "[[32], [64, 128], [128, 32], [], []]", kFloat3, "", 2.0 * 64 * 128 * 32,
       4.0 * (32 + 64 * 128 + 128 * 32 + 64 * 32), Precision::f32},
      {"aten::bmm", "[[8, 64, 128], [8, 128, 32]]", kFloat3, "", 2.0 * 8 * 64 * 128 * 32,
       4.0 * 8 * (64 * 128 + 128 * 32 + 64 * 32), Precision::f32},
      {"aten::linear", "[[4, 16, 128], [256, 128], [256]]", kFloat3, "", 2.0 * 64 * 128 * 256,
       4.0 * (64 * 128 + 128 * 256 + 256 + 64 * 256), Precision::f32},
      {"aten::_scaled_mm", "[[64, 128], [128, 32]]",
       R"(["c10::Float8_e4m3fn","c10::Float8_e4m3fn"])", "", 2.0 * 64 * 128 * 32,
       64 * 128 + 128 * 32 + 2.0 * 64 * 32, Precision::f8},
      // 3x3, stride 2, padding 1: 8 -> 4.
      {"aten::cudnn_convolution", "[[2, 16, 8, 8], [32, 16, 3, 3], [], [], [], [], [], [], []]",
       kFloat3, R"(["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"])",
       2.0 * 2 * 32 * 4 * 4 * 16 * 9, 4.0 * (2 * 16 * 64 + 32 * 16 * 9 + 2 * 32 * 16),
       Precision::f32},
      {"aten::convolution", "[[2, 16, 8, 8], [32, 16, 3, 3], [32], [], [], [], [], [], []]",
       kFloat3, R"(["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"])",
       2.0 * 2 * 32 * 4 * 4 * 16 * 9, 4.0 * (2 * 16 * 64 + 32 * 16 * 9 + 2 * 32 * 16),
       Precision::f32},
      {"aten::convolution_backward", "[[2, 32, 4, 4], [2, 16, 8, 8], [32, 16, 3, 3], []]", kFloat3,
       "", 2.0 * 2.0 * 2 * 32 * 4 * 4 * 16 * 9,
       4.0 * (2 * 32 * 16 + 2.0 * 32 * 16 * 9 + 2.0 * 2 * 16 * 64), Precision::f32},
      // Two products of 2 * B H T S D operations, half of them under a causal mask.
      {"aten::_scaled_dot_product_flash_attention",
       "[[2, 8, 64, 32], [2, 8, 96, 32], [2, 8, 96, 32], [], []]", kBf16x3,
       R"(["", "", "", "0.", "False", "False", ""])", 4.0 * 2 * 8 * 64 * 96 * 32,
       2.0 * 2 * 8 * 32 * (2 * 64 + 2 * 96), Precision::f16},
      {"aten::_flash_attention_forward",
       "[[2, 64, 8, 32], [2, 64, 8, 32], [2, 64, 8, 32], [], [], [], []]", kBf16x3,
       R"(["", "", "", "", "", "64", "64", "0.", "True", "False", ""])", 2.0 * 2 * 8 * 64 * 64 * 32,
       2.0 * 4 * 2 * 8 * 64 * 32, Precision::f16},
      {"aten::add", "[[64, 128], [128], []]", kFloat3, "", 64 * 128, 4.0 * (2 * 64 * 128 + 128),
       Precision::unknown},
      {"aten::add_", "[[64, 128], [64, 128], []]", kFloat3, "", 64 * 128, 4.0 * 3 * 64 * 128,
       Precision::unknown},
      {"aten::copy_", "[[64, 128], [64, 128], []]", R"(["c10::BFloat16","float",""])", "", 0,
       6.0 * 64 * 128, Precision::unknown},
      {"aten::embedding", "[[50000, 64], [4, 16]]", R"(["float","long int"])", "", 0,
       2.0 * 64 * 64 * 4, Precision::unknown},
  };
  for (const Case& c : cases) {
    const auto w = operator_work(c.name, c.dims, c.types, c.values);
    ASSERT_TRUE(w) << c.name;
    EXPECT_DOUBLE_EQ(w->flops, c.flops) << c.name;
    EXPECT_DOUBLE_EQ(w->bytes, c.bytes) << c.name;
    EXPECT_EQ(w->precision, c.precision) << c.name;
  }
  const Case& flash = cases[9];
  const auto backward = operator_work(
      "aten::_flash_attention_backward",
      "[[2, 64, 8, 32], [2, 64, 8, 32], [2, 64, 8, 32], [2, 64, 8, 32], [2, 64, 8, 32]]",
      R"(["c10::BFloat16","c10::BFloat16","c10::BFloat16","c10::BFloat16","c10::BFloat16"])",
      R"(["", "", "", "", "", "", "", "", "64", "64", "0.", "True"])");
  ASSERT_TRUE(backward);
  EXPECT_DOUBLE_EQ(backward->flops, 2.5 * flash.flops);
}

TEST(OperatorWork, WhatDoesNotFitGivesNothing) {
  const struct {
    const char *name, *dims, *types, *values;
  } cases[] = {
      {"aten::mm", "[[64, 128], [127, 32]]", kFloat3, ""},   // sizes that do not meet
      {"aten::mm", "[[64, 128]]", kFloat3, ""},              // one argument
      {"aten::mm", "[[-64, 128], [128, 32]]", kFloat3, ""},  // negative
      {"aten::mm", "{\"a\": 1}", kFloat3, ""},
      {"aten::mm", "[[64, 128], [128, 32]]", "", ""},
      {"aten::mm", "[[64, 128], [128, 32]", kFloat3, ""},                           // cut
      {"aten::cudnn_convolution", "[[2, 16, 8, 8], [32, 16, 3, 3]]", kFloat3, ""},  // no stride
      {"aten::cudnn_convolution", "[[2, 16, 8, 8], [32, 16, 3, 3]]", kFloat3,
       R"(["", "", "[1]", "[0, 0]", "[1, 1]"])"},  // stride 0
      {"aten::_flash_attention_forward", "[[2, 64, 8, 32], [2, 64, 8, 32], [2, 64, 8, 32]]",
       kBf16x3, ""},  // causal or not
      {"aten::_flash_attention_forward", "[[128, 8, 32], [128, 8, 32], [128, 8, 32], [3]]", kBf16x3,
       R"(["", "", "", "", "", "64", "64", "0.", "True"])"},  // sequences of different lengths
      // A list says neither type nor, when it is long, sizes.
      {"aten::cat", "[[[10, 4], [20, 4]], []]", R"(["TensorList","Scalar"])", ""},
      {"aten::_fused_adamw_", "[[[10],[5]], [[10],[5]], []]", R"(["TensorList","TensorList"])", ""},
      {"aten::fancy", "[[64, 128], [128, 32]]", kFloat3, ""},
      {"aten::add", "[[], [], []]", R"(["Scalar"])", ""},
      {"aten::embedding", "[[0, 64], [4]]", R"(["float","long int"])", ""},
  };
  for (const auto& c : cases)
    EXPECT_FALSE(operator_work(c.name, c.dims, c.types, c.values)) << c.name << " " << c.dims;
}

}  // namespace
}  // namespace saturate::observe
