// SPDX-License-Identifier: Apache-2.0
// Data parallel on lockstep ranks, in f64: N ranks with one micro-batch each are one rank with N,
// dropout, unequal numbers of tokens and a rank without labels included.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/optimizer/step_state.h"
#include "parallel/flat_range.h"
#include "parallel/lockstep.h"
#include "train/loss_tape.h"
#include "train/numbered_batch_test.h"
#include "train/training_step.h"

namespace saturate::train {
namespace {

constexpr int64_t kMicroBatches = 4;

model::ModelConfig config_of(model::ModelKind kind) {
  model::ModelConfig m;
  m.kind = kind;
  m.d_model = 16;
  m.encoder_layers = kind == model::ModelKind::encoder_decoder ? 1 : 0;
  m.decoder_layers = 2;
  m.heads = m.kv_heads = 2;
  m.head_size = 8;
  m.ffn = 32;
  m.vocab_source = m.encoder_layers > 0 ? 29 : 0;
  m.vocab_target = 29;
  m.max_positions = 16;
  m.dropout = m.attention_dropout = m.activation_dropout = 0.2f;
  return m;
}

const data::BatchShape kShape{
    .source_rows = 0, .target_rows = 24, .sequences = 3, .max_source = 12, .max_target = 12};

struct Result {
  std::vector<double> gradients, totals;
  std::vector<ParameterSpec> parameters;
};

// The step's sums as rank `c` of its ranks sees them.
Result step(parallel::Communicator& c, model::ModelKind kind) {
  ParameterStore store({}, DType::f64);
  const model::Transformer transformer(config_of(kind), store);
  store.allocate(ParameterStore::Purpose::training);
  store.initialise(Stream(Device{}), 5);
  data::BatchShape shape = kShape;
  if (kind == model::ModelKind::encoder_decoder) shape.source_rows = kShape.target_rows;
  const data::BatchLayout layout(shape);
  std::vector<int32_t> batch(static_cast<size_t>(layout.words));
  uint64_t rng[2] = {7, 0};
  Result result;
  result.totals.resize(4);
  Tape tape(store, TapeMode::training, rng);
  record_loss(tape, transformer, layout, batch.data(),
              {.label_smoothing = 0.1f, .grad_scale = 0.25f, .totals = result.totals.data()});
  tape.backward();
  std::vector<char> arena(tape.plan() + 256, static_cast<char>(0xFF));
  const auto rank = static_cast<uint64_t>(c.rank()), ranks = static_cast<uint64_t>(c.size());
  for (uint64_t taken = 1; taken <= static_cast<uint64_t>(kMicroBatches) / ranks; ++taken) {
    rng[1] = micro_batch_counter(taken, rank, ranks);
    fill_numbered(layout, 29, static_cast<int64_t>(rng[1]) - 1, batch.data());
    tape.run({}, arena.data(), taken > 1);
  }
  auto* gradients = store.gradients().as<double>();
  parallel::Ticket last = c.start({.group = c.world(), .dtype = DType::f64, .count = 3}, nullptr,
                                  result.totals.data(), {});
  for (int64_t begin = 0; begin < store.padded_count();
       begin += 500)  // in pieces, as training does
    last = c.start({.group = c.world(),
                    .dtype = DType::f64,
                    .count = std::min<int64_t>(500, store.padded_count() - begin)},
                   nullptr, gradients + begin, {});
  c.wait(last, {});
  result.gradients.assign(gradients, gradients + store.padded_count());
  result.parameters = store.specs();
  return result;
}

double norm(const double* values, int64_t count) {
  return std::sqrt(std::inner_product(values, values + count, values, 0.0));
}

class DataParallel : public testing::TestWithParam<model::ModelKind> {};

TEST_P(DataParallel, EqualsOneRankOnTheSameBatches) {
  std::vector<Result> results;
  for (const int ranks : {1, 2, 4}) {
    std::vector<Result> of_rank(static_cast<size_t>(ranks));
    parallel::run_lockstep(ranks, [&](parallel::Communicator& c) {
      of_rank[static_cast<size_t>(c.rank())] = step(c, GetParam());
    });
    for (const Result& r : of_rank) {
      EXPECT_EQ(r.gradients, of_rank[0].gradients);  // bitwise the same on all ranks
      EXPECT_EQ(r.totals, of_rank[0].totals);
    }
    results.push_back(of_rank[0]);
  }
  const Result& one = results[0];
  const double whole = norm(one.gradients.data(), std::ssize(one.gradients));
  EXPECT_GT(whole, 0.1);
  for (size_t k = 1; k < results.size(); ++k) {
    const Result& many = results[k];
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(many.totals[i], one.totals[i], 1e-11);
    for (const ParameterSpec& p : one.parameters) {
      const double* a = one.gradients.data() + p.offset;
      const double* b = many.gradients.data() + p.offset;
      // The keys' bias has no gradient but rounding.
      const double scale = std::max(norm(a, p.size()), 1e-3 * whole);
      for (int64_t e = 0; e < p.size(); ++e)
        ASSERT_NEAR(a[e], b[e], 1e-12 * scale) << p.name << "[" << e << "]";
    }
  }
}

// Masters after three whole steps: buckets, clipping and AdamW as training runs them.
std::vector<double> trained(parallel::Communicator& c, model::ModelKind kind) {
  ParameterStore store({}, DType::f64);
  const model::Transformer transformer(config_of(kind), store);
  StepOptions options;
  options.shape = kShape;
  options.accumulate = kMicroBatches / c.size();
  options.slots = kMicroBatches;
  options.bucket_bytes = 4000;
  options.optimizer.weight_decay = 0.1f;
  options.optimizer.schedule.warmup_steps = 2;
  if (kind == model::ModelKind::encoder_decoder) options.shape.source_rows = kShape.target_rows;
  const Layout layout(c, {.dp = c.size()});
  allocate_for_steps(store, options, layout);
  store.initialise(Stream(Device{}), 5);
  TrainingStep step(transformer, store, options, c, layout);
  for (int64_t micro = 0; micro < 3 * kMicroBatches / c.size(); ++micro) {
    fill_numbered(step.batch_layout(), 29, micro * c.size() + c.rank(),
                  step.host_slot(micro % options.slots));
    if ((micro + 1) % options.accumulate == 0) step.submit();
  }
  const auto* w = store.masters().as<double>();
  return {w, w + store.padded_count()};
}

TEST_P(DataParallel, TrainsAsOneRank) {
  std::vector<std::vector<double>> masters;
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::vector<double>> of_rank(static_cast<size_t>(ranks));
    parallel::run_lockstep(ranks, [&](parallel::Communicator& c) {
      of_rank[static_cast<size_t>(c.rank())] = trained(c, GetParam());
    });
    for (const auto& mine : of_rank) EXPECT_EQ(mine, of_rank[0]);
    masters.push_back(of_rank[0]);
  }
  // A gradient of rounding alone moves a weight by lr * 1e-17 / eps.
  for (size_t k = 1; k < masters.size(); ++k)
    for (size_t e = 0; e < masters[0].size(); ++e)
      ASSERT_NEAR(masters[k][e], masters[0][e], 1e-10) << e;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DataParallel,
                         testing::Values(model::ModelKind::encoder_decoder,
                                         model::ModelKind::decoder_only));

}  // namespace
}  // namespace saturate::train
