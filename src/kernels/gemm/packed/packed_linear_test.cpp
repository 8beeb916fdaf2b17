// SPDX-License-Identifier: Apache-2.0
// Every instruction set that this processor has, against sums in double precision, on sizes that leave
// parts of tiles and panels; and bit for bit against each other, whatever rows come together.
#include "kernels/gemm/packed/packed_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "kernels/gemm/packed/packed_outputs.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

struct Case {
  int64_t rows, n, k;
  bool bias = true;
  std::optional<ActivationKind> activation = {};
};

std::vector<float> values(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::vector<float> v(static_cast<size_t>(count));
  uint64_t state = seed * 2654435761u + 1;
  for (float& x : v) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = scale * (static_cast<float>(state >> 40) / 8388608.0f - 1.0f);
  }
  return v;
}

struct Problem {
  explicit Problem(const Case& c)
      : size(c),
        x(values(c.rows * (c.k + 3), 1)),
        w(values(c.n * c.k, 2, 0.3f)),
        bias(values(c.n, 3)) {}
  Case size;
  std::vector<float> x, w, bias;
  int64_t ldx() const { return size.k + 3; }
  int64_t ldy() const { return size.n + 5; }
};

constexpr float kUntouched = -77.0f;

template <class Weights>
std::vector<float> run(const Problem& p, const Weights& w, CpuLevel level, int64_t first = 0,
                       int64_t rows = -1, const int32_t* listed = nullptr) {
  if (rows < 0) rows = p.size.rows;
  std::vector<float> y(static_cast<size_t>(rows * p.ldy()), kUntouched);
  packed_linear({}, {.x = p.x.data() + first * p.ldx(),
                     .w = w.view(),
                     .bias = p.size.bias ? p.bias.data() : nullptr,
                     .y = y.data(),
                     .rows = rows,
                     .ldx = p.ldx(),
                     .ldy = p.ldy(),
                     .activation = p.size.activation,
                     .level = level,
                     .listed = listed});
  return y;
}

double activated(const std::optional<ActivationKind>& kind, double v) {
  if (!kind) return v;
  switch (*kind) {
    case ActivationKind::identity:
      return v;
    case ActivationKind::relu:
      return std::max(v, 0.0);
    case ActivationKind::silu:
      return v / (1 + std::exp(-v));
    case ActivationKind::gelu_erf:
      return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case ActivationKind::gelu_tanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  }
  return NAN;
}

// What is rounded: to the nearest of 127 steps up to the largest of `count` numbers.
std::vector<double> rounded(const float* v, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(v[i]));
  std::vector<double> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double q = most == 0 ? 0 : std::nearbyint(v[i] * 127.0 / most);
    out[static_cast<size_t>(i)] = q * most / 127.0;
  }
  return out;
}

// What a product multiplies: `count` numbers as packing and the rounding of x leave them.
std::vector<double> taken(PackedType type, const float* v, int64_t count) {
  if (type == PackedType::s8) return rounded(v, count);
  std::vector<double> out(v, v + count);
  if (type == PackedType::bf16)
    for (double& x : out) x = to_float(to_bf16(static_cast<float>(x)));
  return out;
}

void check(const Problem& p, PackedType type, const std::vector<float>& y) {
  const Case& c = p.size;
  std::vector<std::vector<double>> w;
  for (int64_t j = 0; j < c.n; ++j) {
    w.push_back(taken(type, p.w.data() + j * c.k, c.k));
  }
  for (int64_t i = 0; i < c.rows; ++i) {
    const std::vector<double> x = taken(type, p.x.data() + i * p.ldx(), c.k);
    for (int64_t j = 0; j < p.ldy(); ++j) {
      const float got = y[static_cast<size_t>(i * p.ldy() + j)];
      if (j >= c.n) {
        ASSERT_EQ(got, kUntouched) << "row " << i << " column " << j << " was written";
        continue;
      }
      double sum = 0, size = 1;
      for (size_t k = 0; k < x.size(); ++k) {
        sum += x[k] * w[static_cast<size_t>(j)][k];
        size += std::abs(x[k] * w[static_cast<size_t>(j)][k]);
      }
      if (c.bias) sum += p.bias[static_cast<size_t>(j)];
      // Rounding of a chain of k sums; of s8 that of the end alone, and of one step of a number that
      // lies between two within the rounding of its quotient.
      const double steps = type == PackedType::s8 ? 8 : 4 + static_cast<double>(c.k);
      const double one_step = type == PackedType::s8 ? 0.3 / 127 / 127 : 0;
      ASSERT_NEAR(got, activated(c.activation, sum), 1.2e-7 * steps * size + one_step)
          << "row " << i << " column " << j;
    }
  }
}

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> all;
  for (int l = 0; l <= static_cast<int>(cpu_level()); ++l) all.push_back(static_cast<CpuLevel>(l));
  return all;
}

// AMX sums bf16 in an order of its own.
bool same_bits(PackedType type, CpuLevel a, CpuLevel b) {
  return type != PackedType::bf16 || (a == CpuLevel::amx) == (b == CpuLevel::amx);
}

constexpr PackedType kTypes[] = {PackedType::f32, PackedType::s8, PackedType::bf16};
const Case kCases[] = {{1, 1, 1},
                       {1, 17, 5, false},
                       {2, 16, 4},
                       {3, 33, 7},
                       {5, 150, 65, true, ActivationKind::relu},
                       {6, 64, 128},
                       {7, 129, 31, true, ActivationKind::silu},
                       {13, 200, 130, true, ActivationKind::gelu_erf},
                       {64, 48, 515, false, ActivationKind::gelu_tanh}};

TEST(PackedLinear, EveryInstructionSetComputesTheSumsOfDoublePrecision) {
  for (const Case& c : kCases) {
    const Problem p(c);
    for (const PackedType type : kTypes) {
      const PackedWeights w(type, p.w.data(), c.n, c.k);
      for (const CpuLevel level : levels()) {
        SCOPED_TRACE(::testing::Message() << c.rows << "x" << c.n << "x" << c.k << " type "
                                          << int(type) << " level " << int(level));
        check(p, type, run(p, w, level));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PackedLinear, ARowHasTheSameBitsOnEveryInstructionSetAndAmongAnyRows) {
  for (const Case& c : kCases) {
    const Problem p(c);
    for (const PackedType type : kTypes) {
      const PackedWeights w(type, p.w.data(), c.n, c.k);
      const std::vector<float> expected = run(p, w, CpuLevel::plain);
      for (const CpuLevel level : levels()) {
        const std::vector<float> all = run(p, w, level);
        if (same_bits(type, level, CpuLevel::plain)) {
          ASSERT_EQ(all, expected) << "level " << int(level) << " rows " << c.rows;
        }
        for (int64_t i = 0; i < c.rows; ++i) {
          const std::vector<float> alone = run(p, w, level, i, 1);
          ASSERT_EQ(std::memcmp(alone.data(), all.data() + i * p.ldy(),
                                sizeof(float) * static_cast<size_t>(c.n)),
                    0)
              << "row " << i << " of " << c.rows << " alone, level " << int(level);
        }
      }
    }
  }
}

// Of those that are not listed x is no number, which would show if it were read into another row.
TEST(PackedLinear, RowsThatAreNotListedAreLeftAsTheyAre) {
  for (const Case& c : kCases) {
    const Problem whole(c);
    Problem p(c);
    for (const int64_t every : {1, 2, 3, 100}) {
      std::vector<int32_t> list{0};
      p.x = whole.x;
      for (int64_t i = 0; i < c.rows; ++i) {
        if (i % every == every - 1) {
          list.push_back(static_cast<int32_t>(i));
          ++list[0];
        } else {
          std::fill_n(p.x.begin() + i * p.ldx(), c.k, NAN);
        }
      }
      for (const PackedType type : kTypes) {
        const PackedWeights w(type, p.w.data(), c.n, c.k);
        for (const CpuLevel level : levels()) {
          if (level == CpuLevel::amx && type != PackedType::f32) continue;  // computes all
          std::vector<float> expected = run(whole, w, level);
          for (int64_t i = 0; i < c.rows; ++i) {
            if (i % every != every - 1)
              std::fill_n(expected.begin() + i * p.ldy(), p.ldy(), kUntouched);
          }
          ASSERT_EQ(run(p, w, level, 0, -1, list.data()), expected)
              << c.rows << "x" << c.n << "x" << c.k << " type " << int(type) << " level "
              << int(level) << ", every " << every;
        }
      }
    }
  }
}

TEST(PackedLinear, ThreadsShareThePanelsWithoutAChange) {
  const Problem p({.rows = 40, .n = 1000, .k = 256});
  for (const PackedType type : kTypes) {
    const PackedWeights w(type, p.w.data(), 1000, 256);
    const std::vector<float> shared = run(p, w, cpu_level());
    const InOneThread alone;
    EXPECT_EQ(run(p, w, cpu_level()), shared);
  }
}

// 127 * 127 * k, where sums of two products in 16 bits would saturate; of positive rows and of negative ones,
// whose sizes AVX2 multiplies with weights of which -128 is one.
TEST(PackedLinear, TheLargestSumsOfInt8AreExact) {
  constexpr int64_t kK = 1000;
  for (const int64_t negative : {0, 1, 4}) {  // rows
    Problem p({.rows = 4, .n = 20, .k = kK, .bias = false});
    std::fill(p.x.begin(), p.x.end(), 1.0f);
    std::fill_n(p.x.begin(), negative * p.ldx(), -1.0f);
    for (size_t i = 0; i < p.w.size(); ++i) p.w[i] = i / kK % 2 == 0 ? 1.0f : -1.0f;
    const PackedWeights w(PackedType::s8, p.w.data(), 20, kK);
    for (const CpuLevel level : levels()) {
      const std::vector<float> y = run(p, w, level);
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < 20; ++j) {
          const float expected = (j % 2 == 0) == (i >= negative) ? 1000.0f : -1000.0f;
          EXPECT_NEAR(y[static_cast<size_t>(i * p.ldy() + j)], expected, 1e-3f) << i << " " << j;
        }
      }
    }
  }
}

// Rows without a negative number have a kernel of their own where they are alone, and none among others.
TEST(PackedLinear, ARowThatIsNotNegativeHasTheSameBitsAmongAnyRows) {
  for (const Case& c : kCases) {
    Problem p(c);
    std::vector<float> mixed = p.x;
    for (float& v : p.x) v = std::max(v, 0.0f);
    const PackedWeights w(PackedType::s8, p.w.data(), c.n, c.k);
    const std::vector<float> expected = run(p, w, CpuLevel::plain);
    Problem among = p;
    std::copy_n(mixed.end() - p.ldx(), p.ldx(),
                among.x.end() - p.ldx());  // the last one is as it was
    for (const CpuLevel level : levels()) {
      ASSERT_EQ(run(p, w, level), expected) << "level " << int(level) << " rows " << c.rows;
      const std::vector<float> y = run(among, w, level);
      const size_t others = static_cast<size_t>((c.rows - 1) * p.ldy());
      ASSERT_TRUE(
          std::equal(y.begin(), y.begin() + static_cast<ptrdiff_t>(others), expected.begin()))
          << "level " << int(level) << " rows " << c.rows;
    }
  }
}

// So no processor's own order is left to chance: the chain of fused multiply-adds of f32.
TEST(PackedLinear, Bf16SumsAsF32DoesWithRoundedNumbers) {
  for (const Case& c : kCases) {
    const Problem p(c);
    Problem halves(c);
    for (float& v : halves.x) v = to_float(to_bf16(v));
    for (float& v : halves.w) v = to_float(to_bf16(v));
    const PackedWeights wide(PackedType::f32, halves.w.data(), c.n, c.k);
    const PackedWeights narrow(PackedType::bf16, p.w.data(), c.n, c.k);
    EXPECT_EQ(narrow.bytes() * 2, wide.bytes() + (c.k % 2 != 0 ? wide.bytes() / c.k : 0));
    for (const CpuLevel level : levels()) {
      if (!same_bits(PackedType::bf16, level, CpuLevel::plain)) continue;
      EXPECT_EQ(run(p, narrow, level), run(halves, wide, level)) << "level " << int(level);
    }
  }
}

// Operands, products and results below the least normal number, and sums that pass through it.
TEST(PackedLinear, Bf16TakesDenormalsForZerosEverywhere) {
  Problem p({.rows = 5, .n = 20, .k = 70, .bias = false});
  for (size_t i = 0; i < p.x.size(); ++i) p.x[i] *= i % 3 == 0 ? 0x1p-125f : 0x1p-70f;
  for (size_t i = 0; i < p.w.size(); ++i) p.w[i] *= i % 5 == 0 ? 0x1p-124f : 0x1p-56f;
  const PackedWeights w(PackedType::bf16, p.w.data(), 20, 70);
  const std::vector<float> expected = run(p, w, CpuLevel::plain);
  for (const CpuLevel level : levels()) {
    const std::vector<float> y = run(p, w, level);
    if (same_bits(PackedType::bf16, level, CpuLevel::plain)) {
      EXPECT_EQ(y, expected) << int(level);
    }
#if defined(__x86_64__)
    for (const float v : y) EXPECT_FALSE(std::fpclassify(v) == FP_SUBNORMAL);
#endif
  }
  // And the caller has its own denormals again.
  volatile float tiny = 0x1p-120f;
  tiny = tiny * 0x1p-10f;
  EXPECT_NE(tiny, 0.0f);
}

TEST(PackedLinear, WhatWasRoundedToInt8KeepsItsSteps) {
  const Case c{.rows = 6, .n = 40, .k = 77};
  Problem p(c);
  const PackedWeights first(PackedType::s8, p.w.data(), c.n, c.k);
  for (int64_t j = 0; j < c.n; ++j) {
    const std::vector<double> r = rounded(p.w.data() + j * c.k, c.k);
    for (int64_t i = 0; i < c.k; ++i) {
      p.w[static_cast<size_t>(j * c.k + i)] = static_cast<float>(r[static_cast<size_t>(i)]);
    }
  }
  const PackedWeights again(PackedType::s8, p.w.data(), c.n, c.k);
  EXPECT_EQ(std::memcmp(first.view().panels, again.view().panels, 3 * 20 * 64), 0);
}

TEST(PackedLinear, RowsComeBackAsTheyWereRounded) {
  const int64_t n = 37, k = 23;
  const std::vector<float> w = values(n * k, 4);
  const std::vector<int32_t> ids{36, 0, 15, 16, -1, 37, 16};
  for (const PackedType type : kTypes) {
    const PackedWeights packed(type, w.data(), n, k);
    std::vector<float> out(ids.size() * static_cast<size_t>(k), kUntouched);
    unpack_rows(packed.view(), ids.data(), std::ssize(ids), out.data());
    for (size_t t = 0; t < ids.size(); ++t) {
      const int64_t row = ids[t];
      const float* const from = w.data() + row * k;
      float most = 0;
      for (int64_t c = 0; c < k && row >= 0 && row < n; ++c)
        most = std::max(most, std::abs(from[c]));
      const float scale = most / 127.0f;
      for (int64_t c = 0; c < k; ++c) {
        const float got = out[t * static_cast<size_t>(k) + static_cast<size_t>(c)];
        if (row < 0 || row >= n) {
          EXPECT_EQ(got, 0);
        } else if (type == PackedType::f32) {
          EXPECT_EQ(got, from[c]);
        } else if (type == PackedType::bf16) {
          EXPECT_EQ(got, to_float(to_bf16(from[c])));
        } else {
          EXPECT_EQ(got, std::nearbyint(from[c] / scale) * scale) << row << " " << c;
        }
      }
    }
  }
}

TEST(PackedLinear, RowsOfZerosAndRowsThatAreNotFinite) {
  for (const PackedType type : kTypes) {
    Problem p({.rows = 4, .n = 18, .k = 9});
    std::fill_n(p.x.begin(), p.ldx(), 0.0f);
    p.x[static_cast<size_t>(p.ldx() + 2)] = NAN;
    p.x[static_cast<size_t>(2 * p.ldx() + 8)] = INFINITY;
    const PackedWeights w(type, p.w.data(), 18, 9);
    for (const CpuLevel level : levels()) {
      const std::vector<float> y = run(p, w, level);
      for (int64_t j = 0; j < 18; ++j) {
        EXPECT_EQ(y[static_cast<size_t>(j)], p.bias[static_cast<size_t>(j)]);
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(p.ldy() + j)]));
        EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(2 * p.ldy() + j)]));
        EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(3 * p.ldy() + j)]));
      }
    }
  }
}

// From a few bytes to more than a block, in an order that leaves the ends of blocks over.
TEST(PackedLinear, MatricesThatShareMemoryKeepTheirOwn) {
  PanelMemory memory;
  std::vector<Problem> problems;
  std::vector<PackedWeights> shared;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3, 5},
                             {2100, 300},
                             {40, 17},
                             {500, 256},
                             {16, 1},
                             {1200, 500},
                             {33, 65}}) {
    for (const PackedType type : kTypes) {
      problems.emplace_back(Case{.rows = 2, .n = n, .k = k});
      const float* const w = problems.back().w.data();
      shared.emplace_back(type, w, n, k, &memory);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(shared.back().view().panels) % 64, 0u);
    }
  }
  for (size_t i = 0; i < shared.size(); ++i) {
    const Problem& p = problems[i];
    const PackedWeights own(shared[i].view().type, p.w.data(), p.size.n, p.size.k);
    EXPECT_EQ(own.bytes(), shared[i].bytes());
    ASSERT_EQ(run(p, shared[i], cpu_level()), run(p, own, cpu_level())) << i;
  }
}

TEST(PackedLinear, RefusesSizesThatCannotBe) {
  const std::vector<float> w(16, 1.0f);
  EXPECT_THROW(PackedWeights(PackedType::f32, w.data(), 0, 4), Error);
  const PackedWeights packed(PackedType::f32, w.data(), 4, 4);
  float x[4] = {}, y[4] = {};
  EXPECT_THROW(
      packed_linear({}, {.x = x, .w = packed.view(), .y = y, .rows = 1, .ldx = 3, .ldy = 4}),
      Error);
  EXPECT_THROW(packed_linear({}, {.w = packed.view(), .y = y, .rows = 1, .ldx = 4, .ldy = 4}),
               Error);
}

TEST(PackedOutputs, HaveTheBitsOfTheWhole) {
  Problem p({.rows = 5, .n = 67, .k = 70});
  const std::vector<int32_t> chosen = {0,  3,  4,  15, 16, 17, 18, 19, 20,
                                       21, 22, 23, 33, 48, 63, 64, 66};
  Problem part = p;
  part.size.n = static_cast<int64_t>(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) part.bias[i] = p.bias[static_cast<size_t>(chosen[i])];
  for (const PackedType type : {PackedType::f32, PackedType::bf16, PackedType::s8}) {
    const PackedWeights whole(type, p.w.data(), p.size.n, p.size.k);
    const PackedOutputs some(whole.view(), chosen);
    const std::vector<float> y = run(p, whole, cpu_level());
    const std::vector<float> few = run(part, some, cpu_level());
    for (int64_t r = 0; r < p.size.rows; ++r) {
      for (size_t i = 0; i < chosen.size(); ++i) {
        EXPECT_EQ(few[static_cast<size_t>(r * part.ldy()) + i],
                  y[static_cast<size_t>(r * p.ldy() + chosen[i])])
            << "row " << r << " output " << chosen[i];
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
