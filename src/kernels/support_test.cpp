// SPDX-License-Identifier: Apache-2.0
#include "kernels/support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/features.h"

namespace saturate::kernels {
namespace {

TEST(Support, TablesSayWhatTheCpuComputes) {
  const std::string tables = support_tables();
  EXPECT_NE(tables.find("| matmul | f64, f32 |"), std::string::npos) << tables;
  EXPECT_NE(tables.find("| attention_forward | f64, f32 |"), std::string::npos);
}

#if SATURATE_WITH_CUDA
TEST(Support, TheDocumentIsThatOfThisBuild) {
  const char* const path = SATURATE_SOURCE_DIR "/docs/reference/support.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), support_tables())
      << "write it again: build/apps/saturate info --kernels > docs/reference/support.md";
}
#endif

}  // namespace
}  // namespace saturate::kernels
