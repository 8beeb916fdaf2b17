// SPDX-License-Identifier: Apache-2.0
// The memory that is foretold is what steps take.
#include <gtest/gtest.h>

#include "parallel/lockstep.h"
#include "plan/recorded.h"
#include "runtime/memory_use.h"
#include "train/model_setup.h"
#include "train/parallel_setup.h"
#include "train/step_timing.h"

namespace saturate::plan {
namespace {

constexpr int64_t kLength = 32;

// Bytes of the arrays of all ranks, once their steps are made.
double taken_bytes(const RunConfig& config, int ranks) {
  const size_t before = buffer_bytes();
  size_t taken = 0;
  parallel::run_lockstep(ranks, [&](parallel::Communicator& communicator) {
    const train::TimedShape shape = train::timed_shape(config, kLength);
    const Layout layout(communicator, train::mesh_extents(config.parallel, ranks),
                        train::transfer_options(config.parallel));
    const train::StepOptions options = train::resolve_step(config, shape.batch, ranks);
    ParameterStore store({}, DType::f32);
    model::Transformer model(
        shape.model, store, layout,
        train::plan_pipeline(shape.model, shape.batch, options.accumulate, options.parallel, layout)
            .stages);
    train::allocate_for_steps(store, options, layout);
    model.make_tables(store);
    const train::TrainingStep step(model, store, options, communicator, layout);
    communicator.barrier();
    taken = buffer_bytes() - before;
    communicator.barrier();
  });
  return static_cast<double>(taken);
}

struct Case {
  int ranks;
  const char* layout;
  int64_t experts = 0;
};

class Memory : public testing::TestWithParam<Case> {};

TEST_P(Memory, IsForetoldWithinOnePercent) {
  const auto& [ranks, layout, experts] = GetParam();
  RunConfig c;
  c.model.preset = "tiny";
  c.model.experts = experts;
  c.model.dropout = experts > 0 ? 0.0 : 0.1;
  c.batch.target_tokens = 512;
  c.batch.accumulate = 4;
  c.train.precision = "fp32";
  set_parallel(c, layout);
  Machine any;
  any.memory_bytes = INT64_MAX;
  any.gpu = false;
  any.devices_per_host = 64;
  any.compute.tflops[DType::f32] = any.compute.bandwidth_gbs = any.inside.gbs = 1;
  double foretold = 0;
  for (const Recorded& stage : record_stages(c, kLength, ranks, {}, {}, any))
    foretold +=
        static_cast<double>(stage.memory.total()) * ranks / static_cast<double>(c.parallel.pp);
  const double taken = taken_bytes(c, ranks);
  EXPECT_NEAR(foretold / taken, 1, 0.01) << foretold << " of " << taken;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Memory,
    testing::Values(Case{1, "dp=1"}, Case{1, "dp=1,recompute=selective"},
                    Case{1, "dp=1,recompute=full"}, Case{2, "dp=2,zero=0"}, Case{2, "dp=2,zero=1"},
                    Case{2, "dp=2,zero=2"}, Case{2, "dp=2,zero=3"}, Case{2, "tp=2"},
                    Case{2, "cp=2,zero=1"}, Case{2, "pp=2,schedule=gpipe"},
                    Case{2, "pp=2,schedule=1f1b"}, Case{2, "pp=2,schedule=zero-bubble,chunks=2"},
                    Case{2, "pp=2,schedule=interleaved,chunks=2,recompute=selective"},
                    Case{4, "dp=2,pp=2,zero=1,schedule=zero-bubble"},
                    Case{4, "tp=2,pp=2,recompute=full"}, Case{2, "dp=2,zero=1,ep=2", 4}));

}  // namespace
}  // namespace saturate::plan
