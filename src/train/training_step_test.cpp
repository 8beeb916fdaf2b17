// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/single.h"
#include "train/frozen.h"

namespace saturate::train {
namespace {

constexpr int64_t kRows = 32, kLength = 8, kVocab = 40;

model::ModelConfig tiny() {
  model::ModelConfig c = model::model_preset("gpt2-124m");
  c.d_model = 32;
  c.heads = c.kv_heads = 2;
  c.head_size = 16;
  c.ffn = 64;
  c.decoder_layers = 2;
  c.vocab_target = kVocab;
  c.vocab_source = 0;
  c.max_positions = kLength;
  c.eos_id = c.bos_id = 0;
  c.pad_id = c.decoder_start_id = 1;
  c.dropout = c.attention_dropout = c.activation_dropout = 0;
  return c;
}

StepOptions options() {
  StepOptions o;
  o.shape = {.source_rows = 0,
             .target_rows = kRows,
             .sequences = kRows / kLength,
             .max_source = 0,
             .max_target = kLength};
  o.optimizer = {.weight_decay = 0.1f,
                 .clip_norm = 0.5f,
                 .ema_decay = 0.9f,
                 .schedule = {.kind = ScheduleKind::constant, .peak_lr = 1e-2f, .warmup_steps = 0}};
  return o;
}

// Sentences of increasing ids; every row has a label.
void fill(const data::BatchLayout& layout, int32_t* words) {
  const data::SideLayout& t = layout.target;
  for (int64_t i = 0; i < kRows; ++i) {
    words[t.ids + i] = static_cast<int32_t>(i);
    words[t.order + i] = static_cast<int32_t>(i);
    words[t.positions + i] = static_cast<int32_t>(i % kLength);
    words[layout.labels + i] = static_cast<int32_t>((i * 7 + 3) % kVocab);
  }
  for (int64_t s = 0; s <= kRows / kLength; ++s)
    words[t.cu + s] = static_cast<int32_t>(s * kLength);
  words[t.valid] = kRows;
}

// Weights and average after three steps, and the last record.
struct Trained {
  std::vector<float> weights, average;
  StepRecord record;
};
Trained train(DType type, const std::vector<std::string>& freeze) {
  StepOptions o = options();
  o.freeze = freeze;
  ParameterStore store({}, type);
  const model::Transformer model(tiny(), store);
  freeze_parameters(store, o.freeze);
  store.allocate(o.optimizer.purpose());
  parallel::SingleCommunicator alone(Device{});
  const Layout layout;
  TrainingStep step(model, store, o, alone, layout);
  store.initialise(step.stream(), 7);
  store.reset_average(step.stream());
  for (int64_t i = 0; i < step.slots(); ++i) fill(step.batch_layout(), step.host_slot(i));
  Trained result;
  for (int i = 0; i < 3; ++i) {
    step.submit();
    step.synchronize();
    EXPECT_TRUE(step.poll(&result.record));
  }
  for (int32_t p = 0; p < std::ssize(store.specs()); ++p) {
    std::vector<float> values(static_cast<size_t>(store.spec({p}).size()));
    store.get(step.stream(), {p}, values);
    result.weights.insert(result.weights.end(), values.begin(), values.end());
    store.get(step.stream(), {p}, values, StateArray::average);
    result.average.insert(result.average.end(), values.begin(), values.end());
  }
  return result;
}

// The same step in doubles throughout: what layouts are proved with.
TEST(TrainingStep, RunsInDoublesThroughout) {
  const Trained narrow = train(DType::f32, {}), wide = train(DType::f64, {});
  EXPECT_EQ(wide.record.step, 3);
  EXPECT_EQ(wide.record.skipped, 0);
  EXPECT_NEAR(wide.record.loss_sum, narrow.record.loss_sum, 1e-4 * narrow.record.loss_sum);
  EXPECT_NEAR(wide.record.grad_norm, narrow.record.grad_norm, 1e-4f * narrow.record.grad_norm);
  EXPECT_GT(wide.record.grad_norm, options().optimizer.clip_norm) << "clipping is at work";
  size_t moved = 0;
  ASSERT_EQ(wide.weights.size(), narrow.weights.size());
  for (size_t i = 0; i < wide.weights.size(); ++i) {
    // An update is lr at most; where a gradient vanishes its sign is noise, so that two of the three
    // may differ.
    ASSERT_NEAR(wide.weights[i], narrow.weights[i], 4e-2f) << i;
    if (std::fabs(wide.weights[i] - narrow.weights[i]) < 1e-5f) ++moved;
    if (std::fabs(wide.average[i] - narrow.average[i]) < 1e-5f) ++moved;
  }
  EXPECT_GT(static_cast<double>(moved), 0.98 * 2 * static_cast<double>(wide.weights.size()));
}

TEST(TrainingStep, FrozenParametersStayAndTheOthersMove) {
  ParameterStore start({}, DType::f32);
  const model::Transformer model(tiny(), start);
  start.allocate(Purpose::inference);
  start.initialise(Stream(Device{}), 7);
  const Trained after = train(DType::f32, {"decoder.layers.0.*", "decoder.embed.weight"});
  size_t at = 0;
  for (int32_t p = 0; p < std::ssize(start.specs()); ++p) {
    const ParameterSpec& spec = start.spec({p});
    std::vector<float> before(static_cast<size_t>(spec.size()));
    start.get(Stream(Device{}), {p}, before);
    const bool frozen =
        spec.name.starts_with("decoder.layers.0.") || spec.name == "decoder.embed.weight";
    const std::span now(&after.weights[at], before.size()),
        average(&after.average[at], before.size());
    EXPECT_EQ(std::ranges::equal(now, before), frozen) << spec.name;
    EXPECT_EQ(std::ranges::equal(average, before), frozen) << spec.name;
    at += before.size();
  }
}

// In fp32 what is frozen keeps 4 bytes a parameter of 20.
TEST(TrainingStep, ThePlanLeavesOutTheMemoryOfFrozenParameters) {
  StepOptions o = options();
  ParameterStore store({}, DType::f32);
  const model::Transformer model(tiny(), store);
  const Layout alone;
  const StepMemory before = plan_step(tiny(), store, o, alone);
  const auto count = static_cast<size_t>(store.padded_count());
  EXPECT_EQ(before.parameters, count * 8);
  EXPECT_EQ(before.optimizer, count * 12);
  o.freeze = {"decoder.layers.*"};
  freeze_parameters(store, o.freeze);
  const auto left = static_cast<size_t>(store.padded_count());
  ASSERT_LT(left, count / 2);
  const StepMemory after = plan_step(tiny(), store, o, alone);
  EXPECT_EQ(after.parameters, count * 4 + left * 4);
  EXPECT_EQ(after.optimizer, left * 12);
  EXPECT_LE(after.activations, before.activations);
}

}  // namespace
}  // namespace saturate::train
