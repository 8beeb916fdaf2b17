// SPDX-License-Identifier: Apache-2.0
// Windows, bottom-right alignment and sinks on lengths of several tiles, where tiles of keys lie
// before, in and beyond a window: for every implementation, on Hopper its own kernels among them.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/hopper/forward.h"
#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

constexpr auto kTopLeft = CausalAlignment::top_left;
constexpr auto kBottomRight = CausalAlignment::bottom_right;

FeatureSet placed(CausalAlignment alignment, int64_t left, int64_t right, bool sinks) {
  FeatureSet f;
  f.alignment = alignment, f.window_left = left, f.window_right = right, f.sinks = sinks;
  return f;
}

std::vector<Shape> shapes() {
  constexpr int64_t kAll = kUnlimitedWindow;
  std::vector<Shape> all = {
      {"local",
       {700, 131},
       {700, 131},
       4,
       2,
       64,
       true,
       0,
       true,
       2,
       2,
       placed(kTopLeft, 127, kAll, true)},
      {"local_wide",
       {700, 131},
       {700, 131},
       4,
       2,
       128,
       true,
       0,
       true,
       2,
       2,
       placed(kTopLeft, 255, kAll, false)},
      {"odd_left",
       {515, 64, 0, 1},
       {515, 64, 0, 1},
       2,
       1,
       64,
       true,
       0,
       false,
       0,
       0,
       placed(kTopLeft, 200, kAll, false)},
      {"odd_left_wide",
       {515, 64, 0, 1},
       {515, 64, 0, 1},
       2,
       1,
       128,
       true,
       0,
       false,
       0,
       0,
       placed(kTopLeft, 200, kAll, true)},
      {"both_sides",
       {600, 200},
       {500, 333},
       2,
       2,
       64,
       false,
       0,
       false,
       1,
       3,
       placed(kTopLeft, 70, 90, false)},
      {"both_sides_wide",
       {600, 200},
       {500, 333},
       2,
       2,
       128,
       false,
       0,
       false,
       1,
       3,
       placed(kTopLeft, 70, 90, true)},
      {"right_only",
       {333},
       {520},
       2,
       1,
       64,
       false,
       0,
       false,
       0,
       0,
       placed(kTopLeft, kAll, 40, true)},
      {"right_only_wide",
       {333},
       {520},
       2,
       1,
       128,
       false,
       0,
       false,
       0,
       0,
       placed(kTopLeft, kAll, 40, false)},
      {"diagonal", {300}, {300}, 2, 2, 64, false, 0, true, 0, 0, placed(kTopLeft, 0, 0, false)},
      {"diagonal_wide",
       {300},
       {300},
       2,
       2,
       128,
       false,
       0,
       true,
       0,
       0,
       placed(kTopLeft, 0, 0, true)},
      {"more_keys",
       {200, 129, 5},
       {640, 400, 300},
       4,
       2,
       64,
       true,
       0,
       false,
       0,
       0,
       placed(kBottomRight, kAll, kAll, false)},
      {"more_keys_wide",
       {200, 129, 5},
       {640, 400, 300},
       4,
       2,
       128,
       true,
       0,
       false,
       0,
       0,
       placed(kBottomRight, kAll, kAll, true)},
      // The first queries of a sequence stand before its first key and see none.
      {"more_queries",
       {640, 400, 300},
       {200, 129, 5},
       2,
       1,
       64,
       true,
       0,
       false,
       3,
       3,
       placed(kBottomRight, 150, kAll, true)},
      {"more_queries_wide",
       {640, 400, 300},
       {200, 129, 5},
       2,
       1,
       128,
       true,
       0,
       false,
       3,
       3,
       placed(kBottomRight, 150, kAll, false)},
      // The last queries stand behind every window, and so do the last keys.
      {"beyond", {700}, {150}, 2, 2, 64, false, 0, false, 0, 0, placed(kTopLeft, 30, 20, false)},
      {"beyond_wide",
       {700},
       {150},
       2,
       2,
       128,
       false,
       0,
       false,
       0,
       0,
       placed(kTopLeft, 30, 20, true)},
      {"unseen_keys",
       {150},
       {700},
       2,
       2,
       64,
       false,
       0,
       false,
       0,
       0,
       placed(kTopLeft, 30, 20, true)},
      {"unseen_keys_wide",
       {150},
       {700},
       2,
       2,
       128,
       false,
       0,
       false,
       0,
       0,
       placed(kTopLeft, 30, 20, false)},
      {"sinks",
       {520, 77},
       {520, 77},
       4,
       4,
       64,
       true,
       0,
       true,
       0,
       0,
       placed(kTopLeft, kAll, kAll, true)},
      {"sinks_wide",
       {520, 77},
       {520, 77},
       4,
       4,
       128,
       false,
       0,
       true,
       0,
       0,
       placed(kTopLeft, kAll, kAll, true)},
      // More tiles than a GPU has multiprocessors, so that every block takes several.
      {"many", std::vector<int32_t>(20, 140), std::vector<int32_t>(20, 140), 8, 4, 64, true, 0,
       true, 0, 0, placed(kTopLeft, 60, kAll, true)},
      {"many_wide", std::vector<int32_t>(20, 140), std::vector<int32_t>(20, 140), 8, 2, 128, true,
       0, true, 0, 0, placed(kTopLeft, 60, kAll, false)},
  };
  return all;
}

struct Case {
  Shape shape;
  DType dtype;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Shape& s : shapes())
    for (DType t : {DType::bf16, DType::f16}) all.push_back({s, t});
  return all;
}
std::string name_of_case(const ::testing::TestParamInfo<Case>& i) {
  return std::string(i.param.shape.name) + "_" + name_of(i.param.dtype);
}

class AttentionPlacedCuda : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionPlacedCuda, MatchesReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Problem p(GetParam().shape, GetParam().dtype);
  const Device device{DeviceKind::cuda, 0};
  if (cuda_compute_major(0) == 9) {
    const Context ctx{device, nullptr, nullptr, 0};
    AttentionBackwardArgs b = p.with_any_pointers();
    b.workspace = b.delta;
    b.workspace_bytes = attention_backward_hopper_workspace(b.forward);
    EXPECT_TRUE(attention_forward_hopper_fits(ctx, b.forward));
    EXPECT_TRUE(attention_backward_hopper_fits(ctx, b));
  }
  expect_all_right(p, device);
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionPlacedCuda, ::testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace saturate::kernels
