// SPDX-License-Identifier: Apache-2.0
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

struct Problem {
  int64_t size = 0;
  bool odd = false;
};
Fit fits_even(const Context&, const Problem& p) noexcept {
  return p.odd ? Fit{"size is odd"} : Fit{};
}
Fit fits_all(const Context&, const Problem&) noexcept { return {}; }
Fit pays_large(const Context&, const Problem& p) noexcept {
  return p.size < 100 ? Fit{"small"} : Fit{};
}
int64_t doubled(const Context&, const Problem& p) noexcept { return 2 * p.size; }
const char* ran = nullptr;
constexpr Impl<Problem> kList[] = {
    {"gpu", DeviceKind::cuda, fits_all, [](const Context&, const Problem&) { ran = "gpu"; }},
    {"fast", DeviceKind::cpu, fits_even, [](const Context&, const Problem&) { ran = "fast"; },
     doubled, pays_large},
    {"slow", DeviceKind::cpu, fits_all, [](const Context&, const Problem&) { ran = "slow"; }}};

TEST(Dispatch, ThePlanIsTheFirstThatFitsAndPays) {
  const std::span<const Impl<Problem>> list(kList);
  const auto large = plan_of("test", {}, Problem{128}, list);
  EXPECT_STREQ(large.impl->name, "fast");
  EXPECT_EQ(large.workspace_bytes, 256);
  EXPECT_TRUE(large.refused.empty());
  const auto odd = plan_of("test", {}, Problem{129, true}, list);
  EXPECT_STREQ(odd.impl->name, "slow");
  EXPECT_EQ(odd.workspace_bytes, 0);
  EXPECT_EQ(text_of(odd.refused), "fast: size is odd");
  const auto small = plan_of("test", {}, Problem{8}, list);
  EXPECT_STREQ(small.impl->name, "slow");
  EXPECT_EQ(text_of(small.refused), "fast: small");
  small.run({}, Problem{8});
  EXPECT_STREQ(ran, "slow");
}

TEST(Dispatch, SaysEveryReasonWhereNothingFits) {
  const std::span<const Impl<Problem>> list(kList, 2);
  try {
    dispatch("test", {}, Problem{1, true}, list);
    FAIL() << "an odd size ran";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::unsupported);
    EXPECT_NE(std::string(e.what()).find("(fast: size is odd)"), std::string::npos) << e.what();
  }
  EXPECT_THROW(dispatch("test", {}, Problem{1}, list.first(1)), Error);
}

TEST(Dispatch, PrintsShapeChoiceAndRefusalOnce) {
  ::testing::internal::CaptureStderr();
  note_dispatch("test", shape_text(DType::bf16, {7, 9}), "fast", "size is odd");
  note_dispatch("test", shape_text(DType::bf16, {7, 9}), "slow", nullptr);
  note_dispatch("test", shape_text(DType::bf16, {7, 9}), "slow", nullptr);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "dispatch: test bf16 7x9: fast refused: size is odd\n"
            "dispatch: test bf16 7x9: slow runs\n");
}

}  // namespace
}  // namespace saturate::kernels
