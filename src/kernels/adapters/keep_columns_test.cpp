// SPDX-License-Identifier: Apache-2.0
#include "kernels/adapters/keep_columns.h"

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

class KeepColumnsOn : public OnTarget {};

TEST_P(KeepColumnsOn, ClearsWhatBelongsToOthers) {
  constexpr int64_t kRows = 37, kCols = 21;
  const std::vector<int32_t> begins{0, 5, 5, 21};  // the second has no columns
  KeepColumnsArgs a{.group_stride = 3, .rows = kRows, .groups = 3, .dtype = dtype()};
  std::ranges::copy(begins, a.begins.begin());
  Values groups(static_cast<size_t>(kRows * 3), 99.0);
  for (int64_t r = 0; r < kRows; ++r) groups[r * 3] = static_cast<double>(r % 5 - 1);  // -1 .. 3
  const Values x = random(kRows * kCols, 1);
  const Guarded y = array(x), g(stream(), DType::i32, groups);
  a.x = y.data();
  a.group_of_row = static_cast<const int32_t*>(g.data());
  keep_columns(ctx(), a);
  Values want = x;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kCols; ++c) {
      const int64_t group = r % 5 - 1;
      const bool stays = (group == 0 && c < 5) || (group == 2 && c >= 5);
      if (!stays) want[r * kCols + c] = 0;
    }
  expect_close("y", y.values(), want, unit() / 2);
}

INSTANTIATE_TEST_SUITE_P(Targets, KeepColumnsOn, all_targets(), target_name);

TEST(KeepColumns, SaysWhatIsWrong) {
  float v[8] = {};
  const int32_t groups[2] = {0, 1};
  const Context ctx;
  KeepColumnsArgs a{.x = v, .group_of_row = groups, .rows = 2, .groups = 2};
  a.begins = {0, 2, 4};
  EXPECT_NO_THROW(keep_columns(ctx, a));
  a.begins = {0, 4, 2};
  EXPECT_THROW(keep_columns(ctx, a), Error);
  a.begins = {0, 2, 4};
  a.groups = 65;
  EXPECT_THROW(keep_columns(ctx, a), Error);
  a.groups = 2;
  a.group_of_row = nullptr;
  EXPECT_THROW(keep_columns(ctx, a), Error);
}

}  // namespace
}  // namespace saturate::kernels
