// SPDX-License-Identifier: Apache-2.0
#include "kernels/relative_bias/relative_bias.h"

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

class RelativeBiasOn : public OnTarget {};

TEST_P(RelativeBiasOn, LooksEachDistanceUp) {
  if (dtype() != wide()) GTEST_SKIP() << "the bias is in the wide type";
  constexpr int64_t kHeads = 3, kBuckets = 5, kMost = 40;
  const Values table = random(kBuckets * kHeads, 1);
  Values buckets;
  for (int64_t d = -kMost; d <= kMost; ++d) buckets.push_back(static_cast<double>((d + 300) % 5));
  const Guarded g_table = array(table), g_buckets(stream(), DType::i32, buckets);
  for (const auto& [queries, keys, sign] :
       {std::tuple<int64_t, int64_t, int>{7, 19, 1}, {19, 7, 1}, {1, 33, -1}}) {
    const Guarded bias = poison(kHeads * queries * keys);
    relative_bias(ctx(), {.table = g_table.data(),
                          .buckets = g_buckets.as<int32_t>() + kMost,
                          .bias = bias.data(),
                          .heads = kHeads,
                          .queries = queries,
                          .keys = keys,
                          .sign = sign,
                          .dtype = dtype()});
    Values want;
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < queries; ++i)
        for (int64_t j = 0; j < keys; ++j)
          want.push_back(table[static_cast<int64_t>(buckets[kMost + sign * j - i]) * kHeads + h]);
    expect_close("bias", bias.values(), want, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RelativeBiasOn, all_targets(), target_name);

TEST(RelativeBias, SaysWhatIsWrong) {
  float v[8] = {};
  int32_t buckets[8] = {};
  const Context ctx;
  RelativeBiasArgs a{
      .table = v, .buckets = buckets + 3, .bias = v + 4, .heads = 1, .queries = 2, .keys = 2};
  EXPECT_NO_THROW(relative_bias(ctx, a));
  a.sign = 2;
  EXPECT_THROW(relative_bias(ctx, a), Error);
  a.sign = 1;
  a.dtype = DType::bf16;
  EXPECT_THROW(relative_bias(ctx, a), Error);
}

}  // namespace
}  // namespace saturate::kernels
