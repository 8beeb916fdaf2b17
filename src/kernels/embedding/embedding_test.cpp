// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/testing/guarded.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

enum class Ids { spread, one_long_run, all_equal };

struct Case {
  const char* name;
  DType dtype;
  int64_t cols, vocab, sequences, longest;
  Ids ids = Ids::spread;
  float dropout = 0.0f;
  size_t workspace_bytes = kWorkspaceBytes;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr float kScale = 1.75f;
constexpr int64_t kUnusedRows = 5;  // at the end of the batch

struct Problem {
  Case c;
  std::vector<double> cu{0}, ids, positions, order;
  int64_t rows = 0, valid = 0, max_positions;
  std::vector<double> factor;  // dropout of each element

  explicit Problem(const Case& x)
      : c(x), max_positions(x.longest - 1) {  // the last position is clamped
    for (int64_t s = 0; s < c.sequences; ++s) {
      const int64_t length =
          s == 0 ? c.longest : (s * 7919 + 3) % (c.longest + 1);  // some are empty
      for (int64_t p = 0; p < length; ++p) {
        const int64_t t = static_cast<int64_t>(ids.size());
        const int64_t spread = t * 2654435761 % c.vocab;
        ids.push_back(static_cast<double>(c.ids == Ids::all_equal                    ? c.vocab - 1
                                          : c.ids == Ids::one_long_run && t % 8 != 0 ? 1
                                                                                     : spread));
        positions.push_back(static_cast<double>(p));
      }
      cu.push_back(static_cast<double>(ids.size()));
    }
    valid = static_cast<int64_t>(ids.size());
    rows = valid + kUnusedRows;
    ids.resize(static_cast<size_t>(rows), 0.0);
    positions.resize(static_cast<size_t>(rows), 0.0);
    order.resize(static_cast<size_t>(valid));
    std::iota(order.begin(), order.end(), 0.0);
    std::stable_sort(order.begin(), order.end(), [this](double a, double b) {
      return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(rows), 1e9);  // must not be read
    const double keep = 1.0 / (1.0 - static_cast<double>(c.dropout));
    for (int64_t e = 0; e < rows * c.cols; ++e) {
      const Random4 r = random_block(42, 7, 3, static_cast<uint64_t>(e) / 4);
      const bool kept = c.dropout == 0.0f || r.x[e % 4] >= dropout_threshold(c.dropout);
      factor.push_back(c.dropout == 0.0f ? 1.0 : (kept ? keep : 0.0));
    }
  }
};

struct Arrays {
  Guarded ids, positions, order, valid, cu, rng;
  Arrays(const Stream& s, const Problem& p)
      : ids(s, DType::i32, p.ids),
        positions(s, DType::i32, p.positions),
        order(s, DType::i32, p.order),
        valid(s, DType::i32, std::vector<double>{static_cast<double>(p.valid)}),
        cu(s, DType::i32, p.cu),
        rng(s, DType::i32, std::vector<double>{42, 0, 7, 0}) {}  // two 64-bit words, low half first
  EmbeddingArgs args(const Problem& p) const {
    return {.ids = ids.as<int32_t>(),
            .positions = positions.as<int32_t>(),
            .rows = p.rows,
            .cols = p.c.cols,
            .vocab = p.c.vocab,
            .max_positions = p.max_positions,
            .dtype = p.c.dtype,
            .scale = kScale,
            .dropout = p.c.dropout,
            .rng = {rng.as<uint64_t>(), 3}};
  }
};

class Embedding : public ::testing::TestWithParam<Case> {
 protected:
  static void forward(Device device) {
    const Case c = GetParam();
    const TestContext t(device);
    const Problem p(c);
    const Arrays arrays(t.stream, p);
    const auto table = testing::random_values(c.vocab * c.cols, c.dtype, 1);
    const auto position = testing::random_values(p.max_positions * c.cols, wide_of(c.dtype), 2);
    const Guarded d_table(t.stream, c.dtype, table),
        d_position(t.stream, wide_of(c.dtype), position);
    const Guarded y(t.stream, c.dtype, p.rows * c.cols);
    EmbeddingArgs args = arrays.args(p);
    args.table = d_table.data();
    args.position_table = d_position.data();
    args.y = y.data();
    embedding_forward(t.get(), args);
    const auto got = y.values();
    const double eps = epsilon_of(wide_of(c.dtype));
    for (int64_t e = 0; e < p.rows * c.cols; ++e) {
      const int64_t row = e / c.cols, col = e % c.cols;
      const auto id = static_cast<int64_t>(p.ids[row]);
      const auto at = std::min(static_cast<int64_t>(p.positions[row]), p.max_positions - 1);
      const double a = kScale * table[id * c.cols + col], b = position[at * c.cols + col];
      const double want = p.factor[e] * (a + b);
      ASSERT_NEAR(got[e], want,
                  epsilon_of(c.dtype) * std::fabs(want) +
                      3 * eps * p.factor[e] * (std::fabs(a) + std::fabs(b)))
          << "row " << row << " column " << col;
    }
  }

  static void backward(Device device) {
    const Case c = GetParam();
    TestContext t(device);
    t.workspace = Buffer(device, c.workspace_bytes);
    const Problem p(c);
    const Arrays arrays(t.stream, p);
    auto d_y = testing::random_values(p.rows * c.cols, c.dtype, 3);
    const DType wide = wide_of(c.dtype);
    const Guarded gradient(t.stream, c.dtype, d_y);
    // Rows not in use hold anything; they must not count.
    for (int64_t e = p.valid * c.cols; e < p.rows * c.cols; ++e) d_y[e] = NAN;
    gradient.set(d_y);
    const Guarded d_table(t.stream, wide, c.vocab * c.cols),
        d_position(t.stream, wide, p.max_positions * c.cols);
    EmbeddingBackwardArgs args{.forward = arrays.args(p),
                               .d_y = gradient.data(),
                               .order = arrays.order.as<int32_t>(),
                               .valid_rows = arrays.valid.as<int32_t>(),
                               .cu = arrays.cu.as<int32_t>(),
                               .sequences = c.sequences,
                               .d_table = d_table.data(),
                               .d_position_table = d_position.data()};
    std::vector<double> table(c.vocab * c.cols), position(p.max_positions * c.cols);
    std::vector<double> table_size = table, position_size = position, table_count = table,
                        position_count = position;
    for (int64_t e = 0; e < p.valid * c.cols; ++e) {
      const int64_t row = e / c.cols, col = e % c.cols;
      const int64_t i = static_cast<int64_t>(p.ids[row]) * c.cols + col;
      const int64_t j =
          std::min(static_cast<int64_t>(p.positions[row]), p.max_positions - 1) * c.cols + col;
      const double g = p.factor[e] * d_y[e];
      table[i] += kScale * g;
      table_size[i] += kScale * std::fabs(g);
      table_count[i] += 1;
      position[j] += g;
      position_size[j] += std::fabs(g);
      position_count[j] += 1;
    }
    const double eps = epsilon_of(wide);
    std::vector<char> first;
    for (const int times : {1, 2}) {
      args.accumulate = args.accumulate_positions = times == 2;
      embedding_backward(t.get(), args);
      if (times == 1) first = d_table.bytes();
      const auto got = d_table.values(), got_position = d_position.values();
      for (size_t e = 0; e < got.size(); ++e) {
        ASSERT_NEAR(got[e], times * table[e],
                    eps * (3 + std::sqrt(table_count[e])) * times * table_size[e])
            << "table element " << e << " after " << times;
      }
      for (size_t e = 0; e < got_position.size(); ++e) {
        ASSERT_NEAR(got_position[e], times * position[e],
                    eps * (3 + std::sqrt(position_count[e])) * times * position_size[e])
            << "position element " << e << " after " << times;
      }
    }
    args.accumulate = false;
    args.d_position_table = nullptr;
    embedding_backward(t.get(), args);
    EXPECT_EQ(first, d_table.bytes()) << "two runs differ";
  }

  static bool on_cpu() { return GetParam().dtype == DType::f32 || GetParam().dtype == DType::f64; }
};

TEST_P(Embedding, ForwardMatchesReferenceOnCpu) {
  if (!on_cpu()) GTEST_SKIP() << "CUDA only";
  forward({});
}
TEST_P(Embedding, BackwardMatchesReferenceOnCpu) {
  if (!on_cpu()) GTEST_SKIP() << "CUDA only";
  backward({});
}
TEST_P(Embedding, ForwardMatchesReferenceOnCuda) {
  if (GetParam().dtype == DType::f64) GTEST_SKIP() << "CPU only";
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  forward({DeviceKind::cuda, 0});
}
TEST_P(Embedding, BackwardMatchesReferenceOnCuda) {
  if (GetParam().dtype == DType::f64) GTEST_SKIP() << "CPU only";
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  backward({DeviceKind::cuda, 0});
}

constexpr DType f64 = DType::f64, f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(
    Cases, Embedding,
    ::testing::Values(Case{"one_column", f32, 1, 3, 2, 3},
                      Case{"odd", f32, 13, 50, 9, 11, Ids::spread, 0.3f},
                      Case{"wide", f32, 2056, 17, 3, 5, Ids::spread, 0.1f},
                      Case{"long_run", f32, 16, 200, 60, 40, Ids::one_long_run, 0.1f},
                      Case{"long_run_without_scratch", f32, 16, 200, 60, 40, Ids::one_long_run,
                           0.1f, 0},
                      Case{"all_equal", f32, 8, 4, 50, 33, Ids::all_equal},
                      Case{"doubles", f64, 20, 31, 12, 9, Ids::one_long_run, 0.25f},
                      Case{"bf16", bf16, 512, 300, 20, 32, Ids::spread, 0.1f},
                      Case{"bf16_long_run", bf16, 64, 300, 120, 50, Ids::one_long_run},
                      Case{"bf16_odd", bf16, 33, 90, 10, 12, Ids::one_long_run, 0.1f},
                      Case{"f16", f16, 72, 90, 10, 12, Ids::spread, 0.1f}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(EmbeddingRules, GradientMatchesCentralDifferences) {
  // The forward pass is linear in both tables, so differences are exact but for rounding.
  const TestContext t({});
  const Problem p({"", f64, 5, 7, 4, 4, Ids::one_long_run, 0.4f});
  const Arrays arrays(t.stream, p);
  const auto table = testing::random_values(7 * 5, f64, 1),
             weights = testing::random_values(p.rows * 5, f64, 2);
  const auto position = testing::random_values(p.max_positions * 5, f64, 3);
  const auto objective = [&](const std::vector<double>& a, const std::vector<double>& b) {
    const Guarded x(t.stream, f64, a), z(t.stream, f64, b), y(t.stream, f64, p.rows * 5);
    EmbeddingArgs args = arrays.args(p);
    args.table = x.data();
    args.position_table = z.data();
    args.y = y.data();
    embedding_forward(t.get(), args);
    const auto v = y.values();
    return std::inner_product(v.begin(), v.begin() + p.valid * 5, weights.begin(), 0.0);
  };
  const Guarded d_y(t.stream, f64, weights), d_table(t.stream, f64, int64_t{35});
  const Guarded d_position(t.stream, f64, p.max_positions * 5);
  embedding_backward(t.get(), {.forward = arrays.args(p),
                               .d_y = d_y.data(),
                               .order = arrays.order.as<int32_t>(),
                               .valid_rows = arrays.valid.as<int32_t>(),
                               .cu = arrays.cu.as<int32_t>(),
                               .sequences = p.c.sequences,
                               .d_table = d_table.data(),
                               .d_position_table = d_position.data()});
  const auto check = [&](const std::vector<double>& gradient, bool of_table) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      auto up = of_table ? table : position, down = up;
      up[i] += 0.5;
      down[i] -= 0.5;
      const double difference = of_table ? objective(up, position) - objective(down, position)
                                         : objective(table, up) - objective(table, down);
      EXPECT_NEAR(gradient[i], difference, 1e-12) << (of_table ? "table " : "position ") << i;
    }
  };
  check(d_table.values(), true);
  check(d_position.values(), false);
}

TEST(EmbeddingRules, UnknownIdsGiveZerosAndNoGradient) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const Guarded table(t.stream, f32, std::vector<double>{1, 2}),
        ids(t.stream, DType::i32, {-1, 0, 5});
    const Guarded y(t.stream, f32, int64_t{3}), d_y(t.stream, f32, {3, 4, 5}),
        order(t.stream, DType::i32, {0, 1, 2});
    const Guarded valid(t.stream, DType::i32, std::vector<double>{3}),
        d_table(t.stream, f32, int64_t{2});
    const EmbeddingArgs f{.table = table.data(),
                          .ids = ids.as<int32_t>(),
                          .y = y.data(),
                          .rows = 3,
                          .cols = 1,
                          .vocab = 2};
    embedding_forward(t.get(), f);
    EXPECT_EQ(y.values(), (std::vector<double>{0, 1, 0}));
    embedding_backward(t.get(), {.forward = f,
                                 .d_y = d_y.data(),
                                 .order = order.as<int32_t>(),
                                 .valid_rows = valid.as<int32_t>(),
                                 .d_table = d_table.data()});
    EXPECT_EQ(d_table.values(), (std::vector<double>{4, 0}));
  }
}

TEST(EmbeddingRules, TheZeroRowKeepsNoGradient) {
  for (const Device device : testing::devices()) {
    const TestContext t(device);
    const Guarded table(t.stream, f32, {1, 2, 3, 4, 5, 6}), ids(t.stream, DType::i32, {1, 0, 1});
    const Guarded d_y(t.stream, f32, {1, 2, 3, 4, 5, 6}), order(t.stream, DType::i32, {1, 0, 2});
    const Guarded valid(t.stream, DType::i32, std::vector<double>{3});
    // What a tied output has added before is cleared too.
    const Guarded d_table(t.stream, f32, {10, 20, 30, 40, 50, 60});
    EmbeddingBackwardArgs args{.forward = {.table = table.data(),
                                           .ids = ids.as<int32_t>(),
                                           .rows = 3,
                                           .cols = 2,
                                           .vocab = 3},
                               .d_y = d_y.data(),
                               .order = order.as<int32_t>(),
                               .valid_rows = valid.as<int32_t>(),
                               .d_table = d_table.data(),
                               .zero_row = 1,
                               .accumulate = true};
    embedding_backward(t.get(), args);
    EXPECT_EQ(d_table.values(), (std::vector<double>{13, 24, 0, 0, 50, 60}));
    args.accumulate = false;
    embedding_backward(t.get(), args);
    EXPECT_EQ(d_table.values(), (std::vector<double>{3, 4, 0, 0, 0, 0}));
  }
}

TEST(EmbeddingRules, RejectsBadArguments) {
  const TestContext t({});
  EXPECT_THROW(embedding_backward(t.get(), {.forward = {.vocab = 4}, .zero_row = 4}), Error);
  EXPECT_THROW(embedding_forward(t.get(), {.rows = 1, .cols = 1}), Error);
  EXPECT_THROW(embedding_forward(t.get(), {.rows = 0, .cols = 1, .dropout = 1.0f}), Error);
  EXPECT_THROW(embedding_backward(t.get(), {.forward = {.cols = 4}}), Error);
}

class EmbeddingParts : public testing::OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, EmbeddingParts, testing::all_targets(), testing::target_name);

// Two parts of the table, each with the gradient of two parts of the rows: what they have is what
// the whole has, and a row without ids is one of the table.
TEST_P(EmbeddingParts, JoinToTheWhole) {
  const Problem p({"", dtype(), 20, 12, 5, 17, Ids::spread, 0.25f});
  const Arrays arrays(stream(), p);
  const int64_t cols = p.c.cols, half = p.c.vocab / 2, rows = p.rows;
  const testing::Values table = random(p.c.vocab * cols, 1), d_y = random(rows * cols, 3);
  const auto part = [](const testing::Values& v, int64_t first, int64_t count) {
    return testing::Values(v.begin() + first, v.begin() + first + count);
  };
  const Guarded whole_table = array(table), whole = poison(rows * cols), whole_d_y = array(d_y),
                position = wide_array(wide_random(p.max_positions * cols, 2));
  EmbeddingArgs args = arrays.args(p);
  args.table = whole_table.data(), args.position_table = position.data(), args.y = whole.data();
  embedding_forward(ctx(), args);
  testing::Values found(static_cast<size_t>(rows * cols));
  for (int64_t v = 0; v < 2; ++v) {
    const Guarded mine = array(part(table, v * half * cols, half * cols)), y = poison(rows * cols);
    EmbeddingArgs lookup = arrays.args(p);
    lookup.table = mine.data(), lookup.vocab = half, lookup.first_id = v * half;
    lookup.dropout = 0, lookup.scale = 1, lookup.y = y.data();
    embedding_forward(ctx(), lookup);
    const testing::Values got = y.values();
    for (size_t i = 0; i < got.size(); ++i) found[i] += got[i];
  }
  const Guarded looked_up = array(found), y = poison(rows * cols);
  args.table = looked_up.data(), args.y = y.data();
  args.ids = nullptr, args.vocab = rows;
  embedding_forward(ctx(), args);
  EXPECT_EQ(y.bytes(), whole.bytes());

  const auto backward = [&](EmbeddingBackwardArgs b, int64_t vocab) {
    const Guarded d_table = wide_poison(vocab * cols),
                  d_position = wide_poison(p.max_positions * cols);
    b.forward.vocab = vocab;
    b.order = arrays.order.as<int32_t>(), b.valid_rows = arrays.valid.as<int32_t>();
    b.cu = arrays.cu.as<int32_t>(), b.sequences = p.c.sequences;
    b.d_table = d_table.data();
    embedding_backward(ctx(), b);
    b.d_table = nullptr, b.d_position_table = d_position.data();
    embedding_backward(ctx(), b);
    return std::pair(d_table.values(), d_position.values());
  };
  const auto want = backward({.forward = arrays.args(p), .d_y = whole_d_y.data()}, p.c.vocab);
  testing::Values d_table, d_position(want.second.size());
  for (int64_t v = 0; v < 2; ++v) {
    testing::Values sum(static_cast<size_t>(half * cols));
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 13}, {13, rows - 13}}) {
      const Guarded mine = array(part(d_y, first * cols, count * cols));
      EmbeddingBackwardArgs b{.forward = arrays.args(p), .d_y = mine.data()};
      b.forward.rows = count, b.forward.first_id = v * half;
      b.forward.rng.first_row = first, b.forward.rng.rows = rows;
      b.first_row = first, b.batch_rows = rows;
      const auto got = backward(b, half);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += got.first[i];
      for (size_t i = 0; v == 0 && i < d_position.size(); ++i) d_position[i] += got.second[i];
    }
    d_table.insert(d_table.end(), sum.begin(), sum.end());
  }
  const testing::Values slack(d_table.size(), 40 * wide_unit()),
      position_slack(d_position.size(), 40 * wide_unit());
  testing::expect_close("d_table", d_table, want.first, 0, slack);
  testing::expect_close("d_position", d_position, want.second, 0, position_slack);
}

}  // namespace
}  // namespace saturate::kernels
