// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/cached_attention.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

struct Shape {
  int64_t heads, kv_heads, head_size, max_positions;
};

class CachedAttention : public testing::OnTarget {
 protected:
  Guarded ints(const std::vector<int32_t>& v) const {
    return Guarded(stream(), DType::i32, Values(v.begin(), v.end()));
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, CachedAttention, testing::all_targets(), testing::target_name);

TEST_P(CachedAttention, MatchesReference) {
  constexpr int64_t kRows = 5;
  for (const Shape s : {Shape{1, 1, 1, 3}, Shape{4, 4, 64, 40}, Shape{6, 2, 40, 70},
                        Shape{4, 1, 128, 300}, Shape{2, 2, 33, 17}, Shape{2, 1, 256, 20}}) {
    for (const bool shared : {false, true}) {
      const int64_t q_width = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
      const int64_t slot_count = kRows * s.max_positions;
      std::vector<int32_t> starts, positions, slots(static_cast<size_t>(slot_count)),
          finished{0, 0, 1, 0, 0};
      for (int64_t r = 0; r < kRows; ++r) {
        starts.push_back(static_cast<int32_t>(r * s.max_positions));
        positions.push_back(static_cast<int32_t>((s.max_positions - 1) * (r + 1) / kRows));
      }
      positions[0] = 0;
      // Position j of any row may lie with any row.
      for (int64_t i = 0; i < slot_count; ++i) {
        const int64_t owner = shared ? (i * 7 + i / 5) % kRows : i / s.max_positions;
        slots[static_cast<size_t>(i)] =
            static_cast<int32_t>(owner * s.max_positions + i % s.max_positions);
      }
      // Slots that this step writes are read by nobody else.
      const Values qkv = random(kRows * (q_width + 2 * kv), 1),
                   old = random(slot_count * 2 * kv, 2);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t j = 0; j < s.max_positions; ++j) {
          int32_t& slot = slots[static_cast<size_t>(r * s.max_positions + j)];
          for (int64_t o = 0; o < kRows; ++o) {
            if (slot == starts[static_cast<size_t>(o)] + positions[static_cast<size_t>(o)]) {
              slot = starts[static_cast<size_t>(r)] + static_cast<int32_t>(j);
            }
          }
        }
      }
      const Guarded in = array(qkv), cache = array(old), o = poison(kRows * q_width);
      const Guarded at = ints(positions), from = ints(starts), table = ints(slots),
                    over = ints(finished);
      const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_size));
      const CachedAttentionArgs args{.qkv = in.data(),
                                     .cache = cache.data(),
                                     .o = o.data(),
                                     .positions = at.as<int32_t>(),
                                     .starts = from.as<int32_t>(),
                                     .slots = shared ? table.as<int32_t>() : nullptr,
                                     .finished = over.as<int32_t>(),
                                     .rows = kRows,
                                     .heads = s.heads,
                                     .kv_heads = s.kv_heads,
                                     .head_size = s.head_size,
                                     .max_positions = s.max_positions,
                                     .dtype = dtype(),
                                     .scale = scale};
      cached_attention(ctx(), args);
      Values want(static_cast<size_t>(kRows * q_width)), cached = old;
      double largest = 0;
      for (const double v : old) largest = std::max(largest, std::fabs(v));
      for (const double v : qkv) largest = std::max(largest, std::fabs(v));
      for (int64_t r = 0; r < kRows; ++r) {
        if (finished[static_cast<size_t>(r)] != 0) continue;
        const double* row = &qkv[static_cast<size_t>(r * (q_width + 2 * kv))];
        const int64_t last = positions[static_cast<size_t>(r)],
                      start = starts[static_cast<size_t>(r)];
        std::copy_n(row + q_width, 2 * kv, cached.begin() + (start + last) * 2 * kv);
        for (int64_t h = 0; h < s.heads; ++h) {
          const int64_t column = h / (s.heads / s.kv_heads) * s.head_size;
          Values p;
          std::vector<const double*> keys;
          for (int64_t j = 0; j <= last; ++j) {
            const int64_t slot =
                shared && j < last ? slots[static_cast<size_t>(start + j)] : start + j;
            keys.push_back(&cached[static_cast<size_t>(slot * 2 * kv + column)]);
            p.push_back(std::exp(static_cast<double>(scale) *
                                 std::inner_product(keys.back(), keys.back() + s.head_size,
                                                    row + h * s.head_size, 0.0)));
          }
          const double sum = std::accumulate(p.begin(), p.end(), 0.0);
          for (int64_t c = 0; c < s.head_size; ++c) {
            double& y = want[static_cast<size_t>(r * q_width + h * s.head_size + c)];
            for (size_t j = 0; j < p.size(); ++j) y += p[j] / sum * keys[j][kv + c];
          }
        }
      }
      // Scores of size |q||k| scale lose eps sqrt(head_size) of it, weights as much, sums eps
      // sqrt(positions); all times the largest value. The result is rounded once to dtype.
      const double score = largest * largest * std::sqrt(static_cast<double>(s.head_size));
      const double slack =
          wide_unit() * largest * (4 + score + std::sqrt(static_cast<double>(s.max_positions)));
      testing::expect_close("o", o.values(), want, unit(), Values(want.size(), slack));
      testing::expect_close("cache", cache.values(), cached, 0.0);
      const auto first = o.bytes();
      cached_attention(ctx(), args);
      EXPECT_EQ(o.bytes(), first);
    }
  }
}

TEST(CachedAttentionRules, RejectsBadArguments) {
  const testing::TestContext t({});
  float x = 0;
  int32_t i = 0;
  CachedAttentionArgs args{.qkv = &x,
                           .cache = &x,
                           .o = &x,
                           .positions = &i,
                           .starts = &i,
                           .rows = 1,
                           .heads = 3,
                           .kv_heads = 2,
                           .head_size = 1,
                           .max_positions = 1};
  EXPECT_THROW(cached_attention(t.get(), args), Error);
  args.kv_heads = 1;
  args.qkv = nullptr;
  EXPECT_THROW(cached_attention(t.get(), args), Error);
  args.qkv = &x;
  args.dtype = DType::bf16;
  EXPECT_THROW(cached_attention(t.get(), args), Error);
}

}  // namespace
}  // namespace saturate::kernels
