// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/cached_row.h"

#include <cmath>

#include "kernels/decode/cached_attention.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

// What one step gives on the CPU with instructions no newer than `level`.
struct Step {
  int64_t heads, kv_heads, size, positions;
  bool memory = false, biased = false;
  int64_t window = 0;
  float cap = 0.0f, scale = 3.0f;  // times 1 / sqrt(size)

  std::vector<float> run(CpuLevel level) const {
    constexpr int64_t kRows = 3;
    const testing::TestContext t({});
    const int64_t q_width = heads * size, kv = kv_heads * size,
                  width = q_width + (memory ? 0 : 2 * kv);
    const auto numbers = [](int64_t count, int64_t step) {
      std::vector<float> all;
      for (int64_t i = 0; i < count; ++i)
        all.push_back(static_cast<float>(std::sin(static_cast<double>(i * step))));
      return all;
    };
    std::vector<float> qkv = numbers(kRows * width, 13),
                       cache = numbers(kRows * positions * 2 * kv, 7);
    const std::vector<float> bias = numbers(heads * positions, 3);
    std::vector<float> o(static_cast<size_t>(kRows * q_width), NAN);
    std::vector<int32_t> starts, last;
    for (int64_t r = 0; r < kRows; ++r) {
      starts.push_back(static_cast<int32_t>(r * positions));
      last.push_back(static_cast<int32_t>(positions - 1 - r));
    }
    CachedAttentionArgs args{.qkv = qkv.data(),
                             .cache = cache.data(),
                             .o = o.data(),
                             .starts = starts.data(),
                             .rows = kRows,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_size = size,
                             .max_positions = positions,
                             .scale = scale / std::sqrt(static_cast<float>(size)),
                             .window = window,
                             .soft_cap = cap,
                             .bias = biased ? bias.data() : nullptr,
                             .bias_stride = positions,
                             .level = level};
    (memory ? args.lengths : args.positions) = last.data();
    cached_attention(t.get(), args);
    return o;
  }
};

TEST(CachedRow, HasTheSameBitsOnEveryProcessor) {
  if (cpu_level() < CpuLevel::avx512) GTEST_SKIP() << "no AVX-512 here";
  for (const int64_t size : {7, 8, 16, 24, 40, 64, 80, 128, 256}) {
    for (const int64_t positions : {4, 5, 17, 33, 100}) {
      for (const Step& step :
           {Step{2, 2, size, positions}, Step{6, 2, size, positions},
            Step{2, 1, size, positions, true}, Step{2, 2, size, positions, false, true, 6, 1.5f},
            Step{2, 2, size, positions, true, false, 0, 0.0f, 400.0f}}) {
        EXPECT_EQ(step.run(CpuLevel::avx512), step.run(CpuLevel::plain))
            << step.heads << " heads of " << size << ", " << positions << " positions";
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
