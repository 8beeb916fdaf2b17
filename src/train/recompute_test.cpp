// SPDX-License-Identifier: Apache-2.0
// What is computed again has the same bits, costs what is said, and makes models fit.
#include "train/recompute.h"

#include <gtest/gtest.h>

#include <cstring>

#include "parallel/lockstep.h"
#include "parallel/single.h"
#include "train/layout_harness_test.h"
#include "train/loss_tape.h"
#include "train/memory_fit.h"

namespace saturate::train {
namespace {

LayoutResult trained(const std::string& model, const std::string& mode, DType type,
                     std::optional<int64_t> units = {}) {
  LayoutTask task =
      task_of({.model = model, .layout = "dp=1,recompute=" + mode, .micro_batches = 1});
  task.type = type;
  task.steps = 2;
  task.options.recompute_units = units;
  parallel::SingleCommunicator alone(Device{});
  return run_layout(alone, task);
}

bool same_bits(const LayoutResult& a, const LayoutResult& b) {
  for (size_t s = 0; s < a.steps.size(); ++s)
    if (std::memcmp(&a.steps[s], &b.steps[s], sizeof(StepRecord)) != 0) return false;
  for (size_t i = 0; i < a.weights.size(); ++i)
    if (a.weights[i].values != b.weights[i].values) return false;
  return a.grad_square_sum == b.grad_square_sum;
}

class Recompute : public testing::TestWithParam<std::string> {
 protected:
  // A plan of the model's tape with the first `units` computed again.
  StepMemory memory(std::optional<int64_t> units, const std::string& mode = "none") const {
    const LayoutTask task = task_of({.model = GetParam(), .layout = "dp=1"});
    ParameterStore store({}, DType::f32);
    const model::Transformer model(task.model, store);
    StepOptions o = task.options;
    o.parallel.recompute = mode;
    o.recompute_units = units;
    return plan_step(task.model, store, o, Layout());
  }
};

TEST_P(Recompute, GivesTheSameBits) {
  for (const DType type : {DType::f32, DType::f64}) {
    const LayoutResult none = trained(GetParam(), "none", type);
    EXPECT_GT(none.grad_square_sum, 0);
    for (const char* mode : {"selective", "full"})
      EXPECT_TRUE(same_bits(none, trained(GetParam(), mode, type))) << mode;
  }
  const LayoutResult none = trained(GetParam(), "none", DType::f32);
  for (int64_t units = 1, all = memory(0).recompute.of; units < all; units += 3)
    EXPECT_TRUE(same_bits(none, trained(GetParam(), "none", DType::f32, units))) << units;
}

TEST_P(Recompute, IsSoundInOneSlotAndInSeveral) {
  const LayoutTask task = task_of({.model = GetParam(), .layout = "dp=1"});
  ParameterStore store({}, DType::f32);
  const model::Transformer model(task.model, store);
  const data::BatchLayout layout(task.options.shape);
  std::vector<int32_t> batch(static_cast<size_t>(layout.words));
  const auto forward = [&](Tape& t) { record_loss(t, model, layout, batch.data(), {}); };
  for (int64_t units = 0, all = memory(0).recompute.of; units <= all; ++units) {
    for (const int32_t slots : {1, 2}) {
      Tape tape(store, TapeMode::training, nullptr);
      forward(tape);
      EXPECT_EQ(choose_recomputation(tape, "none", units, forward).units, units);
      tape.backward();
      tape.plan(slots);
      ASSERT_EQ(flaw_of(tape, tape.layout()), "") << units << " units, " << slots << " slots";
    }
  }
}

TEST_P(Recompute, UnitsStandInTheOrderOfTheirWorth) {
  const StepMemory none = memory(0), all = memory(INT64_MAX);
  EXPECT_EQ(none.recompute.bytes, 0);
  EXPECT_EQ(all.recompute.units, all.recompute.of);
  EXPECT_LT(all.activations, none.activations * 3 / 4);
  const model::ModelConfig m = task_of({.model = GetParam(), .layout = "dp=1"}).model;
  const int64_t layers = m.encoder_layers + m.decoder_layers;  // whole ones come last
  double last_value = 1e300;
  RecomputeChoice before = none.recompute;
  for (int64_t units = 1; units <= none.recompute.of; ++units) {
    const RecomputeChoice now = memory(units).recompute;
    ASSERT_GT(now.bytes, before.bytes);
    const double value =
        static_cast<double>(now.bytes - before.bytes) / (now.added_ms - before.added_ms);
    if (units <= none.recompute.of - layers) {
      EXPECT_LE(value, last_value * 1.001) << units;
    }
    last_value = value;
    before = now;
  }
  const RecomputeChoice selective = memory({}, "selective").recompute;
  EXPECT_LE(selective.added_ms, 0.03 * none.recompute.micro_batch_ms);
  EXPECT_EQ(memory({}, "full").recompute.units, all.recompute.of);
  EXPECT_EQ(memory({}, "auto").activations, none.activations);
}

INSTANTIATE_TEST_SUITE_P(Models, Recompute, testing::ValuesIn(harness_models()), [](const auto& i) {
  std::string name = i.param;
  std::erase(name, '-');
  return name;
});

// Presets on a card of 4 GiB in fp16: with the batches that their papers' rows need.
struct Card {
  const char* preset;
  int64_t vocab, rows, length;
};
class FourGiB : public testing::TestWithParam<Card> {};

TEST_P(FourGiB, TrainsThePreset) {
  const Card card = GetParam();
  model::ModelConfig c = model::model_preset(card.preset);
  const bool lm = c.kind == model::ModelKind::decoder_only;
  c.vocab_target = card.vocab;
  c.vocab_source = lm ? 0 : card.vocab;
  c.shared_embeddings = !lm;
  c.max_positions = std::max(c.max_positions, card.length);
  c.eos_id = c.bos_id = 0;
  c.pad_id = c.decoder_start_id = 1;
  ParameterStore store({}, DType::f16);
  const model::Transformer model(c, store);
  const auto plan = [&](const MemoryTrial& t) -> std::optional<StepMemory> {
    StepOptions o;
    const int64_t rows = card.rows >> t.halvings;
    if (rows < card.length) return std::nullopt;
    o.shape = {.source_rows = lm ? 0 : rows,
               .target_rows = rows,
               .sequences = rows / card.length,
               .max_source = lm ? 0 : card.length,
               .max_target = card.length};
    o.accumulate = int64_t{1} << t.halvings;
    o.slots = std::max(o.slots, 2 * o.accumulate);
    o.recompute_units = t.units;
    return plan_step(c, store, o, Layout());
  };
  constexpr size_t kLimit = size_t{4} << 30;
  EXPECT_GT(plan({})->total(), kLimit) << "as it is it must not fit";
  parallel::SingleCommunicator alone(Device{});
  MemoryFit fit{.plan = plan, .limit = kLimit, .halvings = MemoryFit::kAnyHalvings};
  for (const bool automatic : {false, true}) {
    fit.automatic = automatic;
    const auto t = fit.cheapest(alone);
    ASSERT_TRUE(t);
    const StepMemory m = *plan(*t);
    EXPECT_LE(m.total(), kLimit);
    RecordProperty(automatic ? "automatic" : "halving", std::to_string(t->halvings));
  }
}
INSTANTIATE_TEST_SUITE_P(Presets, FourGiB,
                         testing::Values(Card{"gpt2-124m", 50257, 16384, 1024},
                                         Card{"big", 32000, 16384, 128}));

}  // namespace
}  // namespace saturate::train
