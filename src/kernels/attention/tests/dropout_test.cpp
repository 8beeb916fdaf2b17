// SPDX-License-Identifier: Apache-2.0
// Dropout's mask, read back from the results: with q = 0 every probability is 1 / keys, and unit
// vectors in k, v and d_o put each element of the mask into an element of a result.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention/dropout.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/tune/tune.h"
#include "kernels/testing/attention_expect.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kHeads = 4;

// Heads are as wide as the longest sequence has keys.
struct MaskCase {
  const char* name;
  std::vector<int32_t> lengths;  // of queries and keys
  int64_t head_size;
  bool causal = false, packed = false;
};
const MaskCase kWhole{"whole", {64, 64, 64}, 64};
std::vector<MaskCase> mask_cases() {
  return {kWhole,
          {"odd", {63, 37, 64, 49}, 64, false, true},
          {"causal", {64, 61, 33}, 64, true, true},
          {"wide", {128, 101, 77}, 128, false, true},
          {"wide_causal", {127, 128, 90}, 128, true}};
}

using Mask = std::vector<bool>;  // (sequence, head, query, key): kept

Problem unit_problem(const MaskCase& c, DType t, float dropout) {
  Problem p(
      {c.name, c.lengths, c.lengths, kHeads, kHeads, c.head_size, c.causal, dropout, c.packed}, t);
  const AttentionArgs& a = p.args.forward;
  for (double& x : p.input) x = 0;
  for (double& x : p.d_o) x = 0;
  for (size_t s = 0; s < c.lengths.size(); ++s)
    for (int64_t i = 0; i < c.lengths[s]; ++i)
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t r = p.cu_q[s] + i, unit = h * c.head_size + i;
        p.input[r * a.q_stride + unit] = 0x1p-10;  // scores stay nearly 0
        p.input[p.k_at + r * a.k_stride + unit] = 1;
        p.input[p.v_at + r * a.v_stride + unit] = 1;
        p.d_o[r * a.o_stride + unit] = 1;
      }
  return p;
}

// An element's place: of the sequence's rows, and how many keys the query sees.
struct MaskElement {
  int64_t first_row, head, query, key;
  double seen;
};
// Where a query sees few keys, sums over them say too little: those are left out.
constexpr int64_t kFewKeys = 20;

template <class Kept>
Mask mask_of(const Problem& p, const Kept& kept) {
  Mask mask;
  for (size_t s = 0; s + 1 < p.cu_q.size(); ++s) {
    const int64_t first = p.cu_q[s], length = p.cu_q[s + 1] - first;
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        const int64_t seen = p.shape.causal ? i + 1 : length;
        for (int64_t j = 0; j < length; ++j)
          mask.push_back(j < seen && seen >= kFewKeys &&
                         kept(MaskElement{first, h, i, j, static_cast<double>(seen)}));
      }
  }
  return mask;
}
double at(const Problem& p, const Values& v, int64_t first, int64_t stride, const MaskElement& e,
          int64_t row, int64_t column) {
  const int64_t size = p.args.forward.head_size;
  return v[first + (e.first_row + row) * stride + e.head * size + column];
}

// p keep / (1 - p) is 1 / (0.8 seen) or 0; half of it parts the two whatever the rounding.
constexpr float kRate = 0.2f;

Mask forward_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.o_stride;
  return mask_of(p, [&](const MaskElement& e) {
    return at(p, r.o, 0, stride, e, e.query, e.key) > 0.5 / (0.8 * e.seen);
  });
}
// d_v[j] holds the kept probability of query i in column i.
Mask d_v_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.v_stride;
  return mask_of(p, [&](const MaskElement& e) {
    return at(p, r.d_input, p.v_at, stride, e, e.key, e.query) > 0.5 / (0.8 * e.seen);
  });
}
// With d_o all ones, d_q[i] holds scale p (keep / (1 - p) - delta) in column j, delta near 1: above
// zero where kept (about p / 4), else near -p.
Mask d_q_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.q_stride;
  const double middle = -0.4 * static_cast<double>(p.args.forward.scale);
  return mask_of(p, [&](const MaskElement& e) {
    return at(p, r.d_input, 0, stride, e, e.query, e.key) > middle / e.seen;
  });
}
// The same for d_k[j] in column i, times the size of q.
Mask d_k_mask(const Problem& p, const Result& r) {
  const int64_t stride = p.args.forward.k_stride;
  const double middle = -0.4 * 0x1p-10 * static_cast<double>(p.args.forward.scale);
  return mask_of(p, [&](const MaskElement& e) {
    return at(p, r.d_input, p.k_at, stride, e, e.key, e.query) > middle / e.seen;
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
  const Context ctx{device(), nullptr, nullptr, 0};
  bool hopper = false;
  for (const MaskCase& c : mask_cases()) {
    SCOPED_TRACE(c.name);
    Problem p = unit_problem(c, GetParam().dtype, kRate);
    const Mask want = forward_mask(p, truth(p));
    Problem ones = p;
    for (double& x : ones.d_o) x = 1;
    AttentionBackwardArgs any = p.with_any_pointers();
    any.workspace = any.delta;  // run() gives one
    any.workspace_bytes = attention_backward_hopper_workspace(any.forward);
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
      hopper = hopper || std::string(b.name) == "attention_backward_hopper_cuda";
      ++tried;
    }
    EXPECT_GE(tried, 2);
  }
  const bool narrow = wide_of(GetParam().dtype) != GetParam().dtype;
  if (device().is_cuda() && capability_of(Device{DeviceKind::cuda, 0}).major == 9) {
    EXPECT_EQ(hopper, narrow);
  }
}

// Shares of kept elements, and of pairs kept together, against their expectations: 5 standard
// deviations of a binomial count.
TEST_P(AttentionDropout, KeepsTheRightShareIndependently) {
  const Problem p = unit_problem(kWhole, GetParam().dtype, kRate);
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
  // A block of random numbers decides on keys one, eight and nine apart, and queries eight apart.
  constexpr size_t kRow = 64, kMatrix = kRow * kRow;
  pairs("neighbouring keys", 1);
  pairs("keys two apart", 2);
  pairs("keys eight apart", 8);
  pairs("keys nine apart", 9);
  pairs("neighbouring queries", kRow);
  pairs("queries eight apart", 8 * kRow);
  pairs("keys and queries eight apart", 8 * kRow + 8);
  pairs("neighbouring heads", kMatrix);
  pairs("neighbouring sequences", kHeads * kMatrix);
}

TEST_P(AttentionDropout, AnotherMicroStepHasAnotherMask) {
  Problem p = unit_problem(kWhole, GetParam().dtype, kRate);
  const Mask one = forward_mask(p, run(p, device(), nullptr, nullptr));
  ++p.rng_state[1];
  const Mask two = forward_mask(p, run(p, device(), nullptr, nullptr));
  double equal = 0;
  for (size_t i = 0; i < one.size(); ++i) equal += one[i] == two[i];
  const double share = 0.8 * 0.8 + 0.2 * 0.2, n = static_cast<double>(one.size());
  EXPECT_NEAR(equal, n * share, 5 * std::sqrt(n * share * (1 - share)));
}

// Ranks with some of the heads and some of the sequences draw what one rank alone draws there.
TEST_P(AttentionDropout, APartDrawsItsShareOfTheWholeMask) {
  const Context ctx{device(), nullptr, nullptr, 0};
  const Problem whole = unit_problem(kWhole, GetParam().dtype, kRate);
  const Mask all = forward_mask(whole, truth(whole));
  Problem part = unit_problem({"part", {64}, 64}, GetParam().dtype, kRate);
  RngRef& rng = part.args.forward.rng;
  rng.first_row = 128, rng.rows = 192;  // the third sequence
  rng.first_column = 2, rng.columns = 6;
  constexpr size_t kMatrix = 64 * 64, kShared = 2 * kMatrix;  // heads 2 and 3 are in both
  const auto share = [&](const Mask& m, size_t matrix) {
    const auto begin = m.begin() + static_cast<std::ptrdiff_t>(matrix * kMatrix);
    return Mask(begin, begin + static_cast<std::ptrdiff_t>(kShared));
  };
  const Mask want = share(all, 2 * kHeads + 2);
  EXPECT_EQ(share(forward_mask(part, truth(part)), 0), want) << "reference";
  EXPECT_EQ(share(forward_mask(part, run(part, device(), nullptr, nullptr)), 0), want);
  AttentionBackwardArgs any = part.with_any_pointers();
  any.workspace = any.delta;  // run() gives one
  any.workspace_bytes = attention_backward_hopper_workspace(any.forward);
  for (const auto& f : attention_forward_impls())
    if (f.device == device().kind && f.fits(ctx, any.forward)) {
      EXPECT_EQ(share(forward_mask(part, run(part, device(), &f, nullptr)), 0), want) << f.name;
    }
  for (const auto& b : attention_backward_impls())
    if (b.device == device().kind && b.fits(ctx, any)) {
      EXPECT_EQ(share(d_v_mask(part, run(part, device(), nullptr, &b)), 0), want) << b.name;
    }
}
// And a sequence may be cut between ranks at multiples of 16 queries.
TEST(AttentionDropoutRule, GoesOnAcrossACutOfASequence) {
  for (int64_t i = 0; i < 40; ++i)
    for (int64_t j = 0; j < 50; ++j)
      EXPECT_EQ(attention_dropout_keeps(1, 2, 3, 16384, 100, i + 16, j),
                attention_dropout_keeps(1, 2, 3, 16384, 116, i, j));
  const RngRef rows = attention_dropout_rows({.first_row = 5, .first_column = 2, .rows = 9}, 4);
  EXPECT_EQ(rows.first_row, 2 * 9 + 5);
  EXPECT_EQ(rows.first_column, 0);
  EXPECT_EQ(attention_dropout_rows({}, 4).rows, 4);
}

// The rule of dropout.h, written out once more.
TEST(AttentionDropoutRule, GivesEveryElementANumberOfItsOwn) {
  std::set<std::vector<uint64_t>> numbers;
  constexpr int64_t kRows = 40, kKeys = 50;  // of two sequences that follow each other
  for (int64_t first : {int64_t{0}, kRows})
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < kKeys; ++j) {
        const uint64_t block = attention_dropout_block(first, i, j);
        EXPECT_EQ(block >> 14, static_cast<uint64_t>(first + i - i / 8 % 2 * 8));
        numbers.insert({block, static_cast<uint64_t>(attention_dropout_word(i, j)),
                        static_cast<uint64_t>(j % 2)});
      }
  EXPECT_EQ(numbers.size(), static_cast<size_t>(2 * kRows * kKeys));
}
TEST(AttentionDropoutRule, RoundsTheRate) {
  EXPECT_EQ(attention_dropout_least(0.0f), 0u);
  EXPECT_EQ(attention_dropout_least(0.1f), 3277u);
  EXPECT_EQ(attention_dropout_least(0.999999f), 32767u);  // never all
  EXPECT_TRUE(attention_dropout_reaches(0x00010005u, 0, 5));
  EXPECT_FALSE(attention_dropout_reaches(0x00018005u, 1, 2));
  EXPECT_TRUE(attention_dropout_reaches(0x80020000u, 1, 2));  // the top bit does not count
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionDropout, testing::all_targets(), testing::target_name);

}  // namespace
}  // namespace saturate::kernels
