// SPDX-License-Identifier: Apache-2.0
// State in host memory trains what state on the device trains: losses, gradients and weights to the
// last bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "parallel/planning.h"
#include "parallel/single.h"
#include "train/layout_harness_test.h"
#include "train/state_stream.h"

namespace saturate::train {
namespace {

// MODEL LAYOUT MICRO-BATCHES VARIANT.
class Offload : public testing::TestWithParam<const char*> {};

LayoutResult trained(LayoutCase c, DType type, const std::string& more) {
  c.layout += more;
  LayoutResult result;
  result_of(c, [&](parallel::Communicator& ranks, LayoutTask task) {
    task.type = type;
    LayoutResult mine = run_layout(ranks, task);
    if (ranks.rank() == 0) result = mine;
    return mine;
  });
  return result;
}

TEST_P(Offload, EqualsResidentState) {
  const LayoutCase c = case_of(GetParam());
  const LayoutResult resident = trained(c, DType::f32, ""),
                     offloaded = trained(c, DType::f32, ",offload=true");
  for (const LayoutDistance& d : distances(resident, offloaded)) {
    // Blocks of another group make the same sum in another order; in f64 that is.
    const bool norm = d.what == "square sum of the last gradients";
    EXPECT_LE(d.relative, norm ? 1e-15 : 0.0) << d.what;
  }
  EXPECT_GT(resident.steps.back().loss_sum, 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Offload,
                         testing::Values("gpt dp=1 2", "translation dp=1 2 averaged",
                                         "llama dp=1 2 frozen", "experts dp=2,zero=0,ep=2 2",
                                         "wide-gpt dp=3,zero=1 3 averaged",
                                         "wide-gpt dp=2,zero=2 2", "llama dp=2,zero=3 4 averaged",
                                         "wide-gpt dp=4,dp_shard=2,zero=3 4",
                                         "translation dp=1,tp=2 2", "gpt dp=1,pp=2 4"));

// A model's optimizer alone: what is on the device against what is in the host's memory, with the
// 16-bit copy that no model computes with on a CPU.
struct Optimizer {
  static constexpr int64_t kSize = 70'001;
  ParameterStore store;
  StepState state;
  parallel::SingleCommunicator alone{Device{}};
  Layout layout;
  OptimizerOptions options;

  Optimizer(DType compute, bool offload) : store({}, compute) {
    for (const char* name : {"a", "b", "c"}) {
      ParameterSpec p{.name = name, .cols = kSize, .init = Init::normal, .init_scale = 1};
      p.decay = p.wide = name[0] == 'b';
      store.add(p);
    }
    if (offload) store.offload();
    options.ema_decay = 0.9f;
    options.weight_decay = 0.1f;
    store.allocate(options.purpose());
    store.initialise(Stream(Device{}), 3);
    store.reset_average(Stream(Device{}));
    state.loss_scale = 4;
  }

  void step(float last) {
    const Stream stream(Device{});
    const OptimizerStep optimizer(store, options, 8, stream, alone, layout);
    for (int32_t p = 0; p < 3; ++p) {
      auto* g = static_cast<float*>(store.gradient({p}));
      for (int64_t i = 0; i < kSize; ++i) g[i] = std::sin(0.1f * static_cast<float>(i + p));
    }
    static_cast<float*>(store.gradient({2}))[kSize - 1] = last;
    state.totals[2] = 8;
    StepRecord record;
    optimizer.enqueue({}, stream, &state, &record, 1);
  }

  // All arrays of all parameters.
  std::vector<char> content() const {
    std::vector<char> all;
    for (const StateArray a : kStateArrays) {
      for (int32_t p = 0; p < 3; ++p) {
        const void* const at = store.at(a, {p});
        const size_t bytes = kSize * size_of(store.group_of(store.spec({p})).type_of(a));
        if (at != nullptr && a != StateArray::gradient)
          all.insert(all.end(), static_cast<const char*>(at), static_cast<const char*>(at) + bytes);
      }
    }
    return all;
  }
};

TEST(OffloadedOptimizer, UpdatesTheSixteenBitCopyAlike) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Optimizer resident(type, false), offloaded(type, true);
    EXPECT_TRUE(resident.content() == offloaded.content());
    const std::vector<char> before = offloaded.content();
    for (int i = 0; i < 3; ++i) {
      resident.step(1);
      offloaded.step(1);
    }
    EXPECT_TRUE(resident.content() == offloaded.content()) << name_of(type);
    EXPECT_FALSE(before == offloaded.content());
    EXPECT_EQ(resident.state.updates, 3);
  }
}

TEST(OffloadedOptimizer, LeavesAllAsItIsWhereGradientsOverflow) {
  Optimizer offloaded(DType::f16, true);
  offloaded.step(1);
  const std::vector<char> before = offloaded.content();
  offloaded.step(std::numeric_limits<float>::infinity());
  EXPECT_TRUE(before == offloaded.content());
  EXPECT_EQ(offloaded.state.updates, 1);
  EXPECT_EQ(offloaded.state.loss_scale, 2);
}

TEST(StateStream, ChunksFitTheWindowAndHoldEachElementOnce) {
  const Optimizer offloaded(DType::bf16, true);
  const StateStream stream(offloaded.store);
  const ParameterGroup& group = offloaded.store.trained();
  ASSERT_GT(stream.chunks().size(), 8u);
  int64_t next = 0;
  for (const StateStream::Chunk& c : stream.chunks()) {
    EXPECT_EQ(c.group, &group);
    EXPECT_EQ(c.first, next);
    EXPECT_EQ(c.ranges.front().begin, next);
    EXPECT_EQ(c.elements % kernels::kParameterAlign, 0);
    next += c.elements;
    EXPECT_EQ(c.ranges.back().end, next);
    EXPECT_LE(static_cast<size_t>(c.elements) * 4 * sizeof(float) * StateStream::kDepth,
              StateStream::bytes(offloaded.store, Purpose::averaged_training));
  }
  EXPECT_EQ(next, group.count());
}

// On the device 6 bytes a parameter in 16 bits (the copy and the gradient), 8 in f32, and a window; in
// the host 12 a parameter that the rank owns.
TEST(Offload, LeavesCopyAndGradientOnTheDevice) {
  const model::ModelConfig xl = model::model_preset("gpt2-1558m");
  ParameterStore whole({}, DType::bf16);
  const model::Transformer model(xl, whole);
  const auto count = static_cast<double>(whole.count());
  for (const int ranks : {1, 4}) {
    parallel::PlanningCommunicator communicator({}, ranks - 1, ranks);
    const Layout layout(communicator, {.dp = ranks});
    StepOptions options;
    options.shape = {
        .source_rows = 0, .target_rows = 64, .sequences = 1, .max_source = 0, .max_target = 64};
    options.parallel = {.zero = ranks > 1 ? 1 : 0, .offload = true};
    for (const DType type : {DType::bf16, DType::f32}) {
      const StepMemory m = plan_step(xl, ParameterStore({}, type), options, layout);
      EXPECT_NEAR(static_cast<double>(m.host) / count, 12.0 / ranks, 0.05);
      EXPECT_NEAR(static_cast<double>(m.parameters) / count, type == DType::bf16 ? 6 : 8, 0.05);
      EXPECT_LT(m.optimizer, size_t{320} << 20);
    }
  }
}

}  // namespace
}  // namespace saturate::train
