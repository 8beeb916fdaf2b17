// SPDX-License-Identifier: Apache-2.0
// Weights against sums in double precision, where each row's memory lies somewhere else.
#include "kernels/decode/memory_weights.h"

#include <cmath>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

class MemoryWeights : public testing::OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, MemoryWeights, testing::all_targets(), testing::target_name);

TEST_P(MemoryWeights, EqualsSumsInDoubles) {
  struct Case {
    int64_t heads, kv_heads, size, first, count;
  };
  const Values starts{0, 200, 3, 150}, lengths{150, 1, 7, 50}, finished{0, 0, 1, 0},
      slot_starts{0, 6, 3, 1}, positions{0, 1, 1, 4};
  constexpr int64_t kRows = 4, kMost = 150, kStride = 151, kSlots = 9, kMemory = 201;
  const auto ints = [&](const Values& v) { return Guarded(stream(), DType::i32, v); };
  for (const Case& k : {Case{4, 4, 16, 0, 4}, {6, 2, 20, 4, 1}, {1, 1, 64, 0, 1}}) {
    const Values q = random(kRows * k.heads * k.size, 3),
                 memory = random(kMemory * 2 * k.kv_heads * k.size, 4);
    const Guarded a = array(q), b = array(memory), s = ints(starts), l = ints(lengths),
                  f = ints(finished), o = ints(slot_starts), p = ints(positions);
    const Guarded w(stream(), DType::f32, Values(kSlots * kStride, -7.0));
    const float scale = 0.4f;
    memory_weights(ctx(), {.q = a.data(),
                           .memory = b.data(),
                           .w = static_cast<float*>(w.data()),
                           .starts = s.as<int32_t>(),
                           .lengths = l.as<int32_t>(),
                           .finished = f.as<int32_t>(),
                           .slot_starts = o.as<int32_t>(),
                           .positions = p.as<int32_t>(),
                           .rows = kRows,
                           .heads = k.heads,
                           .kv_heads = k.kv_heads,
                           .head_size = k.size,
                           .first_head = k.first,
                           .head_count = k.count,
                           .max_positions = kMost,
                           .stride = kStride,
                           .dtype = dtype(),
                           .scale = scale});
    Values want(kSlots * kStride, -7.0);
    for (size_t r = 0; r < kRows; ++r) {
      if (finished[r] != 0) continue;
      const auto to = static_cast<size_t>(slot_starts[r] + positions[r]) * kStride;
      const auto length = static_cast<size_t>(lengths[r]);
      std::fill_n(want.begin() + static_cast<int64_t>(to), length, 0.0);
      for (int64_t h = k.first; h < k.first + k.count; ++h) {
        Values z(length);
        double sum = 0;
        for (size_t j = 0; j < length; ++j) {
          const auto key =
              (static_cast<size_t>(starts[r]) + j) * static_cast<size_t>(2 * k.kv_heads * k.size) +
              static_cast<size_t>(h / (k.heads / k.kv_heads) * k.size);
          const auto query = (r * static_cast<size_t>(k.heads) + static_cast<size_t>(h)) *
                             static_cast<size_t>(k.size);
          for (size_t c = 0; c < static_cast<size_t>(k.size); ++c)
            z[j] += q[query + c] * memory[key + c] * static_cast<double>(scale);
          sum += z[j] = std::exp(z[j]);
        }
        for (size_t j = 0; j < length; ++j)
          want[to + j] += z[j] / sum / static_cast<double>(k.count);
      }
    }
    const Values got = w.values();
    // Scores of at most 0.4 x size, each of a sum of `size` rounded products, in f32 at best.
    const double bound = 16 * std::max(wide_unit(), 0x1p-24) * static_cast<double>(k.size);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
  }
}

TEST(MemoryWeightsRules, RejectsBadArguments) {
  const testing::TestContext t({});
  float x = 0;
  int32_t i = 0;
  const MemoryWeightsArgs good{.q = &x,
                               .memory = &x,
                               .w = &x,
                               .starts = &i,
                               .lengths = &i,
                               .finished = &i,
                               .slot_starts = &i,
                               .positions = &i,
                               .rows = 1,
                               .heads = 2,
                               .kv_heads = 1,
                               .head_size = 1,
                               .max_positions = 1,
                               .stride = 1};
  const auto rejects = [&](auto change) {
    MemoryWeightsArgs bad = good;
    change(bad);
    EXPECT_THROW(memory_weights(t.get(), bad), Error);
  };
  rejects([](auto& a) { a.kv_heads = 3; });
  rejects([](auto& a) { a.head_count = 3; });
  rejects([](auto& a) { a.first_head = -1; });
  rejects([](auto& a) { a.stride = 0; });
  rejects([](auto& a) { a.lengths = nullptr; });
  rejects([](auto& a) { a.dtype = DType::bf16; });
}

}  // namespace
}  // namespace saturate::kernels
