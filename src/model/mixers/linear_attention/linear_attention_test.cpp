// SPDX-License-Identifier: Apache-2.0
// The kernels against sums over all pairs in double precision.
#include "model/mixers/linear_attention/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::model {
namespace {

using testing::expect_close;
using testing::Guarded;
using testing::Values;

struct Case {
  std::vector<int32_t> cu;  // ends of the sequences; the first begins at 0
  int64_t rows, heads, head_size;
};
// Chunks that are full, partial and single; empty sequences; rows behind all of them; heads wider
// than a warp, odd, and as wide as fits.
const Case kCases[] = {{{0, 1}, 1, 1, 1},        {{0, 5, 5, 21, 54}, 60, 2, 8},
                       {{0, 16, 48}, 48, 3, 33}, {{0, 0, 100}, 101, 1, 64},
                       {{0, 7, 20}, 20, 2, 128}, {{0, 0}, 3, 2, 4}};

double feature(double x) { return x > 0 ? x + 1 : std::exp(x); }
double slope(double x) { return x > 0 ? 1 : std::exp(x); }

// Results of the reference, and by element the sum of the absolute values of what was added.
struct Sums {
  explicit Sums(int64_t count) : value(static_cast<size_t>(count)), size(value) {}
  Values value, size;
};

struct Reference {
  Reference(const Case& c, const Values& qkv)
      : c_(c), qkv_(qkv), o(c.rows * width()), denominator(c.rows * c.heads) {
    std::fill(denominator.value.begin(), denominator.value.end(), 1.0);
    for_each_row([&](int64_t h, int64_t begin, int64_t i) {
      double sum = kLinearAttentionEps;
      Values weights;
      for (int64_t j = begin; j <= i; ++j) sum += weights.emplace_back(weight(h, i, j));
      for (int64_t j = begin; j <= i; ++j) {
        for (int64_t d = 0; d < c_.head_size; ++d) {
          const double term = weights[j - begin] * at(2, j, h, d) / sum;
          o.value[row(i, h) + d] += term;
          o.size[row(i, h) + d] += std::fabs(term);
        }
      }
      denominator.value[h * c_.rows + i] = denominator.size[h * c_.rows + i] = sum;
    });
  }

  // From o and denominators as the kernel reads them.
  Sums backward(const Values& d_o, const Values& given_o, const Values& given) const {
    Sums g(c_.rows * 3 * width());
    for_each_row([&](int64_t h, int64_t begin, int64_t i) {
      const double below = given[h * c_.rows + i];
      double through = 0, through_size = 0;
      for (int64_t e = 0; e < c_.head_size; ++e) {
        through -= d_o[row(i, h) + e] * given_o[row(i, h) + e] / below;
        through_size += std::fabs(d_o[row(i, h) + e] * given_o[row(i, h) + e] / below);
      }
      for (int64_t j = begin; j <= i; ++j) {
        double d_weight = through, d_weight_size = through_size;
        const double w = weight(h, i, j);
        for (int64_t e = 0; e < c_.head_size; ++e) {
          const double term = d_o[row(i, h) + e] / below * at(2, j, h, e);
          d_weight += term;
          d_weight_size += std::fabs(term);
        }
        for (int64_t d = 0; d < c_.head_size; ++d) {
          const double q = at(0, i, h, d), k = at(1, j, h, d);
          add(g, 0, i, h, d, slope(q) * feature(k) * d_weight,
              slope(q) * feature(k) * d_weight_size);
          add(g, 1, j, h, d, slope(k) * feature(q) * d_weight,
              slope(k) * feature(q) * d_weight_size);
          const double d_v = w * d_o[row(i, h) + d] / below;
          add(g, 2, j, h, d, d_v, std::fabs(d_v));
        }
      }
    });
    return g;
  }

  int64_t width() const { return c_.heads * c_.head_size; }

 private:
  template <class Body>
  void for_each_row(const Body& body) const {
    for (size_t s = 0; s + 1 < c_.cu.size(); ++s)
      for (int64_t h = 0; h < c_.heads; ++h)
        for (int64_t i = c_.cu[s]; i < c_.cu[s + 1]; ++i) body(h, c_.cu[s], i);
  }
  int64_t row(int64_t i, int64_t h) const { return i * width() + h * c_.head_size; }
  int64_t place(int64_t part, int64_t i, int64_t h, int64_t d) const {
    return (i * 3 + part) * width() + h * c_.head_size + d;
  }
  double at(int64_t part, int64_t i, int64_t h, int64_t d) const {
    return qkv_[place(part, i, h, d)];
  }
  double weight(int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < c_.head_size; ++d)
      sum += feature(at(0, i, h, d)) * feature(at(1, j, h, d));
    return sum;
  }
  void add(Sums& g, int64_t part, int64_t i, int64_t h, int64_t d, double v, double size) const {
    g.value[place(part, i, h, d)] += v;
    g.size[place(part, i, h, d)] += size;
  }

  const Case& c_;
  const Values& qkv_;

 public:
  Sums o, denominator;
};

class LinearAttention : public testing::OnTarget {
 protected:
  // Every result is a nested sum of at most rows and head_size terms; exp, quotients and products
  // add a few units to each. Below f16's least normal number results are rounded to 2^-24.
  Values slack(const Case& c, Values size) const {
    const auto terms = static_cast<double>(c.rows + 2 * c.head_size + 20);
    const double subnormal = GetParam().dtype == DType::f16 ? 0x1p-25 : 0.0;
    for (double& v : size) v = v * terms * wide_unit() + subnormal;
    return size;
  }
  Values as_stored(Values v, DType type) const {
    for (double& x : v) x = testing::rounded(x, type);
    return v;
  }
  Guarded ints(const std::vector<int32_t>& v) const {
    return Guarded(stream(), DType::i32, Values(v.begin(), v.end()));
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, LinearAttention, testing::all_targets(), testing::target_name);

TEST_P(LinearAttention, MatchesTheSumsOverAllPairs) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.heads << " x " << c.head_size);
    const int64_t width = c.heads * c.head_size;
    const Values qkv = random(c.rows * 3 * width, 1), d_o = random(c.rows * width, 2);
    const Reference want(c, qkv);
    const Guarded g_qkv = array(qkv), cu = ints(c.cu), g_d_o = array(d_o),
                  o = poison(c.rows * width), denominator = wide_poison(c.rows * c.heads),
                  d_qkv = poison(c.rows * 3 * width);
    LinearAttentionBackwardArgs args{.forward = {.qkv = g_qkv.data(),
                                                 .o = o.data(),
                                                 .denominator = denominator.data(),
                                                 .cu = cu.as<int32_t>(),
                                                 .sequences = static_cast<int64_t>(c.cu.size()) - 1,
                                                 .rows = c.rows,
                                                 .heads = c.heads,
                                                 .head_size = c.head_size,
                                                 .dtype = dtype()},
                                     .d_o = g_d_o.data(),
                                     .d_qkv = d_qkv.data()};
    linear_attention_forward(ctx(), args.forward);
    expect_close("o", o.values(), want.o.value, unit() / 2, slack(c, want.o.size));
    expect_close("denominator", denominator.values(), want.denominator.value, 0,
                 slack(c, want.denominator.size));
    const std::vector<char> first = o.bytes();
    linear_attention_forward(ctx(), args.forward);
    EXPECT_EQ(o.bytes(), first) << "differs from run to run";

    const Values o_read = as_stored(want.o.value, dtype()),
                 denominator_read = as_stored(want.denominator.value, wide());
    o.set(o_read);
    denominator.set(denominator_read);
    linear_attention_backward(ctx(), args);
    const Sums gradient = want.backward(d_o, o_read, denominator_read);
    expect_close("d_qkv", d_qkv.values(), gradient.value, unit() / 2, slack(c, gradient.size));
    const std::vector<char> first_gradient = d_qkv.bytes();
    linear_attention_backward(ctx(), args);
    EXPECT_EQ(d_qkv.bytes(), first_gradient) << "differs from run to run";
  }
}

// What a sequence holds changes nothing in its neighbours, not even in the last bit.
TEST_P(LinearAttention, SequencesDoNotSeeEachOther) {
  const Case c{{0, 20, 37, 60}, 60, 2, 16};
  const int64_t width = c.heads * c.head_size;
  Values qkv = random(c.rows * 3 * width, 3);
  const Guarded g_qkv = array(qkv), cu = ints(c.cu), d_o = array(random(c.rows * width, 4)),
                o = poison(c.rows * width), denominator = wide_poison(c.rows * c.heads),
                d_qkv = poison(c.rows * 3 * width);
  const LinearAttentionBackwardArgs args{.forward = {.qkv = g_qkv.data(),
                                                     .o = o.data(),
                                                     .denominator = denominator.data(),
                                                     .cu = cu.as<int32_t>(),
                                                     .sequences = 3,
                                                     .rows = c.rows,
                                                     .heads = c.heads,
                                                     .head_size = c.head_size,
                                                     .dtype = dtype()},
                                         .d_o = d_o.data(),
                                         .d_qkv = d_qkv.data()};
  const auto run = [&] {
    linear_attention_forward(ctx(), args.forward);
    linear_attention_backward(ctx(), args);
    return std::pair(o.values(), d_qkv.values());
  };
  const auto before = run();
  for (int64_t i = 20 * 3 * width; i < 37 * 3 * width; ++i) qkv[i] = -3 * qkv[i];
  g_qkv.set(qkv);
  const auto after = run();
  for (int64_t i = 0; i < c.rows * width; ++i) {
    const bool middle = i / width >= 20 && i / width < 37;
    EXPECT_EQ(before.first[i] == after.first[i], !middle) << "o, row " << i / width;
  }
  for (int64_t i = 0; i < c.rows * 3 * width; ++i) {
    const bool middle = i / (3 * width) >= 20 && i / (3 * width) < 37;
    if (middle) continue;
    EXPECT_EQ(before.second[i], after.second[i]) << "d_qkv, row " << i / (3 * width);
  }
}

// Token after token with a state gives what the packed form gives; the last row stays behind.
TEST_P(LinearAttention, StepsGiveTheSameAsTheWholeSequence) {
  for (const int64_t head_size : {1, 24, 127}) {
    const int64_t rows = 3, length = 21, heads = 2, width = heads * head_size;
    const Case c{{0, 21, 42, 63}, rows * length, heads, head_size};
    const Values qkv = random(c.rows * 3 * width, 5);
    const Reference want(c, qkv);
    const int64_t state_count = heads * head_size * (head_size + 1);
    EXPECT_EQ(linear_attention_state_bytes(heads, head_size, dtype()),
              state_count * static_cast<int64_t>(size_of(wide())));
    const Guarded step_qkv = poison(rows * 3 * width), o = poison(rows * width),
                  state = wide_poison(rows * state_count), positions = ints({0, 0, 0}),
                  finished = ints({0, 0, 0});
    for (int64_t p = 0; p < length; ++p) {
      Values tokens, expected, size;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = r * length + p;
        const bool ended = r == 2 && p >= 5;
        tokens.insert(tokens.end(), qkv.begin() + at * 3 * width,
                      qkv.begin() + (at + 1) * 3 * width);
        for (int64_t d = 0; d < width; ++d) {
          expected.push_back(ended ? 0 : want.o.value[at * width + d]);
          size.push_back(want.o.size[at * width + d]);
        }
      }
      step_qkv.set(tokens);
      positions.set(Values(static_cast<size_t>(rows), static_cast<double>(p)));
      finished.set({0, 0, p >= 5 ? 1.0 : 0.0});
      const Values before = state.values();
      linear_attention_step(ctx(), {.qkv = step_qkv.data(),
                                    .o = o.data(),
                                    .state = state.data(),
                                    .positions = positions.as<int32_t>(),
                                    .finished = finished.as<int32_t>(),
                                    .rows = rows,
                                    .heads = heads,
                                    .head_size = head_size,
                                    .dtype = dtype()});
      expect_close("o", o.values(), expected, unit() / 2, slack(c, size));
      if (p < 5) continue;
      const Values after = state.values();
      EXPECT_TRUE(std::equal(after.begin() + 2 * state_count, after.end(),
                             before.begin() + 2 * state_count))
          << "the state of an ended row changed";
    }
  }
}

TEST(LinearAttentionErrors, SaysWhatIsWrong) {
  const auto message = [](const LinearAttentionArgs& a) -> std::string {
    try {
      linear_attention_forward({}, a);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message({.rows = -1}),
            "[linear_attention_forward] rows is -1: sizes may not be negative");
  EXPECT_EQ(message({.rows = 1, .heads = 1, .head_size = 1}),
            "[linear_attention_forward] qkv is null: it is needed here");
  EXPECT_EQ(message({}), "no error");
  float x = 0;
  const int32_t cu[] = {0, 1};
  const std::string refused = message({.qkv = &x,
                                       .o = &x,
                                       .denominator = &x,
                                       .cu = cu,
                                       .sequences = 1,
                                       .rows = 1,
                                       .heads = 1,
                                       .head_size = 1,
                                       .dtype = DType::bf16});
  EXPECT_NE(refused.find("the CPU computes in f32 and f64 only"), std::string::npos) << refused;
}

}  // namespace
}  // namespace saturate::model
