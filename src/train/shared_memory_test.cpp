// SPDX-License-Identifier: Apache-2.0
// Bytes of state that a rank holds: those of Rajbhandari et al., arXiv:1910.02054, with gradients of
// fp32.
#include <gtest/gtest.h>

#include "model/model_config.h"
#include "parallel/planning.h"
#include "train/training_step.h"

namespace saturate::train {
namespace {

double state_bytes(const model::ModelConfig& config, int ranks, int zero, int64_t* activations,
                   int dp_shard = 0) {
  parallel::PlanningCommunicator communicator({}, ranks - 1, ranks);
  const Layout layout(communicator, {.dp = ranks, .dp_shard = dp_shard});
  const ParameterStore like({}, DType::bf16);
  StepOptions options;
  options.shape = {
      .source_rows = 0, .target_rows = 64, .sequences = 1, .max_source = 0, .max_target = 64};
  options.parallel.zero = zero;
  const StepMemory m = plan_step(config, like, options, layout);
  if (activations != nullptr) *activations = static_cast<int64_t>(m.activations);
  ParameterStore whole({}, DType::bf16);
  const model::Transformer model(config, whole);
  return static_cast<double>(m.parameters + m.optimizer) / static_cast<double>(whole.count());
}

TEST(SharedMemory, FollowsTheRanksAndTheLevel) {
  const model::ModelConfig xl = model::model_preset("gpt2-1558m");
  EXPECT_NEAR(state_bytes(xl, 1, 0, nullptr), 18, 0.01);
  for (const int n : {2, 4}) {
    const auto near = [n](double want, double got, int zero) {
      EXPECT_NEAR(got, want, 0.01 * want) << "zero " << zero << " on " << n;
    };
    int64_t whole = 0, gradients = 0, all = 0;
    near(18, state_bytes(xl, n, 0, &whole), 0);
    near(6 + 12.0 / n, state_bytes(xl, n, 1, nullptr), 1);
    near(2 + 16.0 / n, state_bytes(xl, n, 2, &gradients), 2);
    near(18.0 / n, state_bytes(xl, n, 3, &all), 3);
    near(2 + 16.0 / n, state_bytes(xl, 3 * n, 2, nullptr, n), 2);  // three copies
    // What the arena takes instead: gradients of the table and two layers (a third where they
    // overlap), and as much in bf16 for gathers.
    const int64_t layer = 12 * 1600 * 1600, table = 50304 * 1600;
    EXPECT_LT(gradients - whole, 4 * (table + 3 * layer));
    EXPECT_LT(all - whole, 4 * (table + 3 * layer) + 2 * (table + 3 * layer));
  }
}

model::ModelConfig small_gpt() {
  model::ModelConfig m = model::model_preset("gpt2-124m");
  m.d_model = 48;
  m.heads = m.kv_heads = 4;
  m.head_size = 12;
  m.ffn = 192;
  m.decoder_layers = 4;
  m.vocab_target = 101;
  return m;
}

// Gathers and reductions beside the computation never share memory with what it uses.
TEST(SharedMemory, ListsOfSharedUnitsAreSound) {
  const model::ModelConfig m = small_gpt();
  parallel::PlanningCommunicator communicator({}, 1, 4);
  const Layout layout(communicator, {.dp = 4});
  const ParameterStore like({}, DType::bf16);
  StepOptions options;
  options.shape = {
      .source_rows = 0, .target_rows = 64, .sequences = 1, .max_source = 0, .max_target = 64};
  for (const int zero : {2, 3}) {
    for (const char* recompute : {"none", "full"}) {
      for (const DType reduce : {DType::f32, DType::bf16}) {
        options.parallel = {.zero = zero, .recompute = recompute, .reduce = reduce};
        size_t gathers = 0;
        plan_step(m, like, options, layout, [&](const MicroBatches& micro_batches) {
          micro_batches.look([&](const Tape& tape) {
            EXPECT_EQ(flaw_of(tape, tape.layout()), "") << zero << recompute;
            for (size_t i = 0; i < tape.operations(); ++i)
              gathers += std::string_view(tape.operation(i).name) == "gather_unit" ? 1 : 0;
          });
        });
        // Each layer forward and backward; the table for lookups, and for the logits with their
        // gradient.
        EXPECT_EQ(gathers, zero == 3 ? 10u : 0u);
      }
    }
  }
}

// What a stage of a pipeline shares out takes no memory from one action to another: neither the
// gradient of a unit, which a micro-batch's last gradients of it begin and end, nor gathered weights.
TEST(SharedMemory, MicroBatchesOnTheirWayKeepNoUnits) {
  const model::ModelConfig m = small_gpt();
  StepOptions options;
  options.shape = {
      .source_rows = 0, .target_rows = 64, .sequences = 1, .max_source = 0, .max_target = 64};
  options.accumulate = 4;
  const ParameterStore like({}, DType::bf16);
  for (const int rank : {1, 3}) {  // stage 0 and 1
    parallel::PlanningCommunicator communicator({}, rank, 4);
    const Layout layout(communicator, {.dp = 2, .pp = 2});
    for (const char* schedule : {"1f1b", "interleaved", "zero-bubble"}) {
      std::vector<size_t> stashes;
      for (const int zero : {1, 2, 3}) {
        options.parallel = {.zero = zero, .schedule = schedule, .recompute = "none"};
        options.parallel.chunks = schedule == std::string_view("interleaved") ? 2 : 1;
        size_t stash = 0;
        plan_step(m, like, options, layout, [&](const MicroBatches& list) {
          list.look([&](const Tape& tape) {
            EXPECT_EQ(flaw_of(tape, tape.layout()), "") << schedule << zero;
            stash += static_cast<size_t>(tape.layout().slots) * tape.layout().stash_bytes;
          });
        });
        stashes.push_back(stash);
      }
      EXPECT_EQ(stashes[1], stashes[0]) << schedule << ", rank " << rank;
      EXPECT_EQ(stashes[2], stashes[0]) << schedule << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace saturate::train
