// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/sgemm/sgemm.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::random_values;
using testing::TestContext;
using Values = std::vector<double>;

struct Case {
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  int64_t pad = 0;          // added to every leading dimension
  bool c_is_other = false;  // C apart from D
  bool bias = false;
};

std::string text_of(const Case& c) {
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " pad " +
         std::to_string(c.pad) + " beta " + std::to_string(c.beta);
}

// One product and its answer in double precision.
class Product {
 public:
  Product(const TestContext& t, const Case& x, Transpose ta, Transpose tb)
      : x_(x),
        ta_(ta == Transpose::yes),
        tb_(tb == Transpose::yes),
        lda_((ta_ ? x.m : x.k) + x.pad),
        ldb_((tb_ ? x.k : x.n) + x.pad),
        ldd_(x.n + x.pad),
        a_values_(random_values((ta_ ? x.k : x.m) * lda_, DType::f32, 1)),
        b_values_(random_values((tb_ ? x.n : x.k) * ldb_, DType::f32, 2)),
        c_values_(random_values(x.m * ldd_, DType::f32, 3)),
        bias_values_(random_values(x.n, DType::f32, 4)),
        a_(t.stream, DType::f32, a_values_),
        b_(t.stream, DType::f32, b_values_),
        c_(t.stream, DType::f32, c_values_),
        bias_(t.stream, DType::f32, bias_values_),
        d_(t.stream, DType::f32, x.m * ldd_) {}

  MatmulArgs args() const {
    return {.a = a_.data(),
            .b = b_.data(),
            .c = x_.c_is_other ? c_.data() : d_.data(),
            .d = d_.data(),
            .bias = x_.bias ? bias_.data() : nullptr,
            .m = x_.m,
            .n = x_.n,
            .k = x_.k,
            .lda = lda_,
            .ldb = ldb_,
            .ldc = ldd_,
            .ldd = ldd_,
            .ta = ta_ ? Transpose::yes : Transpose::no,
            .tb = tb_ ? Transpose::yes : Transpose::no,
            .alpha = x_.alpha,
            .beta = x_.beta};
  }

  // NaN where beta is 0, so that what is not written or wrongly read shows.
  void poison(const TestContext& t) const {
    if (x_.beta != 0.0f && !x_.c_is_other) {
      d_.set(c_values_);
    } else {
      fill_bytes(t.stream, d_.data(), 0xFF, static_cast<size_t>(d_.count()) * 4);
    }
  }
  auto bytes() const { return d_.bytes(); }

  // A sum of k products in fp32 errs by at most about sqrt(k) half units of the sum of magnitudes
  // when roundings are independent; 3 more for alpha, beta and the bias.
  void check(const std::string& what) const {
    const Values got = d_.values();
    const double eps = epsilon_of(DType::f32);
    for (int64_t i = 0; i < x_.m; ++i) {
      for (int64_t j = 0; j < x_.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < x_.k; ++k) {
          const double p = a_values_[static_cast<size_t>(ta_ ? k * lda_ + i : i * lda_ + k)] *
                           b_values_[static_cast<size_t>(tb_ ? j * ldb_ + k : k * ldb_ + j)];
          sum += p;
          magnitude += std::fabs(p);
        }
        const auto at = static_cast<size_t>(i * ldd_ + j);
        const double old = x_.beta != 0.0f ? x_.beta * c_values_[at] : 0.0;
        const double bias = x_.bias ? bias_values_[static_cast<size_t>(j)] : 0.0;
        const double want = x_.alpha * sum + old + bias;
        const double bound = eps * (std::sqrt(static_cast<double>(x_.k)) + 3) *
                             (std::fabs(x_.alpha) * magnitude + std::fabs(old) + std::fabs(bias));
        ASSERT_LE(std::fabs(got[at] - want), bound)
            << what << " at (" << i << ", " << j << "): " << got[at] << " for " << want;
      }
      for (int64_t j = x_.n; j < ldd_ && (x_.beta == 0.0f || x_.c_is_other); ++j) {
        ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * ldd_ + j)]))
            << what << " wrote beyond column " << x_.n;
      }
    }
  }

 private:
  Case x_;
  bool ta_, tb_;
  int64_t lda_, ldb_, ldd_;
  Values a_values_, b_values_, c_values_, bias_values_;
  Guarded a_, b_, c_, bias_, d_;
};

const Case kCases[] = {
    {1, 1, 1},
    {1, 1, 1, 2.0f, 3.0f},
    {3, 5, 0, 1.0f, 2.0f},
    {3, 5, 0},
    {33, 17, 1, 1.0f, 0.0f, 3},
    {64, 64, 64},
    {127, 129, 31, 0.5f, -1.0f},
    {129, 257, 65, 1.0f, 1.0f, 1},
    {130, 260, 100, 1.0f, 0.0f, 4},
    {128, 256, 32, -2.0f, 0.5f, 8, true},
    {200, 300, 77, 1.0f, 0.25f, 2, true},
    {1, 300, 1025},
    {300, 1, 515, 1.0f, 0.0f, 3},
    {256, 512, 256, 1.0f, 1.0f},
    {260, 132, 2052},
};

class SgemmRungs : public ::testing::TestWithParam<int> {
 protected:
  const SgemmRung& rung() const { return sgemm_rungs()[static_cast<size_t>(GetParam())]; }
};

TEST_P(SgemmRungs, MatchesDoublePrecisionAndRepeats) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  int ran = 0;
  for (Case c : kCases) {
    for (const Transpose ta : {Transpose::no, Transpose::yes}) {
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        for (const bool bias : {false, true}) {
          c.bias = bias;
          const Product product(t, c, ta, tb);
          const std::string what = std::string(rung().name) + " " + text_of(c) +
                                   (ta == Transpose::yes ? " T" : " N") +
                                   (tb == Transpose::yes ? "T" : "N") + (bias ? " bias" : "");
          if (!rung().fits(t.get(), product.args())) continue;
          ++ran;
          product.poison(t);
          rung().launch(t.get(), product.args());
          product.check(what);
          if (HasFatalFailure()) return;
          const auto first = product.bytes();
          product.poison(t);
          rung().launch(t.get(), product.args());
          ASSERT_EQ(first, product.bytes()) << what << ": two runs differ";
        }
      }
    }
  }
  if (ran == 0) GTEST_SKIP() << "the rung fits nothing on this device";
}

TEST(SgemmRules, PlainRungsSayWhatTheyCannotDo) {
  const Context ctx;
  EXPECT_TRUE(sgemm_plain_fits(ctx, {}));
  EXPECT_STREQ(sgemm_plain_fits(ctx, {.ab_type = DType::bf16}).reason, "only f32 in and out");
  EXPECT_STREQ(sgemm_plain_fits(ctx, {.ta = Transpose::yes}).reason,
               "operands must not be transposed");
  const float bias = 0;
  EXPECT_STREQ(sgemm_plain_fits(ctx, {.bias = &bias}).reason, "no bias in this rung");
}

INSTANTIATE_TEST_SUITE_P(Ladder, SgemmRungs,
                         ::testing::Range(0, static_cast<int>(sgemm_rungs().size())),
                         [](const auto& i) {
                           std::string name = sgemm_rungs()[static_cast<size_t>(i.param)].name;
                           std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
                           return name;
                         });

}  // namespace
}  // namespace saturate::kernels
