// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_group.h"

#include <cmath>
#include <memory>

#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Size {
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  bool sums = false;  // of A's columns as well, added to what is there where beta is not 0
};

// A product and the doubles it is compared with: any order of k fp32 additions, cut off or rounded,
// stays within k 2^-23 of the sum of magnitudes.
struct Member {
  Size size;
  MatmulArgs args;
  std::unique_ptr<Guarded> a, b, before, d, columns;
  std::vector<double> expected, bound, column, column_bound, column_before;

  Member(const TestContext& t, DType type, Size s, uint64_t key) : size(s) {
    const int64_t lda = (s.m + 7) / 8 * 8 + 8, ldb = (s.n + 7) / 8 * 8, ldd = (s.n + 1) / 2 * 2;
    const auto va = testing::random_values(s.k * lda, type, key),
               vb = testing::random_values(s.k * ldb, type, key + 1),
               vc = testing::random_values(s.m * ldd, DType::f32, key + 2);
    a = std::make_unique<Guarded>(t.stream, type, va);
    b = std::make_unique<Guarded>(t.stream, type, vb);
    before = std::make_unique<Guarded>(t.stream, DType::f32, vc);
    d = std::make_unique<Guarded>(t.stream, DType::f32, s.m * ldd);
    args = {.a = a->data(),
            .b = b->data(),
            .c = before->data(),
            .d = d->data(),
            .m = s.m,
            .n = s.n,
            .k = s.k,
            .lda = lda,
            .ldb = ldb,
            .ldc = ldd,
            .ldd = ldd,
            .ta = Transpose::yes,
            .ab_type = type,
            .d_type = DType::f32,
            .alpha = s.alpha,
            .beta = s.beta};
    column_before = testing::random_values(s.m, DType::f32, key + 7);
    columns = std::make_unique<Guarded>(t.stream, DType::f32, column_before);
    if (s.sums) {
      args.epilogue.column_sum = columns->as<float>();
      args.epilogue.add_to_column_sum = s.beta != 0;
    }
    for (int64_t i = 0; i < s.m; ++i) {
      const bool adds = !s.sums || s.beta != 0;
      column.push_back(adds ? column_before[static_cast<size_t>(i)] : 0);
      double sum_of_all = std::fabs(column.back());
      for (int64_t k = 0; s.sums && k < s.k; ++k) {
        column.back() += va[static_cast<size_t>(k * lda + i)];
        sum_of_all += std::fabs(va[static_cast<size_t>(k * lda + i)]);
      }
      column_bound.push_back(0x1p-23 * (static_cast<double>(s.k) + 4) * sum_of_all);
    }
    std::vector<double> sum(static_cast<size_t>(s.m * s.n)), magnitude(sum.size());
    for (int64_t k = 0; k < s.k; ++k) {
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          const double p =
              va[static_cast<size_t>(k * lda + i)] * vb[static_cast<size_t>(k * ldb + j)];
          sum[static_cast<size_t>(i * s.n + j)] += p;
          magnitude[static_cast<size_t>(i * s.n + j)] += std::fabs(p);
        }
      }
    }
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        const auto e = static_cast<size_t>(i * s.n + j);
        const double more = s.beta != 0 ? s.beta * vc[static_cast<size_t>(i * ldd + j)] : 0;
        expected.push_back(s.alpha * sum[e] + more);
        bound.push_back(0x1p-23 * (static_cast<double>(s.k) + 4) *
                            (std::fabs(s.alpha) * magnitude[e] + std::fabs(more)) +
                        epsilon_of(DType::f32) * std::fabs(expected.back()));
      }
    }
  }
};

void expect_doubles(const Member& x) {
  const auto sums = x.columns->values();
  for (size_t i = 0; i < sums.size(); ++i)
    ASSERT_LE(std::fabs(sums[i] - x.column[i]), x.column_bound[i])
        << "column " << i << " of " << x.size.m << "x" << x.size.n << "x" << x.size.k << ": "
        << sums[i] << " for " << x.column[i];
  const auto got = x.d->values();
  for (int64_t i = 0; i < x.size.m; ++i) {
    for (int64_t j = 0; j < x.size.n; ++j) {
      const auto e = static_cast<size_t>(i * x.size.n + j);
      const double value = got[static_cast<size_t>(i * x.args.ldd + j)];
      ASSERT_LE(std::fabs(value - x.expected[e]), x.bound[e])
          << x.size.m << "x" << x.size.n << "x" << x.size.k << " at (" << i << ", " << j
          << "): " << value << " for " << x.expected[e];
    }
  }
}

std::vector<unsigned char> bits_of(const Member& x) {
  std::vector<unsigned char> bits;
  for (const auto& bytes : {x.d->bytes(), x.columns->bytes()})
    bits.insert(bits.end(), bytes.begin(), bytes.end());
  return bits;
}

class MatmulGroup : public ::testing::TestWithParam<DType> {};

TEST_P(MatmulGroup, EveryProductMatchesDoublesAndWhatItIsAlone) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  std::vector<std::unique_ptr<Member>> members;
  uint64_t key = 1;
  // Sizes of one element, odd ones, whole tiles, sums of different lengths, more units than places.
  for (const Size s :
       {Size{8, 8, 1}, Size{256, 256, 128}, Size{201, 309, 1111, 0.5f, 0, true},
        Size{512, 256, 70, 1, 1, true}, Size{1, 2, 2000, 1, 0, true}, Size{136, 264, 500, 0.25f, 1},
        Size{768, 520, 64}, Size{2304, 1030, 96, 1, 0, true}, Size{3072, 2050, 33, 1, 1},
        Size{40, 2048, 640}}) {
    members.push_back(std::make_unique<Member>(t, GetParam(), s, key += 3));
  }
  std::vector<MatmulArgs> args;
  for (const auto& m : members) args.push_back(m->args);
  if (const Fit fit = matmul_group_fits(t.get(), args[0]); !fit) {
    ASSERT_NE(device_info({DeviceKind::cuda, 0}).compute_major, 9) << fit.reason;
    GTEST_SKIP() << fit.reason;
  }
  const auto poison = [&] {
    for (const auto& m : members) {
      fill_bytes(t.stream, m->d->data(), 0xFF, static_cast<size_t>(m->d->count()) * 4);
      m->columns->set(m->column_before);
    }
  };
  poison();
  matmul_group(t.get(), args);
  std::vector<std::vector<unsigned char>> first;
  for (const auto& m : members) {
    expect_doubles(*m);
    first.push_back(bits_of(*m));
  }
  for (const bool reversed : {false, true}) {
    poison();
    if (reversed) std::reverse(args.begin(), args.end());
    matmul_group(t.get(), args);
    for (size_t i = 0; i < members.size(); ++i) {
      EXPECT_EQ(first[i], bits_of(*members[i]))
          << "product " << i << (reversed ? ", others before it" : ", run again");
    }
  }
  poison();
  for (const auto& m : members) matmul_group(t.get(), {&m->args, 1});
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(first[i], bits_of(*members[i])) << "product " << i << ", alone";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulGroup, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& i) { return std::string(name_of(i.param)); });

TEST(MatmulGroup, SaysWhatCannotBeInAGroup) {
  const Context ctx{};
  MatmulArgs x{.m = 8, .n = 8, .k = 8, .tb = Transpose::yes, .ab_type = DType::bf16};
  EXPECT_STREQ(matmul_group_fits(ctx, x).reason,
               "groups are of weight gradients: A transposed, B as it is");
  x.ta = Transpose::yes;
  x.tb = Transpose::no;
  x.bias = &x;
  EXPECT_STREQ(matmul_group_fits(ctx, x).reason, "products in a group have no bias");
  x.bias = nullptr;
  EXPECT_FALSE(matmul_group_fits(ctx, x)) << "not on the CPU";
  EXPECT_EQ(matmul_group_places(ctx), 0);
  const std::vector<MatmulArgs> many(size_t{kMostInMatmulGroup} + 1, x);
  EXPECT_THROW(matmul_group(ctx, many), Error);
}

}  // namespace
}  // namespace saturate::kernels
