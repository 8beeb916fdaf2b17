// SPDX-License-Identifier: Apache-2.0
// Windows, bottom-right alignment, sinks, soft caps and slopes on lengths of several tiles, where
// tiles of keys lie before, in and beyond a window: for every implementation, on Hopper its own
// kernels among them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention/hopper/forward.h"
#include "kernels/attention/wide/wide.h"
#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

constexpr auto kTopLeft = CausalAlignment::top_left;
constexpr auto kBottomRight = CausalAlignment::bottom_right;

FeatureSet windowed(CausalAlignment alignment, int64_t left, int64_t right, bool sinks = false) {
  FeatureSet f;
  f.alignment = alignment, f.window_left = left, f.window_right = right, f.sinks = sinks;
  return f;
}
FeatureSet with_cap(float cap, FeatureSet f) {
  f.soft_cap = cap;
  return f;
}
FeatureSet with_slopes(FeatureSet f, bool fixed = false) {
  f.alibi = true, f.fixed_slopes = fixed;
  return f;
}

struct Row {
  const char* name;
  std::vector<int32_t> q, k;  // lengths
  int64_t heads, kv_heads;
  bool causal;
  FeatureSet features;
};
struct Case {
  Shape shape;
  DType dtype;
};

// Every row at each head size, at 256 (where the reference takes seconds) of the two types in turn;
// q, k and v lie packed where the lengths allow it.
std::vector<Case> cases() {
  constexpr int64_t kAll = kUnlimitedWindow;
  constexpr bool kCausal = true, kFull = false;
  const std::vector<int32_t> many(20, 140);
  const std::vector<Row> rows = {
      {"local", {700, 131}, {700, 131}, 4, 2, kCausal, windowed(kTopLeft, 127, kAll, true)},
      {"odd_left", {515, 64, 0, 1}, {515, 64, 0, 1}, 2, 1, kCausal, windowed(kTopLeft, 200, kAll)},
      {"both_sides", {600, 200}, {500, 333}, 2, 2, kFull, windowed(kTopLeft, 70, 90)},
      {"right_only", {333}, {520}, 2, 1, kFull, windowed(kTopLeft, kAll, 40, true)},
      {"diagonal", {300}, {300}, 2, 2, kFull, windowed(kTopLeft, 0, 0)},
      {"more_keys",
       {200, 129, 5},
       {640, 400, 300},
       4,
       2,
       kCausal,
       windowed(kBottomRight, kAll, kAll)},
      // The first queries of a sequence stand before its first key and see none.
      {"more_queries",
       {640, 400, 300},
       {200, 129, 5},
       2,
       1,
       kCausal,
       windowed(kBottomRight, 150, kAll, true)},
      // The last queries stand behind every window, and so do the last keys.
      {"beyond", {700}, {150}, 2, 2, kFull, windowed(kTopLeft, 30, 20, true)},
      {"unseen_keys", {150}, {700}, 2, 2, kFull, windowed(kTopLeft, 30, 20)},
      {"sinks", {520, 77}, {520, 77}, 4, 4, kCausal, windowed(kTopLeft, kAll, kAll, true)},
      {"sinks_full", {200, 77}, {333, 520}, 4, 2, kFull, windowed(kTopLeft, kAll, kAll, true)},
      // More tiles than a GPU has multiprocessors, so that every block takes several.
      {"many", many, many, 8, 4, kCausal, windowed(kTopLeft, 60, kAll, true)},
      {"cap", {300, 129, 5}, {300, 129, 5}, 4, 2, kCausal, with_cap(1.5f, {})},
      {"cap_local",
       {333, 64},
       {333, 64},
       2,
       1,
       kCausal,
       with_cap(5.0f, windowed(kTopLeft, 100, kAll, true))},
      {"cap_both_sides",
       {200, 300},
       {333, 150},
       2,
       2,
       kFull,
       with_cap(30.0f, windowed(kTopLeft, 70, 90))},
      {"cap_more_keys",
       {200, 129},
       {520, 300},
       2,
       2,
       kCausal,
       with_cap(2.0f, windowed(kBottomRight, kAll, kAll))},
      // Queries that see no key, with and without a cap; empty sequences of either side.
      {"cap_more_queries",
       {520, 0, 300},
       {200, 70, 0},
       2,
       2,
       kCausal,
       with_cap(4.0f, windowed(kBottomRight, kAll, kAll))},
      {"groups",
       {0, 513, 64, 300, 0},
       {77, 401, 64, 0, 0},
       8,
       1,
       kCausal,
       windowed(kBottomRight, 90, kAll)},
      {"cap_groups",
       {257, 1, 0, 400},
       {257, 1, 0, 400},
       4,
       1,
       kCausal,
       with_cap(3.0f, windowed(kTopLeft, 260, kAll, true))},
      {"slopes", {300, 129, 5}, {300, 129, 5}, 4, 2, kCausal, with_slopes({})},
      {"slopes_local",
       {333, 64},
       {333, 64},
       2,
       1,
       kCausal,
       with_slopes(windowed(kTopLeft, 100, kAll, true))},
      {"slopes_full", {200, 300}, {333, 150}, 4, 2, kFull, with_slopes({}, true)},
      {"slopes_more_queries",
       {520, 300},
       {200, 129},
       2,
       2,
       kCausal,
       with_slopes(windowed(kBottomRight, kAll, kAll, true))},
  };
  std::vector<Case> all;
  for (const Row& r : rows)
    for (int64_t size : {64, 128, 256})
      for (DType t : {DType::bf16, DType::f16}) {
        if (size == 256 && (&r - rows.data()) % 2 != (t == DType::f16 ? 1 : 0)) continue;
        Shape s{r.name, r.q, r.k, r.heads, r.kv_heads, size, r.causal};
        s.packed = r.q == r.k, s.q_tail = 2, s.k_tail = s.packed ? 2 : 3;
        s.features = r.features;
        all.push_back({s, t});
      }
  return all;
}
std::string name_of_case(const ::testing::TestParamInfo<Case>& i) {
  const Shape& s = i.param.shape;
  return std::string(s.name) + "_" + std::to_string(s.head_size) + "_" + name_of(i.param.dtype);
}

class AttentionWindowedCuda : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionWindowedCuda, MatchesReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Problem p(GetParam().shape, GetParam().dtype);
  const Device device{DeviceKind::cuda, 0};
#if SATURATE_WITH_CUDA
  if (capability_of(Device{DeviceKind::cuda, 0}).major == 9) {
    const Context ctx{device, nullptr, nullptr, 0};
    AttentionBackwardArgs b = p.with_any_pointers();
    b.workspace = b.delta;
    b.workspace_bytes = attention_backward_hopper_workspace(b.forward);
    bool wide = b.forward.head_size == 256;
    EXPECT_EQ(static_cast<bool>(attention_forward_hopper_fits(ctx, b.forward)), !wide);
    EXPECT_EQ(static_cast<bool>(attention_backward_hopper_fits(ctx, b)), !wide);
    wide = wide && !b.forward.alibi_slopes;
    EXPECT_EQ(static_cast<bool>(attention_forward_wide_fits(ctx, b.forward)), wide);
    EXPECT_EQ(static_cast<bool>(attention_backward_wide_fits(ctx, b)), wide);
  }
#endif
  expect_all_right(p, device);
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionWindowedCuda, ::testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace saturate::kernels
