// SPDX-License-Identifier: Apache-2.0
// Tensor and sequence parallel on lockstep ranks, in f64: ranks with parts of the heads, columns,
// vocabulary and rows are one rank with all of them, dropout included.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "parallel/lockstep.h"
#include "train/loss_tape.h"
#include "train/numbered_batch_test.h"
#include "train/training_step.h"

namespace saturate::train {
namespace {

constexpr int64_t kMicroBatches = 2;

struct Case {
  const char* name;
  model::ModelConfig model;
};

// 150 words: with four ranks of 64 rows the third has 22 that count and the last none.
constexpr int32_t kVocab = 150;

model::ModelConfig translation(model::NormPosition position, bool shared) {
  model::ModelConfig m;
  m.kind = model::ModelKind::encoder_decoder;
  m.d_model = 16;
  m.encoder_layers = m.decoder_layers = 2;
  m.heads = m.kv_heads = 4;
  m.head_size = 6;
  m.ffn = 36;
  m.vocab_source = m.vocab_target = kVocab;
  m.max_positions = 16;
  m.norm_position = position;
  m.final_norm = position == model::NormPosition::pre;
  m.shared_embeddings = m.tied_output = shared;
  m.pad_id = m.decoder_start_id = 100;  // its row is another rank's with two and with four ranks
  m.dropout = m.attention_dropout = m.activation_dropout = 0.2f;
  return m;
}

model::ModelConfig llama(bool tied) {
  model::ModelConfig m = translation(model::NormPosition::pre, tied);
  m.kind = model::ModelKind::decoder_only;
  m.encoder_layers = 0;
  m.vocab_source = 0;
  m.heads = 8;
  m.positions = model::PositionKind::rotary;
  m.norm = kernels::NormKind::rms_norm;
  m.activation = kernels::ActivationKind::silu;
  m.gated = true;
  m.biases = false;
  return m;
}

model::ModelConfig gpt(std::vector<std::string> mixers) {
  model::ModelConfig m = translation(model::NormPosition::pre, true);
  m.kind = model::ModelKind::decoder_only;
  m.encoder_layers = 0;
  m.vocab_source = 0;
  m.positions = model::PositionKind::learned;
  if (!mixers.empty()) m.attention_dropout = 0;
  m.mixers = std::move(mixers);
  return m;
}

const Case kCases[] = {
    {"PreNormTied", translation(model::NormPosition::pre, true)},
    {"PostNormUntied", translation(model::NormPosition::post, false)},
    {"LlamaTied", llama(true)},
    {"LlamaUntied", llama(false)},
    {"LearnedPositions", gpt({})},
    {"LinearAttention", gpt({"linear_attention"})},
};

data::BatchShape shape_of(const model::ModelConfig& m) {
  return {.source_rows = m.encoder_layers > 0 ? 24 : 0,
          .target_rows = 24,
          .sequences = 3,
          .max_source = m.encoder_layers > 0 ? 12 : 0,
          .max_target = 12};
}

using Arrays = std::map<std::string, std::vector<double>>;

// Copies what this rank has of each gradient to where it lies in the whole one; rows
// that pad a vocabulary must be zero and are left out, as layouts have different ones.
void assemble(const ParameterStore& store, Arrays& whole) {
  for (int32_t i = 0; i < std::ssize(store.specs()); ++i) {
    const ParameterSpec& p = store.specs()[static_cast<size_t>(i)];
    const auto* mine = static_cast<const double*>(store.gradient({i}));
    const bool cut = p.whole.rows > 0;
    const int64_t rows = cut ? p.whole.rows : p.rows, cols = cut ? p.whole.cols : p.cols;
    const int64_t counted = (rows - p.padding_rows) * cols;
    std::vector<double>& to = whole[p.name];
    to.resize(static_cast<size_t>(counted));
    const std::vector<parallel::ShardRun> all{{0, p.size()}};
    for (const parallel::ShardRun& run : cut ? p.whole.runs : all) {
      for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e, ++mine) {
        if (e < counted) {
          to[static_cast<size_t>(e)] = *mine;
        } else {
          EXPECT_EQ(*mine, 0.0) << p.name << "[" << e << "] pads the vocabulary";
        }
      }
    }
  }
}

struct Result {
  Arrays arrays;
  std::vector<double> totals = std::vector<double>(4);
};

double norm(const std::vector<double>& v) {
  return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
}

void expect_equal(const Result& many, const Result& one, double bound) {
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(many.totals[i], one.totals[i], 1e-11 * std::fabs(one.totals[i]));
  double largest = 0;
  for (const auto& [name, values] : one.arrays) largest = std::max(largest, norm(values));
  ASSERT_GT(largest, 0.1);
  for (const auto& [name, values] : one.arrays) {
    const std::vector<double>& other = many.arrays.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    std::vector<double> difference(values.size());
    std::transform(values.begin(), values.end(), other.begin(), difference.begin(), std::minus<>());
    // The keys' bias has no gradient but rounding.
    EXPECT_LE(norm(difference), bound * std::max(norm(values), 1e-4 * largest)) << name;
  }
}

// Gradients of kMicroBatches, each shared by the tp ranks, summed over the axes that a parameter's
// spec names.
void gradients(parallel::Communicator& c, const model::ModelConfig& config,
               const parallel::MeshExtents& extents, Result& result) {
  const Layout ranks(c, extents);
  ParameterStore store({}, DType::f64);
  model::Transformer transformer(config, store, ranks);
  store.allocate(ParameterStore::Purpose::training);
  store.initialise(Stream(Device{}), 5);
  transformer.make_tables(store);
  const data::BatchLayout layout(shape_of(config));
  std::vector<int32_t> batch(static_cast<size_t>(layout.words));
  uint64_t rng[2] = {7, 0};
  std::vector<double> totals(4);
  Tape tape(store, TapeMode::training, rng);
  record_loss(tape, transformer, layout, batch.data(),
              {.label_smoothing = 0.1f, .grad_scale = 0.25f, .totals = totals.data()});
  tape.backward();
  std::vector<char> arena(tape.plan() + 256, static_cast<char>(0xFF));
  const auto number = static_cast<uint64_t>(ranks.coordinate(Layout::Axis::dp)),
             numbers = static_cast<uint64_t>(ranks.extent(Layout::Axis::dp));
  for (uint64_t taken = 1; taken <= static_cast<uint64_t>(kMicroBatches) / numbers; ++taken) {
    rng[1] = micro_batch_counter(taken, number, numbers);
    fill_numbered(layout, kVocab, static_cast<int64_t>(rng[1]) - 1, batch.data());
    tape.run({}, arena.data(), taken > 1);
  }
  const auto sum = [&](std::span<const Layout::Axis> axes, double* data, int64_t count) {
    const parallel::Group& group = ranks.group(axes);
    if (group.size() > 1)
      c.wait(c.start({.group = group, .dtype = DType::f64, .count = count}, nullptr, data, {}), {});
  };
  for (int32_t i = 0; i < std::ssize(store.specs()); ++i) {
    const ParameterSpec& p = store.specs()[static_cast<size_t>(i)];
    sum(p.shard.reduce_axes(), static_cast<double*>(store.gradient({i})), p.size());
  }
  const Layout::Axis all[] = {Layout::Axis::tp, Layout::Axis::cp, Layout::Axis::dp};
  sum(all, totals.data(), 3);
  assemble(store, result.arrays);
  result.totals = totals;
}

class TensorParallel : public testing::TestWithParam<Case> {};

TEST_P(TensorParallel, HasTheGradientsOfOneRank) {
  std::vector<Result> results;
  for (const parallel::MeshExtents& extents :
       {parallel::MeshExtents{}, {.tp = 2}, {.tp = 4}, {.tp = 2, .dp = 2}}) {
    SCOPED_TRACE(testing::Message() << "tp " << extents.tp << ", dp " << extents.dp);
    Result& result = results.emplace_back();
    parallel::run_lockstep(extents.tp * extents.dp, [&](parallel::Communicator& c) {
      gradients(c, GetParam().model, extents, result);
    });
    expect_equal(result, results[0], 1e-11);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallel, testing::ValuesIn(kCases),
                         [](const auto& param) { return param.param.name; });

// Every gather and sum of the backward pass has a weight gradient beside it: one stands between it
// and the first operation that reads its result. Also those of the last layers, whose weight
// gradients are kept for the reduction of a table that the ranks of dp share, where there are any.
TEST(TensorParallelOrder, ComputesBesideTransfers) {
  parallel::run_lockstep(2, [](parallel::Communicator& c) {
    const Layout ranks(c, {.tp = 2});
    ParameterStore store({}, DType::f64);
    model::ModelConfig tied = llama(true);
    tied.vocab_target = 2000;  // so that a quarter of its table is as much as several of its weights
    const model::Transformer transformer(tied, store, ranks);
    const data::BatchLayout layout(shape_of(transformer.config()));
    std::vector<int32_t> batch(static_cast<size_t>(layout.words));
    uint64_t rng[2] = {7, 0};
    Tape tape(store, TapeMode::training, rng);
    record_loss(tape, transformer, layout, batch.data(), {});
    tape.backward();
    tape.plan();
    EXPECT_EQ(flaw_of(tape, tape.layout()), "");
    const OperationRange backward = tape.range("backward");
    int transfers = 0, hidden = 0;
    for (int32_t i = backward.begin; i < backward.end; ++i) {
      const Tape::Operation& transfer = tape.operation(static_cast<size_t>(i));
      if (transfer.traits.lane == 0) continue;
      ++transfers;
      bool beside = false, read = false;
      for (int32_t j = i + 1; j < backward.end && !read; ++j) {
        const Tape::Operation& o = tape.operation(static_cast<size_t>(j));
        read = std::count(o.reads.begin(), o.reads.end(), transfer.writes[0]) > 0;
        beside = beside || (!read && o.deferrable && o.traits.flops > 0);
      }
      hidden += beside ? 1 : 0;
    }
    EXPECT_EQ(transfers, 2 * 2 * 2 + 1);  // two mixers of two layers, in and out; the logits' rows
    EXPECT_GE(hidden, transfers - 1);
  });
}

std::string refusal(const model::ModelConfig& config, int tp) {
  std::string what = "no error";
  parallel::run_lockstep(tp, [&](parallel::Communicator& c) {
    const Layout ranks(c, {.tp = tp});
    ParameterStore store({}, DType::f64);
    try {
      const model::Transformer transformer(config, store, ranks);
      store.allocate(ParameterStore::Purpose::training);
      const data::BatchLayout layout({.target_rows = 8 * tp + 1, .sequences = 1, .max_target = 9});
      std::vector<int32_t> batch(static_cast<size_t>(layout.words));
      Tape tape(store, TapeMode::training, nullptr);
      record_loss(tape, transformer, layout, batch.data(), {});
    } catch (const Error& e) {
      what = e.what();
    }
  });
  return what;
}

TEST(TensorParallelErrors, NameTheValueTheRuleAndTheWayOut) {
  model::ModelConfig m = llama(true);
  m.kv_heads = 2;
  EXPECT_EQ(refusal(m, 4),
            "[model] tp is 4 and kv_heads 2: tensor parallel gives every rank as many kv_heads; "
            "choose tp among the divisors of 2");
  m = gpt({});
  m.dropout = m.attention_dropout = m.activation_dropout = 0;
  const std::string rows = refusal(m, 2);
  EXPECT_NE(rows.find("17 rows of a micro-batch are cut over tp x cp = 2 ranks"), std::string::npos)
      << rows;
}

}  // namespace
}  // namespace saturate::train
