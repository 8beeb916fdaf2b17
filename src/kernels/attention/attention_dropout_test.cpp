// SPDX-License-Identifier: Apache-2.0
// Dropout's mask, read back from the results: with q = 0 every probability is 1 / keys, and unit
// vectors in k, v and d_o put each element of the mask into an element of a result.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/testing/attention_expect.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

constexpr int32_t kLength = 64;  // queries and keys of a sequence, and the head size
constexpr int kSequences = 3;
constexpr int64_t kHeads = 4;

using Mask = std::vector<bool>;  // (sequence, head, query, key): kept

Problem unit_problem(DType t, float dropout) {
  const std::vector<int32_t> lengths(kSequences, kLength);
  Problem p({"mask", lengths, lengths, kHeads, kHeads, kLength, false, dropout}, t);
  const AttentionArgs& a = p.args.forward;
  for (double& x : p.input) x = 0;
  for (double& x : p.d_o) x = 0;
  for (int64_t r = 0; r < a.q_rows; ++r)
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t unit = h * kLength + r % kLength;
      p.input[r * a.q_stride + unit] = 0x1p-10;  // scores stay nearly 0
      p.input[p.k_at + r * a.k_stride + unit] = 1;
      p.input[p.v_at + r * a.v_stride + unit] = 1;
      p.d_o[r * a.o_stride + unit] = 1;
    }
  return p;
}

// Element (row r of sequence s, head h, column c) of rows that start at `first`.
template <class Value>
Mask mask_of(const Value& kept) {
  Mask mask;
  for (int s = 0; s < kSequences; ++s)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kLength; ++i)
        for (int64_t j = 0; j < kLength; ++j) mask.push_back(kept(s, h, i, j));
  return mask;
}
double at(const Values& v, int64_t first, int64_t stride, int64_t s, int64_t h, int64_t row,
          int64_t column) {
  return v[first + (s * kLength + row) * stride + h * kLength + column];
}

// p keep / (1 - p) is 1 / (64 * 0.8) or 0; half of it parts the two whatever the rounding.
constexpr float kRate = 0.2f;
constexpr double kKept = 1 / (kLength * 0.8);

Mask forward_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.o_stride;
  return mask_of([&](int64_t s, int64_t h, int64_t i, int64_t j) {
    return at(r.o, 0, stride, s, h, i, j) > kKept / 2;
  });
}
// d_v[j] holds the kept probability of query i in column i.
Mask d_v_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.v_stride;
  return mask_of([&](int64_t s, int64_t h, int64_t i, int64_t j) {
    return at(r.d_input, p.v_at, stride, s, h, j, i) > kKept / 2;
  });
}
// With d_o all ones, d_q[i] holds scale p (keep / (1 - p) - delta) in column j, delta near 1: above
// zero where kept (about p / 4), else near -p.
Mask d_q_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.q_stride;
  const double middle = -0.4 * static_cast<double>(p.args.forward.scale) / kLength;
  return mask_of([&](int64_t s, int64_t h, int64_t i, int64_t j) {
    return at(r.d_input, 0, stride, s, h, i, j) > middle;
  });
}
// The same for d_k[j] in column i, times the size of q.
Mask d_k_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.k_stride;
  const double middle = -0.4 * 0x1p-10 * static_cast<double>(p.args.forward.scale) / kLength;
  return mask_of([&](int64_t s, int64_t h, int64_t i, int64_t j) {
    return at(r.d_input, p.k_at, stride, s, h, j, i) > middle;
  });
}

class AttentionDropout : public ::testing::TestWithParam<testing::Target> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  static Device device() { return {GetParam().kind, 0}; }
};

TEST_P(AttentionDropout, ForwardAndBackwardUseTheSameMask) {
  Problem p = unit_problem(GetParam().dtype, kRate);
  const Mask want = forward_mask(p, truth(p));
  Problem ones = p;
  for (double& x : ones.d_o) x = 1;
  const Context ctx{device(), nullptr, nullptr, 0};
  const AttentionBackwardArgs any = p.with_any_pointers();
  int tried = 0;
  for (const auto& f : attention_forward_impls()) {
    if (f.device != device().kind || !f.fits(ctx, any.forward)) continue;
    EXPECT_EQ(forward_mask(p, run(p, device(), &f, nullptr)), want) << f.name;
    ++tried;
  }
  for (const auto& b : attention_backward_impls()) {
    if (b.device != device().kind || !b.fits(ctx, any)) continue;
    EXPECT_EQ(d_v_mask(p, run(p, device(), nullptr, &b)), want) << b.name << " d_v";
    const Result r = run(ones, device(), nullptr, &b);
    EXPECT_EQ(d_q_mask(p, r), want) << b.name << " d_q";
    EXPECT_EQ(d_k_mask(p, r), want) << b.name << " d_k";
    ++tried;
  }
  EXPECT_GE(tried, 2);
}

// Shares of kept elements, and of pairs kept together, against their expectations: 5 standard
// deviations of a binomial count.
TEST_P(AttentionDropout, KeepsTheRightShareIndependently) {
  const Problem p = unit_problem(GetParam().dtype, kRate);
  const Mask m = forward_mask(p, run(p, device(), nullptr, nullptr));
  const auto expect_share = [](const char* what, double hits, double trials, double share) {
    const double deviation = std::sqrt(trials * share * (1 - share));
    EXPECT_NEAR(hits, trials * share, 5 * deviation) << what;
  };
  const auto pairs = [&](const char* what, size_t distance) {
    double both = 0, count = 0;
    for (size_t i = 0; i + distance < m.size(); ++i) both += m[i] && m[i + distance], ++count;
    expect_share(what, both, count, 0.8 * 0.8);
  };
  double kept = 0;
  for (const bool x : m) kept += x;
  expect_share("all", kept, static_cast<double>(m.size()), 0.8);
  pairs("neighbouring keys", 1);
  pairs("keys four apart", 4);
  pairs("neighbouring queries", kLength);
  pairs("neighbouring heads", kLength * kLength);
  pairs("neighbouring sequences", kHeads * kLength * kLength);
}

TEST_P(AttentionDropout, AnotherMicroStepHasAnotherMask) {
  Problem p = unit_problem(GetParam().dtype, kRate);
  const Mask one = forward_mask(p, run(p, device(), nullptr, nullptr));
  ++p.rng_state[1];
  const Mask two = forward_mask(p, run(p, device(), nullptr, nullptr));
  double equal = 0;
  for (size_t i = 0; i < one.size(); ++i) equal += one[i] == two[i];
  const double share = 0.8 * 0.8 + 0.2 * 0.2, n = static_cast<double>(one.size());
  EXPECT_NEAR(equal, n * share, 5 * std::sqrt(n * share * (1 - share)));
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionDropout, testing::all_targets(), testing::target_name);

}  // namespace
}  // namespace saturate::kernels
