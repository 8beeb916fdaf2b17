// SPDX-License-Identifier: Apache-2.0
// One training step as the device sees it: intake of the batch, forward, backward, reduction over
// ranks, AdamW; recorded once, captured once, replayed.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "model/transformer.h"
#include "ops/layout.h"
#include "runtime/memory.h"
#include "runtime/replay.h"
#include "train/coded_sums.h"
#include "train/micro_batches.h"
#include "train/optimizer_step.h"
#include "train/parallel_setup.h"
#include "train/pipeline_setup.h"
#include "train/recompute.h"
#include "train/routing.h"

namespace saturate::train {

struct StepOptions {
  data::BatchShape shape;
  int64_t accumulate = 1;  // micro-batches in a step
  int64_t slots = 4;       // batches that may be on their way; at least accumulate
  float label_smoothing = 0.1f;
  std::vector<std::string> freeze;  // patterns, see frozen.h
  OptimizerOptions optimizer;
  bool fp8 = false;                                 // ParameterStore::multiply_in_fp8()
  std::optional<kernels::BlockFormat> blocks = {};  // ParameterStore::multiply_in_blocks()
  bool graph = true;  // capture the step as one CUDA graph (no effect on the CPU)
  int64_t bucket_bytes = int64_t{25} << 20;
  uint64_t seed = 1;
  ParallelOptions parallel;
  // How much to compute again (RecomputeUnits); none: as parallel.recompute says.
  std::optional<int64_t> recompute_units = {};
};

// What a step will take, known before anything is allocated.
struct StepMemory {
  size_t parameters = 0;   // masters, gradients of what trains, low-precision copy
  size_t optimizer = 0;    // moments and average of what trains; offloaded, the window they pass
  size_t activations = 0;  // the arena
  size_t activations_unshared = 0;
  size_t batches = 0;
  size_t workspace = 0;
  size_t host = 0;  // not of the device: the state that parallel.offload keeps in host memory
  RecomputeChoice recompute;
  size_t total() const noexcept {
    return parameters + optimizer + activations + batches + workspace;
  }
};
// Of this rank's part of a step on parameters like those: on that device, of that type, with those
// kernels. `look` sees the micro-batches, whose lists are planned, before they go. `known`: what
// plan_pipeline() gave for these options on any rank; null: it is called here.
StepMemory plan_step(const model::ModelConfig& config, const ParameterStore& like,
                     const StepOptions& options, const Layout& layout,
                     const std::function<void(const MicroBatches&)>& look = {},
                     const Pipeline* known = nullptr);

// Memory of `store` for such steps, shared between the ranks of `layout` as options.parallel says.
// Errors: out_of_memory.
void allocate_for_steps(ParameterStore& store, const StepOptions& options, const Layout& layout);

class TrainingStep {
 public:
  // `store` is that of allocate_for_steps(); `model` declared its parameters in it, for the stages of
  // plan_pipeline(); options.freeze had been applied to it; `layout` is over all of `ranks`. All four
  // outlive this. Collective over all ranks.
  // Errors: out_of_memory (what the plan needs and what is free).
  TrainingStep(const model::Transformer& model, ParameterStore& store, const StepOptions& options,
               parallel::Communicator& ranks, const Layout& layout);
  ~TrainingStep();

  // --- the way in
  // Host memory of slot i, where the loader writes micro-batch number m with m % slots == i. The
  // loader calls wait_slot first: it returns when the copy of the slot's previous content has left
  // it.
  int64_t slots() const noexcept { return options_.slots; }
  int64_t next_slot() const noexcept { return micro_ % options_.slots; }
  int32_t* host_slot(int64_t i) noexcept;
  void wait_slot(int64_t i);
  const data::BatchLayout& batch_layout() const noexcept { return batch_layout_; }
  const Pipeline& pipeline() const noexcept { return pipeline_; }

  // Enqueues one step on the next `accumulate` micro-batches, which must be complete in their
  // slots. Returns at once on a GPU; the first call also captures the graph. Errors: device,
  // collective.
  void submit();

  // --- the way out
  // The record of the next step that has finished, in order; false when none is new. Never blocks.
  bool poll(StepRecord* record);
  // Collective, between steps: what experts were given since the last call (RoutingTotals::take).
  std::vector<RoutingRow> take_routing() { return routing_.take(submitted_, compute_, ranks_); }
  bool device_idle() const;  // everything submitted has finished
  void synchronize();
  int64_t submitted() const noexcept { return submitted_; }

  // What sums in 8 bits keep for the next step (StateArray::residual), for checkpoints: collective,
  // between steps. From add_up_residuals() on every rank holds what all of them keep, until
  // keep_own_residuals(), which must follow; that is also called when such sums have been read.
  void add_up_residuals() { coded_.add_up_residuals(); }
  void keep_own_residuals() { coded_.keep_own_parts(); }

  // --- state (synchronise); rng[1] is the number of micro-batches of all ranks
  StepState state();
  void set_state(const StepState& state);  // also tells where polling continues

  const Stream& stream() const noexcept { return compute_; }
  size_t graph_nodes() const noexcept { return replay_.nodes(); }
  size_t operations() const noexcept { return micro_batches_->operations(); }
  size_t arena_bytes() const noexcept { return micro_batches_->arena_bytes(); }
  // GPU time of the last submitted step, begin to end of its work, once it has finished; 0 on the
  // CPU.
  double last_step_ms();
  // GPU time of the steps polled since the last call, but for the newest; 0 on the CPU.
  double take_device_ms() noexcept { return std::exchange(device_ms_, 0.0); }

 private:
  void plan_collectives();
  void plan_copies();
  void plan_tables();
  parallel::Collective loss_reduction() const;
  // This rank among those that take different micro-batches, and how many of them there are.
  int data_rank() const noexcept { return layout_.coordinate(Layout::Axis::dp); }
  int data_ranks() const noexcept { return layout_.extent(Layout::Axis::dp); }
  void allocate_device();
  void enqueue();  // the body that is captured

  const model::Transformer& model_;
  ParameterStore& store_;
  StepOptions options_;
  parallel::Communicator& ranks_;
  const Layout& layout_;
  data::BatchLayout batch_layout_;

  Stream compute_, copy_;
  std::vector<Stream> beside_;  // lanes 1, 2, ... of the tape, which only move data
  Buffer state_;                // StepState
  RoutingTotals routing_;
  Buffer slots_, slot_pointers_;
  HostBuffer host_slots_, ring_;
  std::vector<Event> copied_, consumed_;
  std::vector<Event> begin_, end_;  // of the last kTimedSteps steps
  double device_ms_ = 0;
  Buffer workspace_;

  const Pipeline pipeline_;
  std::optional<MicroBatches> micro_batches_;
  OptimizerStep optimizer_;
  struct Table {  // that several chunks of the pipeline use
    ParameterId id;
    parallel::Group holders;  // ranks that hold it; one: this one alone
  };
  std::vector<Table> tables_;
  struct HeldTable {  // elements of a table whose sums this rank holds
    char* gradient;
    int64_t begin, end;
  };
  HeldTable held_of(const Table& table) const;
  parallel::Collective table_sum(const Table& table) const;
  void sum_tables(const Context& ctx) const;
  // A reduction that starts after a moment, or a gather that is waited for before one.
  struct Bucket {
    MicroBatches::Moment moment;
    parallel::Collective collective;
    void *input, *output;
  };
  // Or one of coded_, by its number.
  struct Reduction : Bucket {
    int64_t coded = -1;
  };
  void add_coded(MicroBatches::Moment moment, const ParameterGroup& group, size_t bucket);
  CodedSums coded_;
  std::vector<Reduction> reductions_;  // in the order in which they start, as gathers are
  std::vector<Bucket> gathers_;
  Replay replay_;
  int64_t submitted_ = 0;                  // steps
  int64_t micro_ = 0;                      // micro-batches
  int64_t polled_ = 0, first_polled_ = 0;  // the first: where this process began
};

}  // namespace saturate::train
