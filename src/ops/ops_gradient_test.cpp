// SPDX-License-Identifier: Apache-2.0
// Every differentiable operation against central differences in double precision, through the tape.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/feed_forward.h"
#include "ops/gradient_check_test.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/residual_norm.h"

namespace saturate {
namespace {

constexpr double kBound = 1e-6;  // central differences with h = 1e-5 are good to about 1e-9

// Five valid rows of six: two sentences and an empty one, then a row outside every sentence.
struct Tokens {
  std::vector<int32_t> ids{3, 1, 3, 0, 2, 0}, positions{0, 1, 2, 0, 1, 0}, cu{0, 3, 5, 5};
  std::vector<int32_t> order{3, 1, 4, 0, 2}, labels{1, 2, 4, 0, 3, -1};
  int32_t valid = 5;
  ops::TokenArrays arrays() const {
    return {.ids = ids.data(),
            .positions = positions.data(),
            .cu = cu.data(),
            .order = order.data(),
            .valid = &valid,
            .rows = 6,
            .sequences = 3};
  }
};

class OpsGradient : public ::testing::Test {
 protected:
  static constexpr int64_t kVocab = 5, kWidth = 8;

  // embed -> body -> logits -> loss
  GradientReport check(const std::function<void(ParameterStore&)>& declare,
                       const std::function<Value(Tape&, Value)>& body, float smoothing = 0.1f) {
    GradientCase c;
    c.declare = [=, this](ParameterStore& s) {
      table_ = s.add({.name = "table",
                      .rows = kVocab,
                      .cols = kWidth,
                      .init = Init::normal,
                      .init_scale = 0.7f});
      declare(s);
    };
    c.record = [=, this](Tape& t, double* totals) {
      const Value x = ops::embedding(
          t, {.tokens = tokens_.arrays(), .table = t.parameter(table_), .scale = 1.5f});
      const Value hidden = body(t, x);
      ops::cross_entropy(t, ops::linear(t, hidden, t.parameter(table_)),
                         {.labels = tokens_.labels.data(),
                          .vocab = kVocab,
                          .label_smoothing = smoothing,
                          .totals = totals});
    };
    return check_gradients(c);
  }

  ParameterId add(ParameterStore& s, const char* name, int64_t rows, int64_t cols) {
    return s.add(
        {.name = name, .rows = rows, .cols = cols, .init = Init::normal, .init_scale = 0.4f});
  }

  Tokens tokens_;
  ParameterId table_, a_, b_, c_;
};

TEST_F(OpsGradient, EmbeddingTiedToTheOutput) {
  const auto r = check([](ParameterStore&) {}, [](Tape&, Value x) { return x; });
  EXPECT_LT(r.worst, kBound) << r.where;
  EXPECT_GE(r.checked, 10);
}

// The table is looked up as well, some rows have no loss, and two of its rows are no classes.
TEST_F(OpsGradient, OutputLayerAndLossInOne) {
  for (const float smoothing : {0.0f, 0.2f}) {
    GradientCase c;
    c.declare = [this](ParameterStore& s) {
      table_ = add(s, "table", kVocab + 2, kWidth);
      a_ = add(s, "bias", 1, kVocab + 2);
      s.freeze(a_);
    };
    c.record = [&, this](Tape& t, double* totals) {
      const Value x = ops::embedding(
          t, {.tokens = tokens_.arrays(), .table = t.parameter(table_), .scale = 1.5f});
      ops::linear_cross_entropy(t, x, t.parameter(table_), t.parameter(a_),
                                {.labels = tokens_.labels.data(),
                                 .vocab = kVocab,
                                 .label_smoothing = smoothing,
                                 .totals = totals});
    };
    const GradientReport r = check_gradients(c);
    EXPECT_LT(r.worst, kBound) << smoothing << ": " << r.where;
    EXPECT_GE(r.checked, 10);
  }
}

TEST_F(OpsGradient, BiasAfterAProduct) {
  const auto r = check(
      [this](ParameterStore& s) {
        a_ = add(s, "w", kWidth, kWidth);
        b_ = add(s, "bias", 1, kWidth);
      },
      [this](Tape& t, Value x) {
        return ops::add_bias(t, ops::linear(t, x, t.parameter(a_)), t.parameter(b_));
      });
  EXPECT_LT(r.worst, kBound) << r.where;
  EXPECT_GE(r.checked, 10);
}

TEST_F(OpsGradient, FeedForwardWithTheActivationInItsProducts) {
  using kernels::ActivationKind;
  for (const ActivationKind kind : {ActivationKind::relu, ActivationKind::gelu_tanh,
                                    ActivationKind::gelu_erf, ActivationKind::silu}) {
    ParameterId second;
    bool recorded = false;
    const auto r = check(
        [&](ParameterStore& s) {
          a_ = add(s, "in", 12, kWidth);
          b_ = add(s, "in.bias", 1, 12);
          second = add(s, "out", kWidth, 12);
          c_ = add(s, "out.bias", 1, kWidth);
        },
        [&](Tape& t, Value x) {
          const Value y = ops::feed_forward(t, x, {t.parameter(a_), t.parameter(b_)},
                                            {t.parameter(second), t.parameter(c_)}, kind);
          recorded = static_cast<bool>(y);
          return y;
        });
    ASSERT_TRUE(recorded);
    EXPECT_LT(r.worst, kBound) << static_cast<int>(kind) << ": " << r.where;
    EXPECT_GE(r.checked, 40);
  }
}

// Of twelve columns the first four and the last five have an adapter, of ranks 2 and 3.
TEST_F(OpsGradient, LowRankPartsBesideAProduct) {
  ParameterId low, first, second;
  const auto r = check(
      [&](ParameterStore& s) {
        a_ = add(s, "in", 12, kWidth);
        b_ = add(s, "out", kWidth, 12);
        low = add(s, "a", 5, kWidth);
        first = add(s, "b0", 4, 2);
        second = add(s, "b1", 5, 3);
      },
      [&](Tape& t, Value x) {
        const Value y = ops::linear(t, x, t.parameter(a_));
        const Value z =
            ops::linear(t, ops::dropout(t, x, 0.3f, MaskKind::adapter_in), t.parameter(low));
        return ops::linear(
            t,
            ops::add_low_rank(t, y, z,
                              {{t.parameter(first), 0, 0.7f}, {t.parameter(second), 7, 1.9f}}),
            t.parameter(b_));
      });
  EXPECT_LT(r.worst, kBound) << r.where;
  EXPECT_GE(r.checked, 50);
}

TEST_F(OpsGradient, AZeroRowStartsAtZeroAndGetsNoGradient) {
  const auto gradients = [this](int64_t zero_row) {
    ParameterStore store({}, DType::f64);
    const ParameterId table = store.add({.name = "table",
                                         .rows = kVocab,
                                         .cols = kWidth,
                                         .init = Init::normal,
                                         .init_scale = 0.7f,
                                         .zero_row = zero_row});
    store.allocate(ParameterStore::Purpose::training);
    store.initialise(Stream(store.device()), 1);
    auto* row = static_cast<double*>(store.master(table)) + 3 * kWidth;
    if (zero_row == 3) {
      EXPECT_TRUE(std::all_of(row, row + kWidth, [](double x) { return x == 0.0; }));
    }
    std::fill_n(row, kWidth, 0.5);  // the other gradients are then those of an ordinary row
    double totals[4] = {};
    const uint64_t rng_state[2] = {11, 3};
    Tape tape(store, TapeMode::training, rng_state);
    const Value x = ops::embedding(
        tape, {.tokens = tokens_.arrays(), .table = tape.parameter(table), .scale = 1.5f});
    ops::cross_entropy(tape, ops::linear(tape, x, tape.parameter(table)),
                       {.labels = tokens_.labels.data(), .vocab = kVocab, .totals = totals});
    tape.backward();
    std::vector<char> arena(tape.plan() + 256);
    tape.run({}, arena.data(), false);
    tape.run({}, arena.data(), true);  // another micro-step adds to it
    const auto* g = static_cast<const double*>(store.gradient(table));
    return std::vector<double>(g, g + kVocab * kWidth);
  };
  const std::vector<double> free = gradients(-1), held = gradients(3);
  for (int64_t i = 0; i < kVocab * kWidth; ++i) {
    const auto e = static_cast<size_t>(i);
    EXPECT_NE(free[e], 0.0) << i;
    EXPECT_EQ(held[e], i / kWidth == 3 ? 0.0 : free[e]) << i;
  }
}

TEST_F(OpsGradient, LearnedPositionsAndDropout) {
  GradientCase c;
  c.declare = [&](ParameterStore& s) {
    table_ = add(s, "table", kVocab, kWidth);
    a_ = add(s, "positions", 4, kWidth);
  };
  c.record = [&](Tape& t, double* totals) {
    const Value x = ops::embedding(t, {.tokens = tokens_.arrays(),
                                       .table = t.parameter(table_),
                                       .positions_table = t.wide_parameter(a_),
                                       .scale = 2.0f,
                                       .dropout = 0.3f});
    ops::cross_entropy(t, ops::linear(t, x, t.parameter(table_)),
                       {.labels = tokens_.labels.data(), .vocab = kVocab, .totals = totals});
  };
  const auto r = check_gradients(c, 32);
  EXPECT_LT(r.worst, kBound) << r.where;
}

TEST_F(OpsGradient, LinearWithBiasUsedTwice) {
  const auto r = check(
      [&](ParameterStore& s) {
        a_ = add(s, "w", kWidth, kWidth);
        b_ = add(s, "b", 1, kWidth);
      },
      [&](Tape& t, Value x) {  // the same weights twice: gradients accumulate
        const Value y = ops::linear(t, x, t.parameter(a_), t.parameter(b_));
        return ops::linear(t, y, t.parameter(a_), t.parameter(b_));
      });
  EXPECT_LT(r.worst, kBound) << r.where;
}

// Three experts of which each row takes two; the sixth row holds no token.
TEST_F(OpsGradient, RoutedExperts) {
  for (const bool gated : {false, true}) {
    constexpr int64_t kExperts = 3, kInner = 12;
    const auto r = check(
        [&](ParameterStore& s) {
          a_ = add(s, "router", kExperts, kWidth);
          b_ = add(s, "in", kExperts * kInner * (gated ? 2 : 1), kWidth);
          c_ = add(s, "out", kExperts * kWidth, kInner);
        },
        [&](Tape& t, Value x) {
          const Value logits = ops::wide_linear(t, x, t.wide_parameter(a_));
          const ops::Routing routing = ops::route(t, logits, {.k = 2, .valid = &tokens_.valid});
          const ops::SortedRows sorted = ops::sort_by_expert(t, routing.choices, kExperts);
          const Value wide =
              ops::grouped_linear(t, ops::dispatch_rows(t, x, sorted), t.parameter(b_), sorted);
          const Value inner =
              ops::expert_activation(t, wide, sorted, kernels::ActivationKind::gelu_erf, gated);
          const Value narrow = ops::grouped_linear(t, inner, t.parameter(c_), sorted);
          return ops::combine_rows(t, narrow, routing.gates, sorted);
        });
    EXPECT_LT(r.worst, kBound) << r.where;
  }
}

TEST_F(OpsGradient, ResidualNormWithDropout) {
  ParameterId bias;
  for (const auto kind : {kernels::NormKind::layer_norm, kernels::NormKind::rms_norm}) {
    for (const bool post : {false, true}) {
      const auto r = check(
          [&](ParameterStore& s) {
            a_ = add(s, "w", kWidth, kWidth);
            bias = add(s, "bias", 1, kWidth);
            b_ = add(s, "norm.weight", 1, kWidth);
            if (kind == kernels::NormKind::layer_norm) c_ = add(s, "norm.bias", 1, kWidth);
          },
          [&](Tape& t, Value x) {
            const ops::NormParameters norm{
                .kind = kind,
                .weight = t.wide_parameter(b_),
                .bias = kind == kernels::NormKind::layer_norm ? t.wide_parameter(c_) : Value{}};
            const auto first = ops::residual_norm(t, x, {}, norm, 0.0f);
            // Its bias's gradient comes from the second joint.
            const Value branch = ops::linear(t, first.y, t.parameter(a_), t.parameter(bias));
            const Value carried = post ? first.y : first.sum;
            const auto second = ops::residual_norm(t, carried, branch, norm, 0.25f);
            // Both outputs of a joint are used, as in a pre-norm stack.
            return ops::residual_norm(t, second.sum, second.y, norm, 0.0f).y;
          });
      EXPECT_LT(r.worst, kBound) << r.where;
    }
  }
}

TEST_F(OpsGradient, Activations) {
  using kernels::ActivationKind;
  for (const auto kind : {ActivationKind::relu, ActivationKind::gelu_tanh, ActivationKind::gelu_erf,
                          ActivationKind::silu, ActivationKind::identity}) {
    for (const bool gated : {false, true}) {
      const auto r = check(
          [&](ParameterStore& s) {
            a_ = add(s, "in", 12, kWidth);
            b_ = add(s, "out", kWidth, gated ? 6 : 12);
          },
          [&](Tape& t, Value x) {
            const Value wide = ops::linear(t, x, t.parameter(a_));
            return ops::linear(t, ops::activation(t, wide, kind, gated, 0.2f), t.parameter(b_));
          });
      EXPECT_LT(r.worst, kBound) << r.where;
    }
  }
}

TEST_F(OpsGradient, SelfAttentionGroupedRotaryCausalDropout) {
  for (const bool causal : {false, true}) {
    const auto r = check(
        [&](ParameterStore& s) {
          a_ = add(s, "qkv", 2 * 4 + 2 * 4, kWidth);  // 2 heads, 1 key head, head size 4
          b_ = add(s, "out", kWidth, 8);
        },
        [&](Tape& t, Value x) {
          Value qkv = ops::linear(t, x, t.parameter(a_));
          qkv = ops::rotary(t, {qkv, 0},
                            {.heads = 3, .head_size = 4, .positions = tokens_.positions.data()});
          const Value o = ops::attention(t, {.q = {qkv, 0},
                                             .k = {qkv, 8},
                                             .v = {qkv, 12},
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .head_size = 4,
                                             .cu_q = tokens_.cu.data(),
                                             .cu_k = tokens_.cu.data(),
                                             .sequences = 3,
                                             .max_q = 3,
                                             .max_k = 3,
                                             .causal = causal,
                                             .dropout = 0.2f});
          return ops::linear(t, o, t.parameter(b_));
        });
    EXPECT_LT(r.worst, kBound) << r.where;
  }
}

TEST_F(OpsGradient, CrossAttentionOverAMemoryUsedTwice) {
  const std::vector<int32_t> cu_q{0, 2, 5, 5};  // other lengths than the keys'
  const auto r = check(
      [&](ParameterStore& s) {
        a_ = add(s, "q", 8, kWidth);
        b_ = add(s, "kv", 16, kWidth);
        c_ = add(s, "out", kWidth, 8);
      },
      [&](Tape& t, Value memory) {
        Value x = memory;
        for (int layer = 0; layer < 2; ++layer) {
          const Value q = ops::linear(t, x, t.parameter(a_));
          const Value kv = ops::linear(t, memory, t.parameter(b_));
          const Value o = ops::attention(t, {.q = {q, 0},
                                             .k = {kv, 0},
                                             .v = {kv, 8},
                                             .heads = 2,
                                             .kv_heads = 2,
                                             .head_size = 4,
                                             .cu_q = cu_q.data(),
                                             .cu_k = tokens_.cu.data(),
                                             .sequences = 3,
                                             .max_q = 3,
                                             .max_k = 3});
          x = ops::linear(t, o, t.parameter(c_));
        }
        return x;
      });
  EXPECT_LT(r.worst, kBound) << r.where;
}

// The operations that a tape can record, as the headers of src/ops declare them, each in a case of check_gradients
// or of collectives_test.cpp.
TEST(OpsGradientList, CoversEveryOperation) {
  namespace fs = std::filesystem;
  const auto text_of = [](const fs::path& path) {
    std::ifstream in(path);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  // What rounds has no slope: rounded_linear_test.cpp.
  const std::set<std::string> without_backward = {"activated_linear",
                                                  "cached_attention",
                                                  "head_norm",
                                                  "keep_columns",
                                                  "relative_bias",
                                                  "soft_cap",
                                                  "store_rows",
                                                  "memory_weights",
                                                  "block_linear",
                                                  "fp8_linear",
                                                  "fp8_feed_forward",
                                                  "fp8_round",
                                                  "record_fp8_product",
                                                  "record_fp8_input_gradient",
                                                  "record_fp8_weight_gradient"};
  const fs::path root = fs::path(SATURATE_SOURCE_DIR) / "src";
  std::string cases;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.path().string().ends_with("_test.cpp"))
      if (const std::string text = text_of(entry.path());
          text.find("check_gradients(") != std::string::npos ||
          entry.path().filename() == "collectives_test.cpp" ||
          entry.path().filename() == "context_attention_test.cpp")
        cases += text;  // gradients of collectives: those of ranks equal those of one rank
  const std::regex declaration(R"(\n\w+ (\w+)\(Tape& tape)");
  int found = 0;
  for (const auto& entry : fs::directory_iterator(root / "ops")) {
    if (!entry.path().string().ends_with(".h")) continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator m(text.begin(), text.end(), declaration), end; m != end;
         ++m, ++found) {
      const std::string name = (*m)[1];
      EXPECT_TRUE(without_backward.contains(name) ||
                  std::regex_search(cases, std::regex("[^\\w]" + name + "\\(")))
          << name << " of " << entry.path() << " is in no case of check_gradients";
    }
  }
  EXPECT_GE(found, 8);
}

TEST(Tape, ReportsGradientsInTheOrderBackwardFinishesThem) {
  ParameterStore store({}, DType::f32);
  const ParameterId first = store.add({.name = "first", .rows = 8, .cols = 8});
  const ParameterId second = store.add({.name = "second", .rows = 8, .cols = 8});
  store.allocate(ParameterStore::Purpose::training);
  const std::vector<int32_t> labels(4, 1);
  double totals[4] = {};
  std::vector<float> input(32, 0.5f);
  Tape t(store, TapeMode::training, nullptr);
  const Value x = t.external("x", DType::f32, 4, 8, input.data());
  const Value y = ops::linear(t, ops::linear(t, x, t.parameter(first)), t.parameter(second));
  ops::cross_entropy(t, y, {.labels = labels.data(), .vocab = 8, .totals = totals});
  t.backward();
  const auto finished = t.finished_gradients();
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[0].parameter, second.index);
  EXPECT_EQ(finished[1].parameter, first.index);
  EXPECT_LT(finished[0].operation, finished[1].operation);
}

TEST(Tape, InferenceKeepsLessThanTraining) {
  ParameterStore store({}, DType::f32);
  const ParameterId w = store.add({.name = "w", .rows = 64, .cols = 64});
  store.allocate(ParameterStore::Purpose::inference);
  std::vector<float> input(64 * 64, 0.5f);
  const auto bytes = [&](TapeMode mode) {
    Tape t(store, mode, nullptr);
    Value x = t.external("x", DType::f32, 64, 64, input.data());
    for (int i = 0; i < 8; ++i) {
      x = ops::activation(t, ops::linear(t, x, t.parameter(w)), kernels::ActivationKind::gelu_erf,
                          false, 0);
    }
    t.keep(x);
    return t.plan();
  };
  EXPECT_EQ(bytes(TapeMode::inference), size_t{2 * 64 * 64 * 4});
}

}  // namespace
}  // namespace saturate
