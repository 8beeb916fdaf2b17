// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/materialised/materialised.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

std::vector<Shape> shapes() {
  return {
      {"one_by_one", {1}, {1}, 1, 1, 64},
      {"sentences", {33, 33, 33}, {33, 33, 33}, 2, 2, 64, false, 0.0f, true},
      {"causal", {40, 40}, {40, 40}, 3, 3, 32, true, 0.0f, true},
      {"cross", {5, 5}, {67, 67}, 2, 2, 24},
      {"cross_causal_more_keys", {19, 19}, {30, 30}, 2, 2, 64, true},
      {"cross_causal_more_queries", {150}, {130}, 2, 2, 128, true},
      {"many", std::vector<int32_t>(7, 129), std::vector<int32_t>(7, 129), 2, 2, 64},
  };
}

// Scratch filled with NaN: as much as is asked for and no more. It stays until the next call, by
// which time the stream has been waited for.
void launch(const Context& ctx, const AttentionArgs& args) {
  static Buffer scratch;
  const int64_t bytes = attention_forward_materialised_scratch(args);
  const std::vector<char> poison(static_cast<size_t>(bytes), '\xFF');
  scratch = DeviceArrays(ctx.device).raw(poison.data(), poison.size());
  attention_forward_materialised(ctx, {args, scratch.data(), bytes});
}
constexpr Impl<AttentionArgs> impl_on(DeviceKind kind) {
  return {"attention_forward_materialised", kind, attention_forward_materialised_fits, launch};
}

void expect_right_on(Device device, DType type) {
  const Impl<AttentionArgs> impl = impl_on(device.kind);
  const Context ctx{device, nullptr, nullptr, 0};
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(std::string(shape.name) + " " + name_of(type));
    const Problem p(shape, type);
    ASSERT_TRUE(impl.fits(ctx, p.with_any_pointers().forward));
    const Result first = run(p, device, &impl, nullptr), again = run(p, device, &impl, nullptr);
    expect_right(p, first);
    EXPECT_TRUE(same_bits(first.o, again.o)) << "differs run to run";
  }
}

TEST(AttentionMaterialised, MatchesReferenceOnCpu) {
  for (DType type : {DType::f32, DType::f64}) expect_right_on(Device{}, type);
}

TEST(AttentionMaterialised, MatchesReferenceOnGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    expect_right_on(Device{DeviceKind::cuda, 0}, type);
}

TEST(AttentionMaterialised, RefusesWhatItDoesNotCompute) {
  const Context ctx{};
  const auto reason = [&](const Shape& shape, DType type = DType::f32) {
    return attention_forward_materialised_fits(ctx,
                                               Problem(shape, type).with_any_pointers().forward)
        .reason;
  };
  const std::string lengths = "sequences differ in length, or rows lie outside them";
  EXPECT_EQ(reason({"", {3, 4}, {3, 4}, 1, 1, 64}), lengths);
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 64, false, 0.0f, false, 2, 0}), lengths);
  EXPECT_EQ(reason({"", {3}, {0}, 1, 1, 64}), std::string("there are no queries or no keys"));
  EXPECT_EQ(reason({"", {3}, {3}, 2, 1, 64}), std::string("query heads share key heads"));
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 64, false, 0.1f}), std::string("dropout"));
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 64}, DType::bf16),
            std::string("dtype is neither f32 nor f64"));
  Shape capped{"", {3}, {3}, 1, 1, 64};
  capped.features.soft_cap = 20.0f;
  EXPECT_NE(reason(capped), nullptr);
}

TEST(AttentionMaterialised, RefusesTooLittleScratch) {
  const AttentionArgs args =
      Problem({"", {3}, {3}, 1, 1, 64}, DType::f32).with_any_pointers().forward;
  float small[4];
  const auto message = [&](const MaterialisedArgs& m) -> std::string {
    try {
      attention_forward_materialised(Context{}, m);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({args, small, sizeof small}).find("scratch has 16 bytes, but 256 are needed"),
            std::string::npos);
  EXPECT_NE(message({args, nullptr, 256}).find("scratch has 0 bytes"), std::string::npos);
}

}  // namespace
}  // namespace saturate::kernels
