// SPDX-License-Identifier: Apache-2.0
// Whole steps with each choice of optimizer state: ranks that share it train as one rank does, and a
// run that goes on from its files is the run that was never stopped, to the last bit.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "base/testing/temp_folder.h"
#include "kernels/block_scaled/block_scaled.h"
#include "kernels/fp8/fp8.h"
#include "parallel/lockstep.h"
#include "train/checkpoint_state.h"
#include "train/numbered_batch_test.h"
#include "train/training_step.h"

namespace saturate::train {
namespace {

using kernels::MomentType;
using saturate::testing::TempFolder;

constexpr int64_t kMicroBatches = 4;

model::ModelConfig config_of(int64_t width = 16) {
  model::ModelConfig m;
  m.kind = model::ModelKind::decoder_only;
  m.d_model = width;
  m.encoder_layers = 0;
  m.decoder_layers = 2;
  m.heads = m.kv_heads = 2;
  m.head_size = width / 2;
  m.ffn = 2 * width;
  m.vocab_target = 29;
  m.max_positions = 16;
  m.dropout = 0.2f;
  return m;
}

struct Case {
  const char* name;
  OptimizerOptions options;
  bool fp8 = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// A model, its state and its step on one of the ranks.
struct Training {
  Training(parallel::Communicator& c, DType type, const OptimizerOptions& optimizer, int zero,
           bool fp8 = false, int64_t width = 16, std::optional<kernels::BlockFormat> blocks = {})
      : ranks(c),
        layout(c, {.dp = c.size()}),
        store({}, type),
        transformer(config_of(width), store) {
    options.shape = {
        .source_rows = 0, .target_rows = 24, .sequences = 3, .max_source = 12, .max_target = 12};
    options.accumulate = kMicroBatches / c.size();
    options.slots = kMicroBatches;
    options.bucket_bytes = 4000;
    options.optimizer = optimizer;
    options.optimizer.weight_decay = 0.1f;
    options.optimizer.schedule.peak_lr = 0.01f;
    options.optimizer.schedule.warmup_steps = 2;
    options.parallel.zero = zero;
    options.fp8 = fp8;
    options.blocks = blocks;
    allocate_for_steps(store, options, layout);
    store.initialise(Stream(Device{}), 5);
    step.emplace(transformer, store, options, c, layout);
  }
  void steps(int64_t from, int64_t to) {
    for (int64_t micro = from * options.accumulate; micro < to * options.accumulate; ++micro) {
      fill_numbered(step->batch_layout(), 29, micro * ranks.size() + ranks.rank(),
                    step->host_slot(micro % options.slots));
      if ((micro + 1) % options.accumulate == 0) step->submit();
    }
  }
  // By name, without rows that pad a vocabulary.
  std::map<std::string, std::vector<double>> masters() {
    std::map<std::string, std::vector<double>> all;
    store.visit(step->stream(), StateArray::master, [&](ParameterId id, const void* values) {
      const ParameterSpec& p = store.spec(id);
      std::vector<double>& w = all[p.name];
      for (int64_t e = 0; e < p.size() - p.padding_rows * p.cols; ++e)
        w.push_back(store.wide_type() == DType::f64 ? static_cast<const double*>(values)[e]
                                                    : static_cast<const float*>(values)[e]);
    });
    return all;
  }
  std::vector<char> bytes(StateArray a) const {
    std::vector<char> all;
    for (const ParameterGroup& g : store.groups()) {
      const Block& held = g.array(a);
      if (held.data() != nullptr)
        all.insert(all.end(), held.as<char>(), held.as<char>() + held.bytes());
    }
    return all;
  }

  parallel::Communicator& ranks;
  Layout layout;
  ParameterStore store;
  model::Transformer transformer;
  StepOptions options;
  std::optional<TrainingStep> step;
};

class OptimizerChoice : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, OptimizerChoice,
    ::testing::Values(Case{"fp32", {}}, Case{"bf16", {.moments = MomentType::bf16}},
                      Case{"8bit", {.moments = MomentType::blocks}},
                      Case{"muon", {.kind = OptimizerOptions::Kind::muon}},
                      Case{"adafactor",
                           {.kind = OptimizerOptions::Kind::adafactor, .relative = true}},
                      Case{"fp8", {}, true}),
    [](const auto& i) { return std::string(i.param.name); });

TEST_P(OptimizerChoice, TrainsOnRanksAsOnOne) {
  if (GetParam().fp8) return;  // see Fp8Training
  std::map<std::string, std::vector<double>> want;
  for (const auto& [ranks, zero] :
       {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}, std::pair{4, 2}, std::pair{2, 3}}) {
    if (GetParam().options.kind == OptimizerOptions::Kind::muon && zero > 0) continue;
    std::vector<std::map<std::string, std::vector<double>>> of_rank(static_cast<size_t>(ranks));
    parallel::run_lockstep(ranks, [&, zero = zero](parallel::Communicator& c) {
      Training t(c, DType::f64, GetParam().options, zero);
      t.steps(0, 3);
      of_rank[static_cast<size_t>(c.rank())] = t.masters();
    });
    if (want.empty()) want = of_rank[0];
    for (const auto& mine : of_rank) {
      for (const auto& [name, w] : want) {
        // A gradient of rounding alone moves a weight by lr * 1e-17 / eps.
        for (size_t e = 0; e < w.size(); ++e)
          ASSERT_NEAR(mine.at(name)[e], w[e], 1e-9)
              << name << "[" << e << "] of " << ranks << " ranks, zero " << zero;
      }
    }
  }
}

TEST_P(OptimizerChoice, GoesOnFromAFileAsIfNeverStopped) {
  const TempFolder folder;
  parallel::run_lockstep(1, [&](parallel::Communicator& c) {
    const auto training = [&] {
      return Training(c, DType::f32, GetParam().options, 0, GetParam().fp8);
    };
    Training whole = training(), first = training(), second = training();
    const bool factored = GetParam().options.kind == OptimizerOptions::Kind::adafactor;
    const StateArray kept = GetParam().fp8 ? StateArray::fp8_sites
                            : factored     ? StateArray::factors
                                           : StateArray::first_moment;
    const std::vector<char> start = first.bytes(kept);
    whole.steps(0, 6);
    first.steps(0, 3);
    EXPECT_NE(first.bytes(kept), start);
    const auto tensors = state_tensors(first.store, first.store.purpose());
    {
      model::SafetensorsWriter file(folder / "state", tensors);
      write_owned(file, tensors, first.store, first.step->stream());
      file.commit();
    }
    read_owned(model::SafetensorsReader(folder / "state"), second.store, second.step->stream());
    for (const StateArray a : {StateArray::first_moment, StateArray::second_moment, kept})
      EXPECT_TRUE(second.bytes(a) == first.bytes(a)) << saved_name(a);
    second.step->set_state(first.step->state());
    second.steps(3, 6);
    EXPECT_EQ(second.masters(), whole.masters());
    for (const StateArray a : {StateArray::first_moment, StateArray::second_moment, kept})
      EXPECT_TRUE(second.bytes(a) == whole.bytes(a)) << saved_name(a);
  });
}

// Ranks share out micro-batches, and each sees others: what they have of scales must be the same after each
// step, and weights with them.
TEST(Fp8Training, RanksHaveTheSameScales) {
  std::map<std::string, std::vector<double>> fp32;
  parallel::run_lockstep(1, [&](parallel::Communicator& c) {
    Training t(c, DType::f32, {}, 0);
    t.steps(0, 4);
    fp32 = t.masters();
  });
  for (const auto& [ranks, zero] :
       {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}, std::pair{4, 2}, std::pair{2, 3}}) {
    std::vector<std::map<std::string, std::vector<double>>> weights(static_cast<size_t>(ranks));
    std::vector<std::vector<char>> sites(weights.size());
    parallel::run_lockstep(ranks, [&, zero = zero](parallel::Communicator& c) {
      Training t(c, DType::f32, {}, zero, true);
      t.steps(0, 4);
      weights[static_cast<size_t>(c.rank())] = t.masters();
      for (const ParameterSpec& p : t.store.specs()) {
        const kernels::Fp8Site* s = t.store.fp8_sites(t.store.find(p.name));
        EXPECT_EQ(s != nullptr, p.multiplied) << p.name;
        for (int64_t i = 0; s != nullptr && i < kernels::kFp8Roles; ++i) {
          EXPECT_GT(s[i].scale, 0) << p.name << " " << i;
          EXPECT_GT(s[i].history[3], 0) << p.name << " " << i;
          const char* bytes = reinterpret_cast<const char*>(&s[i].scale);
          auto& mine = sites[static_cast<size_t>(c.rank())];
          mine.insert(mine.end(), bytes, reinterpret_cast<const char*>(&s[i + 1]));
        }
      }
    });
    for (size_t r = 1; r < weights.size(); ++r) {
      EXPECT_TRUE(weights[r] == weights[0]) << ranks << " " << zero;
      EXPECT_TRUE(sites[r] == sites[0]) << ranks << " " << zero;
    }
    // Rounding operands to four and three bits turns steps, but not around: they are of size lr.
    double off = 0, moved = 0;
    for (const auto& [name, w] : fp32)
      for (size_t e = 0; e < w.size(); ++e) {
        off += std::pow(weights[0].at(name)[e] - w[e], 2);
        moved += 1;
      }
    EXPECT_GT(off, 0);
    EXPECT_LT(std::sqrt(off / moved), 0.01);
  }
}

class BlockTraining : public ::testing::TestWithParam<kernels::BlockFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, BlockTraining,
                         ::testing::Values(kernels::BlockFormat::mxfp8_e4m3,
                                           kernels::BlockFormat::nvfp4));

// Nothing is kept from step to step, so ranks need not tell each other anything; matrices of 32 columns, a block.
TEST_P(BlockTraining, TurnsStepsButNotAroundOnEveryRank) {
  const auto trained = [](int ranks, int zero, std::optional<kernels::BlockFormat> blocks) {
    std::vector<std::map<std::string, std::vector<double>>> weights(static_cast<size_t>(ranks));
    parallel::run_lockstep(ranks, [&](parallel::Communicator& c) {
      Training t(c, DType::f32, {}, zero, false, 32, blocks);
      for (const ParameterSpec& p : t.store.specs()) {
        EXPECT_EQ(t.store.block_format(t.store.find(p.name)).has_value(), blocks && p.multiplied)
            << p.name;
      }
      t.steps(0, 4);
      weights[static_cast<size_t>(c.rank())] = t.masters();
    });
    return weights;
  };
  const auto fp32 = trained(1, 0, {})[0], again = trained(1, 0, GetParam())[0];
  for (const auto& [ranks, zero] : {std::pair{1, 0}, std::pair{2, 1}, std::pair{2, 3}}) {
    const auto weights = trained(ranks, zero, GetParam());
    for (const auto& of_rank : weights) EXPECT_TRUE(of_rank == weights[0]) << ranks << " " << zero;
    if (ranks == 1) {
      EXPECT_TRUE(weights[0] == again);
    }
    double off = 0, count = 0;
    for (const auto& [name, w] : fp32)
      for (size_t e = 0; e < w.size(); ++e, ++count)
        off += std::pow(weights[0].at(name)[e] - w[e], 2);
    EXPECT_GT(off, 0);
    // Steps are of size lr, 0.01 at most.
    EXPECT_LT(std::sqrt(off / count), 0.01) << ranks << " " << zero;
  }
}

TEST(OptimizerMemory, IsWhatTheMomentsTake) {
  parallel::run_lockstep(1, [&](parallel::Communicator& c) {
    const auto bytes_with = [&](const OptimizerOptions& options) {
      Training t(c, DType::f32, options, 0);
      return plan_step(config_of(), t.store, t.options, t.layout).optimizer;
    };
    const auto optimizer_bytes = [&](MomentType m) { return bytes_with({.moments = m}); };
    const size_t full = optimizer_bytes(MomentType::wide);
    EXPECT_EQ(optimizer_bytes(MomentType::bf16), full / 2);
    EXPECT_EQ(optimizer_bytes(MomentType::blocks), full / 4 + full / 256);
    // Of the layers' matrices (qkv 48 x 16, out 16 x 16, two of 32 x 16) no second moments; and scratch.
    Training t(c, DType::f32, {.kind = OptimizerOptions::Kind::muon}, 0);
    const size_t scratch = OptimizerStep::scratch_bytes(t.store);
    EXPECT_GT(scratch, 2 * 48 * 16 * sizeof(float));
    EXPECT_EQ(bytes_with({.kind = OptimizerOptions::Kind::muon}),
              full - 2 * (48 + 16 + 2 * 32) * 16 * sizeof(float) + scratch);
    // Of a matrix rows and columns (q, k and v apart), of vectors all: norms, biases.
    const OptimizerOptions adafactor{.kind = OptimizerOptions::Kind::adafactor};
    Training factored(c, DType::f32, adafactor, 0);
    size_t factors = 0;
    for (const ParameterSpec& p : factored.store.specs())
      factors += static_cast<size_t>(p.rows == 1 ? p.cols
                                                 : p.rows - p.padding_rows +
                                                       p.cols * std::max(std::ssize(p.blocks), 1l));
    EXPECT_EQ(bytes_with(adafactor),
              factors * sizeof(float) + OptimizerStep::scratch_bytes(factored.store));
    EXPECT_LT(factors * sizeof(float), full / 10);
  });
}

}  // namespace
}  // namespace saturate::train
