// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cute/cute.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/attention/features.h"
#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

std::vector<Shape> shapes() {
  return {
      {"one_by_one", {1}, {1}, 1, 1, 64},
      {"one_tile", {128}, {128}, 2, 2, 64},
      {"sentences", {7, 32, 19, 1, 33}, {7, 32, 19, 1, 33}, 2, 2, 64, false, 0.0f, true, 5, 5},
      {"empty", {0, 9, 0, 4, 0}, {3, 0, 0, 12, 5}, 2, 2, 128, false, 0.0f, false, 2, 1},
      {"causal", {130, 600}, {130, 600}, 3, 3, 64, true, 0.0f, true, 1, 1},
      {"cross_causal_more_keys", {19, 200}, {30, 520}, 2, 2, 64, true},
      {"cross_causal_more_queries", {450}, {130}, 2, 2, 128, true},
      {"grouped", {20, 145}, {333, 8}, 6, 2, 128},
      {"tiles_of_keys", {64}, {1025}, 2, 1, 128},
      {"grouped_causal", {385}, {385}, 4, 1, 128, true, 0.0f, true},
  };
}

TEST(AttentionCute, MatchesReference) {
  if (const Fit f = attention_cute_is_built(); !f) GTEST_SKIP() << f.reason;
  if (capability_of(Device{DeviceKind::cuda, 0}).major != 9)
    GTEST_SKIP() << "no GPU of compute capability 9.0";
  static constexpr Impl<AttentionArgs> kImpl{"attention_forward_cute", DeviceKind::cuda,
                                             attention_forward_cute_fits, attention_forward_cute};
  const Device device{DeviceKind::cuda, 0};
  for (const Shape& shape : shapes())
    for (DType type : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(std::string(shape.name) + " " + name_of(type));
      const Problem p(shape, type);
      ASSERT_TRUE(kImpl.fits(Context{device, nullptr, nullptr, 0}, p.with_any_pointers().forward));
      const Result first = run(p, device, &kImpl, nullptr), again = run(p, device, &kImpl, nullptr);
      expect_right(p, first);
      EXPECT_TRUE(same_bits(first.o, again.o)) << "differs run to run";
    }
}

// Without the headers the one reason is that it is not built.
TEST(AttentionCute, SaysWhyItDoesNotFit) {
  const auto reason = [](const Shape& shape, DType type = DType::bf16) {
    return std::string(
        attention_forward_cute_fits(Context{}, Problem(shape, type).with_any_pointers().forward)
            .reason);
  };
  const Fit built = attention_cute_is_built();
  const auto expect = [&](const std::string& got, const std::string& want) {
    EXPECT_EQ(got, built ? want : std::string(built.reason));
  };
  expect(reason({"", {3}, {3}, 1, 1, 64}), "the CPU does not compute it");
  expect(reason({"", {3}, {3}, 1, 1, 64}, DType::f32), "dtype is neither bf16 nor f16");
  expect(reason({"", {3}, {3}, 1, 1, 96}), "head size is neither 64 nor 128");
  expect(reason({"", {3}, {3}, 1, 1, 64, false, 0.1f}), "dropout");
  expect(reason({"", {3}, {0}, 1, 1, 64}), "there are no keys");
  Shape capped{"", {3}, {3}, 1, 1, 64};
  capped.features.soft_cap = 20.0f;
  expect(reason(capped), fits_features(Problem(capped, DType::bf16).args.forward, 0).reason);
  EXPECT_THROW(
      attention_forward_cute(
          Context{}, Problem({"", {3}, {3}, 1, 1, 64}, DType::bf16).with_any_pointers().forward),
      Error);
}

}  // namespace
}  // namespace saturate::kernels
