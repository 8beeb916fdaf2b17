// SPDX-License-Identifier: Apache-2.0
// On every processor: where OpenBLAS is preferred the kernel is called by itself.
#include "kernels/gemm/ordered/matmul_ordered_cpu.h"

#include "kernels/gemm/epilogue_reference.h"
#include "kernels/testing/guarded.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  DType type;
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false;
  int64_t pad = 0;  // added to every leading dimension
  EpilogueKind epilogue = EpilogueKind::plain;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class MatmulOrdered : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulOrdered, IsTheProductForEveryNumberOfThreads) {
  const Case& c = GetParam();
  const TestContext t(Device{});
  const int before = cpu_threads();
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const int64_t lda = (ta ? c.m : c.k) + c.pad, ldb = (tb ? c.k : c.n) + c.pad;
      const auto values = [&](int64_t count, unsigned seed) {
        return testing::random_values(count, c.type, seed);
      };
      const auto va = values((ta ? c.k : c.m) * lda, 1), vb = values((tb ? c.n : c.k) * ldb, 2),
                 vbias = values(c.n, 3), vd = values(c.m * (c.n + c.pad), 4),
                 vaux = values(c.m * c.n, 5);
      const Guarded a(t.stream, c.type, va), b(t.stream, c.type, vb), bias(t.stream, c.type, vbias),
          aux(t.stream, c.type, vaux);
      Guarded d(t.stream, c.type, c.m * (c.n + c.pad));
      MatmulArgs x{.a = a.data(),
                   .b = b.data(),
                   .c = d.data(),
                   .d = d.data(),
                   .bias = c.bias ? bias.data() : nullptr,
                   .m = c.m,
                   .n = c.n,
                   .k = c.k,
                   .lda = lda,
                   .ldb = ldb,
                   .ldc = c.n + c.pad,
                   .ldd = c.n + c.pad,
                   .ta = ta ? Transpose::yes : Transpose::no,
                   .tb = tb ? Transpose::yes : Transpose::no,
                   .ab_type = c.type,
                   .d_type = c.type,
                   .alpha = c.alpha,
                   .beta = c.beta};
      const bool slope = c.epilogue == EpilogueKind::derivative;
      x.epilogue = {.kind = c.epilogue,
                    .activation = ActivationKind::relu,
                    .aux = slope ? aux.data() : nullptr,
                    .ld_aux = c.n};
      ASSERT_EQ(matmul_ordered_fits(x, false).reason, nullptr);
      const ReferenceProduct r = reference_product(x, va, vb, vd, vbias, vaux);
      std::vector<char> first;
      for (const int threads : {1, 2, 3}) {
        set_cpu_threads(threads);
        if (c.beta != 0) d.set(vd);
        matmul_ordered_cpu(t.get(), x);
        const auto bits = d.bytes();
        if (first.empty()) first = bits;
        EXPECT_TRUE(bits == first) << threads << " threads";
      }
      const auto got = d.values();
      for (int64_t e = 0; e < c.m * c.n; ++e) {
        const auto at = static_cast<size_t>(e), in = static_cast<size_t>(e / c.n * x.ldd + e % c.n);
        ASSERT_LE(std::fabs(got[in] - r.d[at]), r.d_bound[at]) << ta << tb << " at " << e;
      }
      for (int64_t i = 0; i < c.m && c.pad > 0 && c.beta == 0; ++i) {
        ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * x.ldd + c.n)])) << "row " << i;
      }
    }
  }
  set_cpu_threads(before);
}

constexpr DType f32 = DType::f32, f64 = DType::f64;
INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulOrdered,
    ::testing::Values(
        Case{"one", f32, 1, 1, 1}, Case{"nothing", f32, 3, 5, 0, 1.0f, 0.5f, true},
        Case{"one_row", f32, 1, 24, 16}, Case{"odd", f32, 37, 53, 129, 1.0f, 1.0f, true},
        Case{"padded", f32, 65, 31, 40, 0.5f, 0.0f, true, 5},
        Case{"blocks_of_k", f32, 13, 70, 1027, 1.0f, 0.5f, true},
        Case{"blocks_of_rows", f32, 293, 33, 385}, Case{"slices", f32, 11, 1057, 33},
        Case{"shared", f32, 300, 260, 500, 2.0f, 1.0f}, Case{"doubles", f64, 150, 130, 401},
        Case{"doubles_odd", f64, 7, 263, 771, 0.25f, -1.0f, true, 3},
        Case{"relu", f32, 98, 67, 35, 1.0f, 0.0f, true, 0, EpilogueKind::activation},
        Case{"slope", f32, 31, 90, 519, 1.0f, 0.0f, false, 0, EpilogueKind::derivative}),
    [](const auto& i) { return std::string(i.param.name); });

// What MatmulRules.ARowHasTheSameBitsAmongAnyRows asks of the one that is chosen.
template <class T>
void expect_rows_alone(DType type) {
  constexpr int64_t kAll = 301;
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{1, 40}, {16, 16}, {29, 16}, {24, 512}, {64, 900}})
    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
      const auto values = [type](int64_t count, unsigned seed) {
        const std::vector<double> v = testing::random_values(count, type, seed);
        return std::vector<T>(v.begin(), v.end());
      };
      const std::vector<T> a = values(kAll * k, 1), b = values(n * k, 2);
      const auto rows = [&](int64_t first, int64_t count) {
        std::vector<T> d(static_cast<size_t>(count * n));
        matmul_ordered_cpu({}, {.a = &a[static_cast<size_t>(first * k)],
                                .b = b.data(),
                                .c = d.data(),
                                .d = d.data(),
                                .m = count,
                                .n = n,
                                .k = k,
                                .lda = k,
                                .ldb = tb == Transpose::yes ? k : n,
                                .ldc = n,
                                .ldd = n,
                                .tb = tb,
                                .ab_type = type,
                                .d_type = type});
        return d;
      };
      const std::vector<T> all = rows(0, kAll);
      for (int64_t count = 1; count < 40; ++count) {
        const std::vector<T> some = rows(kAll - count, count);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + (kAll - count) * n))
            << n << " x " << k << ", " << count << " rows";
      }
    }
}

TEST(MatmulOrderedRows, HaveTheSameBitsAmongAnyOthers) {
  expect_rows_alone<float>(f32);
  expect_rows_alone<double>(f64);
}

}  // namespace
}  // namespace saturate::kernels
