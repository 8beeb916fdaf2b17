// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/fold_columns.h"

#include <cmath>

#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

// More jobs than one launch takes, of odd sizes, with and without what was there, some outs not
// wanted: against doubles, and bit for bit what each is alone.
TEST(FoldColumns, AListIsWhatItsJobsAreAlone) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  constexpr int kJobs = 300;
  constexpr int64_t kMostOuts = 3, kMostCols = 131, kMostGroups = 70;
  const auto values =
      testing::random_values(kJobs * kMostGroups * kMostOuts * kMostCols, DType::f32, 1);
  const auto before = testing::random_values(kJobs * kMostOuts * kMostCols, DType::f32, 2);
  const Guarded partial(t.stream, DType::f32, values);
  Guarded out(t.stream, DType::f32, before);
  std::vector<FoldColumnsArgs> jobs;
  for (int64_t i = 0; i < kJobs; ++i) {
    FoldColumnsArgs a{.partial = partial.as<float>() + i * kMostGroups * kMostOuts * kMostCols,
                      .groups = i % 7 == 0 ? 0 : 1 + i * 13 % kMostGroups,
                      .outs = 1 + i % kMostOuts,
                      .cols = 1 + i * 37 % kMostCols};
    for (int64_t o = 0; o < a.outs; ++o) {
      if ((i + o) % 5 == 4) continue;
      a.out[o] = out.as<float>() + (i * kMostOuts + o) * kMostCols;
      a.accumulate[o] = (i + o) % 2 == 0;
    }
    jobs.push_back(a);
  }
  for (const FoldColumnsArgs& a : jobs) fold_columns_cuda(t.get(), a);
  const auto alone = out.bytes();
  out.set(before);
  FoldList list;
  for (const FoldColumnsArgs& a : jobs) fold_columns_cuda(t.get(), a, &list);
  EXPECT_EQ(list.jobs.size(), static_cast<size_t>(kJobs));
  fold_columns_cuda(t.get(), list);
  EXPECT_TRUE(list.jobs.empty());
  EXPECT_EQ(out.bytes(), alone);
  const auto got = out.values();
  for (int64_t i = 0; i < kJobs; ++i) {
    const FoldColumnsArgs& a = jobs[static_cast<size_t>(i)];
    for (int64_t o = 0; o < kMostOuts; ++o) {
      for (int64_t c = 0; c < kMostCols; ++c) {
        const auto at = static_cast<size_t>((i * kMostOuts + o) * kMostCols + c);
        const bool written = o < a.outs && c < a.cols && a.out[o] != nullptr;
        double sum = written && !a.accumulate[o] ? 0 : before[at], magnitude = std::fabs(sum);
        for (int64_t g = 0; written && g < a.groups; ++g) {
          const double v = values[static_cast<size_t>(i * kMostGroups * kMostOuts * kMostCols +
                                                      (g * a.outs + o) * a.cols + c)];
          sum += v;
          magnitude += std::fabs(v);
        }
        ASSERT_NEAR(got[at], sum, 0x1p-24 * 80 * magnitude) << i << " " << o << " " << c;
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
