// SPDX-License-Identifier: Apache-2.0
// Sums that travel in 8 bits, in f64 on lockstep ranks: what they apply, what they keep, and whole
// steps and checkpoints with them.
#include "train/coded_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "base/philox.h"
#include "base/testing/temp_folder.h"
#include "ops/parameters.h"
#include "parallel/lockstep.h"
#include "train/checkpoint_state.h"
#include "train/layout_harness_test.h"

namespace saturate::train {
namespace {

using saturate::testing::TempFolder;
using Axis = parallel::MeshAxis;

double uniform(uint64_t key, uint64_t a, uint64_t b) {
  return static_cast<double>(philox4x32(key, a, b).x[0]) * 0x1p-31 - 1;
}

struct Kept {
  std::vector<std::vector<double>> applied, residuals;  // by rank
  std::vector<double> exact;
};

// `rounds` sums of random values, other ones each time; the residuals are added up and dealt out
// again behind round `fold`, as a checkpoint does.
Kept run_sums(int ranks, int64_t count, int rounds, int fold = -1) {
  Kept k;
  k.applied.resize(static_cast<size_t>(ranks));
  k.residuals.resize(static_cast<size_t>(ranks));
  k.exact.assign(static_cast<size_t>(count), 0);
  for (int round = 0; round < rounds; ++round)
    for (int r = 0; r < ranks; ++r)
      for (int64_t i = 0; i < count; ++i)
        k.exact[static_cast<size_t>(i)] += uniform(
            static_cast<uint64_t>(r), static_cast<uint64_t>(round), static_cast<uint64_t>(i));
  parallel::run_lockstep(ranks, [&](parallel::Communicator& c) {
    const Stream stream(Device{});
    CodedSums sums(c, stream, DType::f64);
    std::vector<double> values(static_cast<size_t>(count)), residual(values.size()),
        applied(values.size());
    sums.add(
        {.ranks = c.world(), .values = values.data(), .residual = residual.data(), .count = count});
    sums.allocate();
    for (int round = 0; round < rounds; ++round) {
      for (int64_t i = 0; i < count; ++i)
        values[static_cast<size_t>(i)] =
            uniform(static_cast<uint64_t>(c.rank()), static_cast<uint64_t>(round),
                    static_cast<uint64_t>(i));
      sums.enqueue(0, stream, {});
      sums.join();
      for (size_t i = 0; i < values.size(); ++i) applied[i] += values[i];
      if (round != fold) continue;
      sums.add_up_residuals();
      sums.keep_own_parts();
    }
    k.applied[static_cast<size_t>(c.rank())] = applied;
    k.residuals[static_cast<size_t>(c.rank())] = residual;
  });
  return k;
}

// Of all steps together nothing is lost but what ranks keep, and that is less than one rounding each.
void expect_nothing_lost(const Kept& k, int ranks) {
  // Of values up to `ranks` in blocks whose largest is 127 scales.
  const double rounding = (1.02 + ranks) / 127;
  for (size_t i = 0; i < k.exact.size(); ++i) {
    double kept = 0;
    for (const auto& r : k.residuals) {
      EXPECT_LE(std::abs(r[i]), rounding) << i;
      kept += r[i];
    }
    EXPECT_NEAR(k.applied[0][i] + kept, k.exact[i], 1e-11) << i;
  }
  for (const auto& applied : k.applied)
    EXPECT_EQ(std::memcmp(applied.data(), k.applied[0].data(), applied.size() * sizeof(double)), 0)
        << "ranks go on with different sums";
}

// Parts that are equal, that the last rank has less of, and that some ranks have nothing of.
TEST(CodedSums, WhatIsAppliedIsTheExactSumButForOneResidual) {
  for (const int ranks : {2, 3, 5}) {
    for (const int64_t count : {64, 256, 1000, 4096}) {
      SCOPED_TRACE(::testing::Message() << count << " over " << ranks);
      expect_nothing_lost(run_sums(ranks, count, 60), ranks);
    }
  }
}

TEST(CodedSums, ACheckpointLosesNothing) {
  for (const int ranks : {2, 3}) expect_nothing_lost(run_sums(ranks, 1000, 40, 17), ranks);
}

TEST(CodedSums, AQuarterOfTheBytesTravels) {
  parallel::run_lockstep(4, [&](parallel::Communicator& c) {
    const Stream stream(Device{});
    CodedSums sums(c, stream, DType::f32);
    sums.add({.ranks = c.world(), .count = 1 << 20});
    int64_t words = 0;
    for (const parallel::Collective& each : sums.collectives(0))
      words += each.kind == parallel::CollectiveKind::all_to_all
                   ? each.send_counts[0] + each.send_counts[1] + each.send_counts[2] +
                         each.send_counts[3]
                   : each.count * 3;
    // An all-reduce of a million numbers sends 2 x 3/4 of them from each of four ranks.
    EXPECT_NEAR(static_cast<double>(words) / (2 * 0.75 * (1 << 20)), 0.254, 0.001);
  });
}

// Copies inside and between axes: every level, tables of two stages and of a V, experts, matrices
// that tensor-parallel ranks cut and nobody else shares.
TEST(CodedSums, StepsStayClose) {
  for (const char* text : {"translation dp=2,zero=0,reduce_between=int8 4",
                           "wide-gpt dp=4,dp_shard=2,zero=1,reduce_between=int8 4",
                           "wide-gpt dp=4,dp_shard=2,zero=2,reduce_between=int8 8",
                           "gpt dp=4,dp_shard=2,zero=3,reduce_between=int8 8",
                           "llama tp=2,dp=2,dp_shard=1,zero=1,reduce_between=int8 4",
                           "translation dp=2,pp=2,zero=0,reduce_between=int8 4",
                           "translation dp=4,pp=2,dp_shard=2,zero=2,reduce_between=int8 8",
                           "dropless dp=4,ep=2,dp_shard=2,zero=1,reduce_between=int8 4"}) {
    const LayoutCase c = case_of(text);
    ASSERT_EQ(refusal_of(c), "");
    std::vector<LayoutDistance> apart = distances(reference_of(c), result_of(c));
    // Not weights: AdamW's first steps move each by the sign of its gradient, and where that is zero
    // (biases of keys) rounding decides. Losses of further steps are here.
    std::erase_if(apart, [](const LayoutDistance& d) { return d.what.starts_with("weights"); });
    EXPECT_EQ(first_beyond(apart, 0.03), "") << text;
    EXPECT_NE(first_beyond(apart, 1e-5), "") << text << ": nothing was rounded";
  }
}

// A layout in the middle of a run.
struct Running {
  Running(parallel::Communicator& ranks, const LayoutTask& given)
      : task(given),
        layout(ranks, mesh_extents(task.parallel, ranks.size())),
        store({}, DType::f64) {
    const int dp = layout.extent(Axis::dp);
    task.options.accumulate = task.options.slots = task.micro_batches / dp;
    task.options.parallel = resolve_parallel(task.parallel, ranks.size());
    model.emplace(task.model, store, layout,
                  plan_pipeline(task.model, task.options.shape, task.options.accumulate,
                                task.options.parallel, layout)
                      .stages);
    allocate_for_steps(store, task.options, layout);
    model->make_tables(store);
    step.emplace(*model, store, task.options, ranks, layout);
    store.initialise(step->stream(), task.seed);
  }
  void train(int64_t number) {
    for (int64_t a = 0; a < task.options.accumulate; ++a) {
      const int64_t taken = number * task.options.accumulate + a, slot = step->next_slot() + a;
      task.fill(step->batch_layout(), taken * layout.extent(Axis::dp) + layout.coordinate(Axis::dp),
                step->host_slot(slot % step->slots()));
    }
    step->submit();
    step->synchronize();
  }
  LayoutTask task;
  Layout layout;
  ParameterStore store;
  std::optional<model::Transformer> model;
  std::optional<TrainingStep> step;
};

// Of all ranks, by element of the model; and this rank's masters.
struct Content {
  std::vector<double> residual, masters;
};
Content content_of(Running& r, parallel::Communicator& ranks) {
  Content c;
  for (const ParameterSpec& p : r.store.specs()) {
    std::vector<double> all(static_cast<size_t>(p.size()), 0);
    const auto add = [&](StateArray a, std::vector<double>& to) {
      for_held(r.store, p, a, Held::owned, {}, 1 << 20,
               [&](char* memory, int64_t, std::span<const HeldRun> runs) {
                 for (const HeldRun& run : runs)
                   for (int64_t i = 0; i < run.length; ++i)
                     to[static_cast<size_t>(run.whole + i)] +=
                         reinterpret_cast<const double*>(memory)[run.at + i];
               });
    };
    if (r.store.group_of(p).keeps(StateArray::residual, r.store.purpose()))
      add(StateArray::residual, all);
    const parallel::Collective sum{
        .group = ranks.world(), .dtype = DType::f64, .count = std::ssize(all)};
    ranks.wait(ranks.start(sum, nullptr, all.data(), {}), {});
    c.residual.insert(c.residual.end(), all.begin(), all.end());
    std::vector<double> mine(all.size(), 0);
    add(StateArray::master, mine);
    c.masters.insert(c.masters.end(), mine.begin(), mine.end());
  }
  return c;
}

void save(Running& r, parallel::Communicator& communicator, const TempFolder& folder) {
  const Together ranks(communicator);
  ParameterStore all({}, DType::f64);
  const model::Transformer declared(r.task.model, all);
  r.step->add_up_residuals();
  for (const StateFile which : {StateFile::optimizer, StateFile::residual}) {
    const std::string path = folder / (which == StateFile::residual ? "residual" : "optimizer");
    const auto tensors = state_tensors(all, r.store.purpose(), which);
    ranks.first([&] { model::SafetensorsWriter::begin(path, tensors); });
    const std::vector<Share> shares = shares_of_copies(r.store, r.layout, ranks);
    ranks.all([&] {
      model::SafetensorsWriter file(path, tensors, DurableFile::Join{});
      write_owned(file, tensors, r.store, r.step->stream(), shares, which);
      file.commit();
    });
  }
  r.step->keep_own_residuals();
}

void load(Running& r, const TempFolder& folder, const StepState& state) {
  read_owned(model::SafetensorsReader(folder / "optimizer"), r.store, r.step->stream());
  read_owned(model::SafetensorsReader(folder / "residual"), r.store, r.step->stream(),
             StateFile::residual);
  r.step->keep_own_residuals();
  r.step->set_state(state);
}

// The same layout goes on bit by bit; another one has the same left to add.
TEST(CodedSums, RunsGoOnFromTheirCheckpoints) {
  const LayoutTask task = task_of(case_of("wide-gpt dp=4,dp_shard=2,zero=2,reduce_between=int8 4"));
  const TempFolder folder;
  StepState state;
  std::vector<double> left;
  parallel::run_lockstep(4, [&](parallel::Communicator& ranks) {
    Running run(ranks, task);
    for (const int64_t s : {0, 1}) run.train(s);
    const Content before = content_of(run, ranks);
    save(run, ranks, folder);
    const Content after = content_of(run, ranks);
    for (size_t i = 0; i < after.residual.size(); ++i)
      ASSERT_NEAR(after.residual[i], before.residual[i], 1e-15) << i;
    const StepState here = run.step->state();
    if (ranks.rank() == 0) state = here, left = after.residual;
    ranks.barrier();
    Running resumed(ranks, task);
    load(resumed, folder, state);
    EXPECT_EQ(content_of(resumed, ranks).residual, after.residual);
    run.train(2);
    resumed.train(2);
    EXPECT_EQ(content_of(resumed, ranks).masters, content_of(run, ranks).masters);
    EXPECT_EQ(content_of(resumed, ranks).residual, content_of(run, ranks).residual);
  });
  double most = 0;
  for (const double v : left) most = std::max(most, std::abs(v));
  EXPECT_GT(most, 1e-4);
  const LayoutTask other = task_of(case_of("wide-gpt dp=2,zero=0,reduce_between=int8 4"));
  parallel::run_lockstep(2, [&](parallel::Communicator& ranks) {
    Running resumed(ranks, other);
    load(resumed, folder, state);
    EXPECT_EQ(content_of(resumed, ranks).residual, left);
  });
}

}  // namespace
}  // namespace saturate::train
