// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/matmul.h"

#include "kernels/gemm/blas_library.h"
#include "kernels/gemm/epilogue_reference.h"
#include "kernels/gemm/matmul_plan.h"
#include "kernels/testing/guarded.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  DType ab, d;
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false;
  int64_t pad = 0;          // added to every leading dimension
  bool c_is_other = false;  // C apart from D
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Problem {
  Case c;
  Transpose ta, tb;
  Guarded a, b, c_array, d, bias;
  std::vector<double> expected, bound;

  static std::vector<double> matrix(const Case& c, bool transposed, int64_t rows, int64_t cols,
                                    uint64_t seed) {
    if (transposed) std::swap(rows, cols);
    return testing::random_values(rows * (cols + c.pad), c.ab, seed);
  }
  Problem(const TestContext& t, const Case& x, Transpose ta_, Transpose tb_)
      : c(x),
        ta(ta_),
        tb(tb_),
        a(t.stream, x.ab, matrix(x, ta_ == Transpose::yes, x.m, x.k, 1)),
        b(t.stream, x.ab, matrix(x, tb_ == Transpose::yes, x.k, x.n, 2)),
        c_array(t.stream, x.d, testing::random_values(x.m * (x.n + x.pad), x.d, 3)),
        d(t.stream, x.d, x.m * (x.n + x.pad)),
        bias(t.stream, x.ab, testing::random_values(x.n, x.ab, 4)) {
    if (c.beta != 0.0f && !c.c_is_other) d.set(c_array.values());
    reference();
  }

  MatmulArgs args() const {
    const bool t_a = ta == Transpose::yes, t_b = tb == Transpose::yes;
    return {.a = a.data(),
            .b = b.data(),
            .c = c.c_is_other ? c_array.data() : nullptr,
            .d = d.data(),
            .bias = c.bias ? bias.data() : nullptr,
            .m = c.m,
            .n = c.n,
            .k = c.k,
            .lda = (t_a ? c.m : c.k) + c.pad,
            .ldb = (t_b ? c.k : c.n) + c.pad,
            .ldc = c.n + c.pad,
            .ldd = c.n + c.pad,
            .ta = ta,
            .tb = tb,
            .ab_type = c.ab,
            .d_type = c.d,
            .alpha = c.alpha,
            .beta = c.beta};
  }

  void reference() {
    const auto va = a.values(), vb = b.values(), vc = c_array.values(), vbias = bias.values();
    const MatmulArgs x = args();
    const double sum_eps = c.ab == DType::f64 ? epsilon_of(DType::f64) : epsilon_of(DType::f32);
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const double p = va[ta == Transpose::yes ? k * x.lda + i : i * x.lda + k] *
                           vb[tb == Transpose::yes ? j * x.ldb + k : k * x.ldb + j];
          sum += p;
          magnitude += std::fabs(p);
        }
        const double scaled_c = c.beta * vc[i * x.ldd + j];
        const double v = c.alpha * sum + (c.beta != 0 ? scaled_c : 0) + (c.bias ? vbias[j] : 0);
        expected.push_back(v);
        // Rounding of each addition grows like sqrt(k); the output and the bias round once each.
        const double parts =
            std::fabs(c.alpha) * magnitude + std::fabs(scaled_c) + std::fabs(c.bias ? vbias[j] : 0);
        // Off 16-byte alignment the library may round the product to d_type before it adds the
        // bias.
        const bool early = c.bias && (c.n % 8 != 0 || c.k % 8 != 0);
        bound.push_back(sum_eps * (std::sqrt(static_cast<double>(c.k)) + 3) * parts +
                        2 * epsilon_of(c.d) * std::fabs(v) +
                        (early ? epsilon_of(c.d) * std::fabs(v - vbias[j]) : 0.0));
      }
    }
  }

  void check(const char* what) const {
    const auto got = d.values();
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        const size_t e = static_cast<size_t>(i * c.n + j);
        const double v = got[static_cast<size_t>(i * (c.n + c.pad) + j)];
        ASSERT_LE(std::fabs(v - expected[e]), bound[e])
            << what << " at (" << i << ", " << j << "): " << v << " for " << expected[e];
      }
      for (int64_t j = c.n; j < c.n + c.pad && c.beta == 0.0f; ++j) {
        ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * (c.n + c.pad) + j)]))
            << what << " wrote beyond column " << c.n;
      }
    }
  }
};

class Matmul : public ::testing::TestWithParam<Case> {
 protected:
  void run(Device device) {
    const TestContext t(device);
    for (const Transpose ta : {Transpose::no, Transpose::yes}) {
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        const Problem p(t, GetParam(), ta, tb);
        matmul(t.get(), p.args());
        p.check(ta == Transpose::yes ? (tb == Transpose::yes ? "TT" : "TN")
                                     : (tb == Transpose::yes ? "NT" : "NN"));
        if (HasFatalFailure()) return;
        if (GetParam().beta == 0.0f) {
          const auto first = p.d.bytes();
          matmul(t.get(), p.args());
          EXPECT_EQ(first, p.d.bytes()) << "two runs differ";
        }
      }
    }
  }
};

TEST_P(Matmul, MatchesReferenceOnCpu) {
  if (GetParam().ab != DType::f32 && GetParam().ab != DType::f64) GTEST_SKIP() << "CUDA only";
  run({});
}

TEST_P(Matmul, MatchesReferenceOnCuda) {
  if (GetParam().ab == DType::f64) GTEST_SKIP() << "CPU only";
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  run({DeviceKind::cuda, 0});
}

constexpr DType f64 = DType::f64, f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(
    Cases, Matmul,
    ::testing::Values(Case{"one", f32, f32, 1, 1, 1}, Case{"odd", f32, f32, 37, 53, 129},
                      Case{"wide", f32, f32, 3, 700, 300, 1.0f, 0.0f, true},
                      Case{"tall", f32, f32, 1500, 33, 160, 0.5f, 1.0f, true},
                      Case{"padded", f32, f32, 65, 31, 40, -2.0f, 0.0f, false, 5},
                      Case{"other_c", f32, f32, 20, 24, 16, 1.0f, 0.25f, true, 3, true},
                      Case{"no_k", f32, f32, 9, 7, 0, 1.0f, 0.0f, true},
                      Case{"no_k_beta", f32, f32, 9, 7, 0, 1.0f, 2.0f, false, 0, true},
                      Case{"doubles", f64, f64, 70, 45, 33, 1.5f, 1.0f, true},
                      Case{"doubles_odd", f64, f64, 1, 130, 257, 1.0f, 0.0f, false, 1},
                      Case{"bf16", bf16, bf16, 128, 192, 256, 1.0f, 0.0f, true},
                      Case{"bf16_odd", bf16, bf16, 33, 17, 65},
                      Case{"bf16_odd_bias", bf16, bf16, 31, 19, 7, 1, 1, true},
                      Case{"bf16_to_f32", bf16, f32, 64, 72, 1024, 0.125f, 1.0f},
                      Case{"bf16_to_f32_bias", bf16, f32, 64, 40, 32, 1.0f, 1.0f, true},
                      Case{"bf16_other_c", bf16, bf16, 64, 72, 64, 1.0f, 1.0f, true, 8, true},
                      Case{"bf16_deep", bf16, bf16, 64, 64, 8192},
                      Case{"f16", f16, f16, 96, 80, 64, 1.0f, 0.0f, true},
                      Case{"f16_to_f32", f16, f32, 40, 48, 512}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(MatmulRules, EmptyOutputDoesNothing) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    matmul(t.get(), {.m = 0, .n = 5, .k = 3});
    matmul(t.get(), {.m = 5, .n = 0, .k = 3});
  }
}

TEST(MatmulRules, BatchEqualsItsProducts) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    constexpr int64_t kM = 24, kN = 16, kK = 40, kBatch = 3;
    const Guarded a(t.stream, f32, testing::random_values(kBatch * kM * kK, f32, 1));
    const Guarded b(t.stream, f32, testing::random_values(kK * kN, f32, 2));  // one for all
    const Guarded bias(t.stream, f32, testing::random_values(kN, f32, 3));
    const Guarded together(t.stream, f32, kBatch * kM * kN);
    MatmulArgs x{.a = a.data(), .b = b.data(), .d = together.data(), .bias = bias.data()};
    x.m = kM, x.n = kN, x.k = kK, x.lda = kK, x.ldb = kN, x.ldd = kN;
    x.batch = kBatch, x.stride_a = kM * kK, x.stride_d = kM * kN;
    matmul(t.get(), x);
    const auto got = together.values(), va = a.values(), vb = b.values(), vbias = bias.values();
    for (size_t e = 0; e < got.size(); ++e) {
      double sum = vbias[e % kN], size = std::fabs(sum);
      for (size_t k = 0; k < kK; ++k) {
        const double p = va[e / kN * kK + k] * vb[k * kN + e % kN];
        sum += p, size += std::fabs(p);
      }
      ASSERT_LE(std::fabs(got[e] - sum), epsilon_of(f32) * (std::sqrt(double{kK}) + 3) * size) << e;
    }
  }
}

std::string message_of(const MatmulArgs& args) {
  try {
    matmul(Context{}, args);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(MatmulRules, SaysWhatIsWrong) {
  float x[64] = {};
  MatmulArgs ok{.a = x, .b = x, .d = x + 32, .m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldd = 4};
  EXPECT_EQ(message_of(ok), "no error");
  MatmulArgs bad = ok;
  bad.lda = 3;
  EXPECT_EQ(message_of(bad),
            "[matmul] a is stored as (4, 4) with leading dimension 3; it must be at least 4");
  bad = ok;
  bad.b = nullptr;
  EXPECT_EQ(message_of(bad), "[matmul] b is (4, 4) but its pointer is null");
  bad = ok;
  bad.k = -1;
  EXPECT_EQ(message_of(bad), "[matmul] sizes m 4, n 4, k -1 must not be negative");
  bad = ok;
  bad.batch = -1;
  EXPECT_EQ(message_of(bad), "[matmul] batch -1 must not be negative");
  bad = ok;
  bad.epilogue = {.kind = EpilogueKind::derivative, .ld_aux = 4};
  EXPECT_EQ(message_of(bad), "[matmul] aux is (4, 4) but its pointer is null");
  bad.epilogue.aux = x, bad.batch = 2;
  EXPECT_NE(message_of(bad).find("a batch of 2 takes neither aux nor column_sum"),
            std::string::npos);
  bad.batch = 1, bad.epilogue.kind = EpilogueKind::gated_derivative, bad.epilogue.slopes = true;
  bad.epilogue.ld_aux = 8, bad.ldd = bad.ldc = 8;
  EXPECT_EQ(message_of(bad), "[matmul] slopes are of an activation or a derivative");
  bad = ok;
  bad.d_type = DType::bf16;
  EXPECT_NE(message_of(bad).find("a and b are f32 and d is bf16"), std::string::npos);
  bad = ok;
  bad.c = bad.d;
  bad.beta = 1.0f;
  bad.ldc = 5;
  EXPECT_NE(message_of(bad).find("c is d but their leading dimensions 5 and 4 differ"),
            std::string::npos);
}

TEST(MatmulRules, SaysWhyItDoesNotFit) {
  float x[4] = {};
  MatmulArgs a{.a = x, .b = x, .d = x, .m = 1, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldd = 1};
  a.ab_type = a.d_type = DType::bf16;
  EXPECT_NE(message_of(a).find("the CPU multiplies f32 and f64 only"), std::string::npos);
  a.ab_type = a.d_type = DType::f32;
  a.lda = int64_t{1} << 31;  // which only BLAS cannot say
  const std::string message = message_of(a);
  if (blas_keeps_rows()) {
    EXPECT_NE(message.find("a size exceeds the integer type of BLAS"), std::string::npos);
  } else {
    EXPECT_EQ(message, "no error");
  }
}

TEST(MatmulRules, OneThreadOrManyGiveTheSameBits) {
  // The cut follows the number of threads; it must not change a bit. One shape for each way to cut.
  const TestContext t({});
  const int before = cpu_threads();
  for (const Case& c :
       {Case{"rows", f32, f32, 700, 72, 500}, Case{"columns", f32, f32, 96, 640, 900},
        Case{"both", f32, f32, 400, 380, 390, 1.0f, 1.0f, true},
        Case{"doubles", f64, f64, 450, 130, 401}}) {
    for (const Transpose ta : {Transpose::no, Transpose::yes}) {
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        Problem whole(t, c, ta, tb);
        whole.d.set(whole.c_array.values());
        set_cpu_threads(1);
        matmul(t.get(), whole.args());
        const auto alone = whole.d.bytes();
        for (const int threads : {2, 3, 4, 6}) {
          set_cpu_threads(threads);
          whole.d.set(whole.c_array.values());
          matmul(t.get(), whole.args());
          EXPECT_EQ(alone, whole.d.bytes()) << c.name << ", " << threads << " threads";
        }
      }
    }
  }
  set_cpu_threads(before);
}

// Small products, large ones and what lies between: OpenBLAS may have kernels of their own for each.
TEST(MatmulRules, ARowHasTheSameBitsAmongAnyRows) {
  constexpr int64_t kAll = 300;
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{16, 16}, {29, 16}, {64, 64}, {64, 512}, {512, 64}})
    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
      const auto values = [](int64_t count, unsigned seed) {
        const std::vector<double> v = testing::random_values(count, DType::f32, seed);
        return std::vector<float>(v.begin(), v.end());
      };
      const std::vector<float> a = values(kAll * k, 1), b = values(n * k, 2);
      const auto rows = [&](int64_t first, int64_t count) {
        std::vector<float> d(static_cast<size_t>(count * n));
        matmul({}, {.a = &a[static_cast<size_t>(first * k)],
                    .b = b.data(),
                    .d = d.data(),
                    .m = count,
                    .n = n,
                    .k = k,
                    .lda = k,
                    .ldb = tb == Transpose::yes ? k : n,
                    .ldc = n,
                    .ldd = n,
                    .tb = tb});
        return d;
      };
      const std::vector<float> all = rows(0, kAll);
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 1}, {3, 2}, {7, 5}, {100, 31}, {1, 299}}) {
        const std::vector<float> some = rows(first, count);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * n))
            << n << " x " << k << ", " << count << " rows from " << first;
      }
    }
}

TEST(MatmulRules, RunsInACapturedGraph) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const Problem p(t, {"graph", bf16, f32, 100, 64, 72}, Transpose::no, Transpose::yes);
  const Graph graph = Graph::capture(t.stream, [&] { matmul(t.get(), p.args()); });
  graph.launch(t.stream);
  p.check("graph");
}

// Of what feed_forward() asks the CPU: with the result alone, with what it was made of kept, and the slope.
TEST(MatmulEpilogue, MatchesDoublesOnCpu) {
  const TestContext t(Device{});
  constexpr int64_t m = 67, n = 40, k = 33;
  for (const DType type : {DType::f64, DType::f32}) {
    for (const ActivationKind kind : {ActivationKind::relu, ActivationKind::gelu_tanh}) {
      for (const int what : {0, 1, 2}) {
        const bool forward = what < 2;
        const auto va = testing::random_values(m * k, type, 1),
                   vb = testing::random_values(k * n, type, 2, 0.3),
                   vbias = testing::random_values(n, type, 3),
                   vaux = testing::random_values(m * n, type, 4);
        const Guarded a(t.stream, type, va), b(t.stream, type, vb), bias(t.stream, type, vbias),
            given(t.stream, type, vaux), kept(t.stream, type, m * n), d(t.stream, type, m * n);
        MatmulArgs x{.a = a.data(),
                     .b = b.data(),
                     .d = d.data(),
                     .bias = forward ? bias.data() : nullptr,
                     .m = m,
                     .n = n,
                     .k = k,
                     .lda = k,
                     .ldb = forward ? k : n,
                     .ldd = n,
                     .tb = forward ? Transpose::yes : Transpose::no,
                     .ab_type = type,
                     .d_type = type};
        x.epilogue = {.kind = forward ? EpilogueKind::activation : EpilogueKind::derivative,
                      .activation = kind,
                      .aux = what == 0 ? nullptr : (forward ? kept.data() : given.data()),
                      .ld_aux = n};
        const MatmulPlan plan = plan_matmul(t.get(), {}, x);
        EXPECT_TRUE(plan.epilogue_pays);
        plan.run(t.get(), x);
        const ReferenceProduct r = reference_product(x, va, vb, {}, vbias, vaux);
        const auto got = d.values(), values = kept.values();
        for (size_t e = 0; e < got.size(); ++e) {
          ASSERT_LE(std::fabs(got[e] - r.d[e]), r.d_bound[e] + 1e-9) << e;
          if (what != 1) continue;
          ASSERT_LE(std::fabs(values[e] - r.aux[e]), r.aux_bound[e]) << e;
        }
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
