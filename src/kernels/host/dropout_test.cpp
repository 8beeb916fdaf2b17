// SPDX-License-Identifier: Apache-2.0
// Masks do not depend on how a matrix lies over ranks: each part draws what one rank would draw
// there.
#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "kernels/activation/activation.h"
#include "kernels/embedding/embedding.h"
#include "kernels/norm/norm.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::OnTarget;
using testing::TestRng;
using testing::Values;

constexpr float kDrop = 0.4f;

class CutMasksOn : public OnTarget {
 protected:
  // What each kernel makes of a (rows, cols) matrix of ones: nothing but its mask.
  using Mask = std::function<Values(int64_t rows, int64_t cols, RngRef rng)>;

  Guarded ones(int64_t count) const { return array(Values(static_cast<size_t>(count), 1.0)); }
  Guarded wide_ones(int64_t count) const {
    return wide_array(Values(static_cast<size_t>(count), 1.0));
  }
  Guarded integers(const Values& v) const { return Guarded(stream(), DType::i32, v); }
  static Values counting(int64_t count) {
    Values v(static_cast<size_t>(count));
    std::iota(v.begin(), v.end(), 0.0);
    return v;
  }

  Mask activation(bool gated, bool backward) {
    return [=, this](int64_t rows, int64_t cols, RngRef rng) {
      const int64_t x_cols = gated ? 2 * cols : cols;
      const Guarded x = ones(rows * x_cols), d_y = ones(rows * cols), y = poison(rows * cols);
      const Guarded d_x = poison(rows * x_cols);
      const ActivationArgs args{.gated = gated,
                                .x = x.data(),
                                .y = y.data(),
                                .rows = rows,
                                .cols = cols,
                                .dtype = dtype(),
                                .dropout = kDrop,
                                .rng = rng};
      if (!backward) {
        activation_forward(ctx(), args);
        return y.values();
      }
      activation_backward(ctx(), {.forward = args, .d_y = d_y.data(), .d_x = d_x.data()});
      Values all = d_x.values(), gates;
      for (int64_t r = 0; r < rows; ++r) {
        gates.insert(gates.end(), all.begin() + r * x_cols, all.begin() + r * x_cols + cols);
      }
      return gates;
    };
  }

  Mask norm() {
    return [this](int64_t rows, int64_t cols, RngRef rng) {
      const Guarded x = array(Values(static_cast<size_t>(rows * cols), 0.0));
      const Guarded branch = ones(rows * cols), sum = poison(rows * cols), y = poison(rows * cols);
      const Guarded weight = wide_ones(cols), mean = wide_poison(rows), rstd = wide_poison(rows);
      norm_forward(ctx(), {.x = x.data(),
                           .branch = branch.data(),
                           .sum = sum.data(),
                           .weight = weight.data(),
                           .y = y.data(),
                           .mean = mean.data(),
                           .rstd = rstd.data(),
                           .rows = rows,
                           .cols = cols,
                           .dtype = dtype(),
                           .dropout = kDrop,
                           .rng = rng});
      return sum.values();
    };
  }

  Mask norm_gradient() {
    return [this](int64_t rows, int64_t cols, RngRef rng) {
      const Guarded zeros = array(Values(static_cast<size_t>(rows * cols), 0.0));
      const Guarded d_sum = ones(rows * cols), d_x = poison(rows * cols);
      const Guarded d_branch = poison(rows * cols), statistics = wide_ones(rows);
      const Guarded weight = wide_ones(cols);
      norm_backward(ctx(), {.d_y = zeros.data(),
                            .d_sum = d_sum.data(),
                            .sum = zeros.data(),
                            .weight = weight.data(),
                            .mean = statistics.data(),
                            .rstd = statistics.data(),
                            .d_x = d_x.data(),
                            .d_branch = d_branch.data(),
                            .rows = rows,
                            .cols = cols,
                            .dtype = dtype(),
                            .dropout = kDrop,
                            .rng = rng});
      return d_branch.values();
    };
  }

  // Row r of the batch is token r at position r, so that every sum of a gradient has one term.
  enum class Embedding { forward, d_table, d_positions };
  Mask embedding(Embedding which) {
    return [=, this](int64_t rows, int64_t cols, RngRef rng) {
      const Guarded ids = integers(counting(rows)), cu = integers({0, static_cast<double>(rows)});
      const Guarded valid = integers({static_cast<double>(rows)});
      const Guarded table = ones(rows * cols), y = poison(rows * cols);
      const EmbeddingArgs args{.table = table.data(),
                               .ids = ids.as<int32_t>(),
                               .positions = ids.as<int32_t>(),
                               .y = y.data(),
                               .rows = rows,
                               .cols = cols,
                               .vocab = rows,
                               .max_positions = rows,
                               .dtype = dtype(),
                               .dropout = kDrop,
                               .rng = rng};
      if (which == Embedding::forward) {
        embedding_forward(ctx(), args);
        return y.values();
      }
      const Guarded d_table = wide_poison(rows * cols), d_positions = wide_poison(rows * cols);
      embedding_backward(ctx(), {.forward = args,
                                 .d_y = table.data(),
                                 .order = ids.as<int32_t>(),
                                 .valid_rows = valid.as<int32_t>(),
                                 .cu = cu.as<int32_t>(),
                                 .sequences = 1,
                                 .d_table = d_table.data(),
                                 .d_position_table = d_positions.data()});
      return which == Embedding::d_table ? d_table.values() : d_positions.values();
    };
  }

  // The whole against the definition, then every part of a cut over so many ranks against the
  // whole.
  void check(const Mask& mask, int64_t rows, int64_t cols) {
    const TestRng rng(stream(), kDrop);
    const Values whole = mask(rows, cols, rng.ref());
    for (int64_t e = 0; e < rows * cols; ++e) {
      ASSERT_EQ(whole[static_cast<size_t>(e)] != 0, rng.factor(e) != 0) << e;
    }
    for (const int64_t row_ranks : {1, 2, 4}) {
      for (const int64_t column_ranks : {1, 2, 4}) {
        const int64_t r = rows / row_ranks, c = cols / column_ranks;
        for (int64_t rank = 0; rank < row_ranks * column_ranks; ++rank) {
          RngRef part = rng.ref();
          part.first_row = rank / column_ranks * r;
          part.first_column = rank % column_ranks * c;
          part.rows = rows;
          part.columns = cols;
          Values want;
          for (int64_t i = 0; i < r; ++i) {
            const auto from = whole.begin() + (part.first_row + i) * cols + part.first_column;
            want.insert(want.end(), from, from + c);
          }
          ASSERT_EQ(mask(r, c, part), want)
              << "part " << rank << " of " << row_ranks << " x " << column_ranks << " of (" << rows
              << ", " << cols << ")";
        }
      }
    }
  }
  // Whole vectors in every part, parts that end inside a vector, parts that share a draw with
  // another.
  void check(const Mask& mask) {
    check(mask, 8, 64);
    check(mask, 12, 48);
    check(mask, 4, 1096);
    check(mask, 4, 20);
    check(mask, 4, 36);
  }
};

TEST_P(CutMasksOn, Activation) {
  for (const bool gated : {false, true}) {
    for (const bool backward : {false, true}) check(activation(gated, backward));
  }
}
TEST_P(CutMasksOn, Norm) {
  check(norm());
  check(norm_gradient());
}
TEST_P(CutMasksOn, Embedding) {
  check(embedding(Embedding::forward));
  check(embedding(Embedding::d_table));
  check(embedding(Embedding::d_positions));
}
INSTANTIATE_TEST_SUITE_P(Targets, CutMasksOn, testing::all_targets(), testing::target_name);

TEST(CutMasks, APartOutsideTheMatrixIsRefused) {
  float v[8] = {};
  const uint64_t state[2] = {1, 2};
  const auto with = [&](RngRef rng) {
    rng.state = state;
    activation_forward({},
                       {.x = v, .y = v + 4, .rows = 2, .cols = 2, .dropout = kDrop, .rng = rng});
  };
  EXPECT_NO_THROW(with({.first_row = 2, .rows = 4}));
  EXPECT_THROW(with({.first_row = 3, .rows = 4}), Error);
  EXPECT_THROW(with({.first_column = 1, .columns = 2}), Error);
  EXPECT_THROW(with({.first_row = -1}), Error);
}

TEST(CutMasks, KeepTheShareTheyShould) {
  constexpr int64_t kCount = 100000;
  const uint64_t state[2] = {1, 2};
  std::vector<float> x(kCount, 1.0f), y(kCount);
  activation_forward({}, {.x = x.data(),
                          .y = y.data(),
                          .rows = 100,
                          .cols = kCount / 100,
                          .dropout = 0.3f,
                          .rng = {.state = state, .site = 1}});
  const auto kept =
      static_cast<double>(std::count_if(y.begin(), y.end(), [](float v) { return v > 0; }));
  // Binomial: five standard deviations.
  EXPECT_NEAR(kept, 0.7 * kCount, 5 * std::sqrt(0.3 * 0.7 * kCount));
}

}  // namespace
}  // namespace saturate::kernels
