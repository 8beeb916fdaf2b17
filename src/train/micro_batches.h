// SPDX-License-Identifier: Apache-2.0
// The micro-batches of a step: this rank's chunks of the model, each a tape, and the interpreter that
// runs the rank's list of actions on them. On one rank the list is F0 B0 F1 B1 ...
//
// All places are decided before anything runs, by walking the list once. A micro-batch has a batch
// block (tokens and random state) on the rank from its first forward to its last gradient, a stash
// in each chunk's tape from the chunk's forward to the last of its gradients, and a place in a ring
// of each boundary for what passes there. What passes between two chunks of one rank lies in one
// ring and is not copied.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "kernels/optimizer/optimizer.h"
#include "model/transformer.h"
#include "ops/layout.h"
#include "train/pipeline_setup.h"
#include "train/recompute.h"

namespace saturate::train {

class MicroBatches {
 public:
  struct Setup {
    data::BatchShape shape;
    float label_smoothing = 0;
    size_t workspace_bytes = 0;  // 0: what tapes take by themselves
    std::string recompute = "none";
    std::optional<int64_t> recompute_units = {};  // see choose_recomputation()
    double* routing = nullptr;                    // AuxiliaryLosses::routing
  };
  // Records the tapes and plans all memory. Takes it too when `store` is allocated; `state` is the
  // device's StepState then, else null. `pipeline` is plan_pipeline()'s, and model.stages() are its
  // stages. References outlive this. Errors: out_of_memory.
  MicroBatches(const model::Transformer& model, const ParameterStore& store, const Setup& setup,
               const parallel::pipeline::Schedule& schedule, const Layout& layout,
               StepState* state);

  size_t arena_bytes() const noexcept { return arena_bytes_; }  // and what passes
  size_t unshared_bytes() const noexcept { return unshared_bytes_; }
  size_t batch_bytes() const noexcept { return static_cast<size_t>(blocks_) * block_bytes_; }
  size_t operations() const noexcept;
  const RecomputeChoice& recompute() const noexcept { return recompute_; }  // of all chunks

  // Each chunk's list of operations.
  void look(const std::function<void(const Tape&)>& at) const {
    for (const Chunk& c : chunks_) at(*c.tape);
  }

  // Moments of the list: after an operation of a chunk's tape, or after a transfer.
  using Moment = int64_t;
  struct FinishedGradient {
    int32_t parameter;
    Moment moment;
    friend bool operator==(const FinishedGradient&, const FinishedGradient&) = default;
  };
  // Parameters in the order in which their gradients are finished on this rank. A stage's last
  // gradients go on their way first, so nothing is finished before they have. Parameters that
  // several chunks use are not among them: they are finished when enqueue() ends, up to the sum
  // over their holders.
  std::vector<FinishedGradient> finished_gradients() const;
  // Buckets of the gradients that ranks share (Tape::reduced_units), by the moment from which this
  // rank's share of the step's sum is there on lane 1, up to the sum over the holders.
  struct ReducedUnit {
    int32_t group;
    size_t bucket;
    Moment moment;
  };
  std::vector<ReducedUnit> reduced_units() const;
  // By parameter: before which moment of the step it is first read; the largest when it never is.
  std::vector<Moment> first_uses() const;
  int32_t lanes() const noexcept;  // of all tapes
  // The transfers that enqueue() starts, in order.
  struct Transfer {
    Moment moment;
    parallel::Collective collective;
  };
  std::vector<Transfer> transfers() const;

  // What enqueue() does, in order, for those who estimate times.
  struct Listed {
    parallel::pipeline::Action action;
    size_t chunk = 0;                       // among this rank's, as look() shows them
    std::vector<OperationRange> runs = {};  // of the chunk's operations; none: a transfer
    std::vector<size_t> waits = {};         // transfers of the list that have ended before it
  };
  std::vector<Listed> list() const;
  // The place of a moment in list(), and the chunk's operation; a transfer's lies behind all others.
  static std::pair<size_t, int32_t> place_of(Moment moment);

  struct Hooks {                         // or none
    std::function<void(Moment)> before;  // of every operation
    std::function<void(Moment)> after;   // every moment from the first finished gradient on
    bool scales_known = false;           // Tape::RunOptions
  };
  // Enqueues all micro-batches of a step. `intake` brings the next one of this rank to intake.dst,
  // which is filled in here. `lanes`: as Tape::RunOptions has them, lanes() of them, or none. Begins
  // with clearing the gradients that several chunks add to, but where ranks share gradients, all of
  // which the caller clears. Errors: collective, device.
  void enqueue(const Context& ctx, const Stream& stream, std::span<const Lane> lanes,
               parallel::Communicator& ranks, kernels::BatchIntakeArgs intake,
               const Hooks& hooks) const;

 private:
  using Action = parallel::pipeline::Action;
  using ActionKind = parallel::pipeline::ActionKind;

  // Places for numbers that come and go; the lowest free one is taken.
  struct Slots {
    std::vector<bool> taken;
    int32_t take();
    void release(int32_t slot) { taken[static_cast<size_t>(slot)] = false; }
    int32_t count() const noexcept { return static_cast<int32_t>(taken.size()); }
  };
  // What passes a boundary one way: a block for each micro-batch on its way.
  struct Ring {
    std::vector<size_t> offsets;  // of each value in a block
    size_t bytes = 0;             // of a block
    Slots slots;
    Buffer memory = {};
    char* base = nullptr;
  };
  // Rings by number, -1: none.
  struct Chunk {
    int32_t number = 0;  // in the schedule
    bool split = false;
    Slots slots = {};
    int32_t in = -1, out = -1;         // what passes to it, and on from it
    int32_t d_in = -1, d_out = -1;     // their gradients
    std::vector<int32_t> blocks = {};  // rings by block of the tape, behind that of the batch
    std::unique_ptr<Tape> tape = {};
    char* arena = nullptr;
    char* scratch = nullptr;
    size_t arena_bytes = 0;
  };
  struct Step {
    Action action;
    size_t chunk = 0;  // of this rank
    int32_t slot = 0, block = 0;
    std::vector<int32_t> places = {};  // by ring; -1: not touched
    std::vector<size_t> waits = {};    // transfers of what it touches
    bool takes_in = false, accumulates = false;
  };

  const Chunk& chunk_of(const Step& s) const { return chunks_[s.chunk]; }
  // When an operation of a chunk's gradients has run for the last time, and the last gradients that
  // the chunk sends back are on their way.
  Moment last_moment(size_t chunk, int32_t operation) const;
  void make_rings();
  void place_steps();
  void allocate(bool memory);
  using Placed = std::vector<std::pair<Value, char*>>;  // values that lie in rings, and where
  void record(Chunk& chunk, StepState* state);
  void record_forward(Tape& tape, const Chunk& chunk, StepState* state, Placed& placed) const;
  void plan_arena(bool memory);
  parallel::Collective transfer(const Action& action) const;
  int32_t ring_of(const Step& s) const;
  std::vector<OperationRange> runs_of(const Step& s) const;
  void run(const Context& ctx, std::span<const Lane> lanes, size_t step, OperationRange range,
           const Hooks& hooks) const;

  const model::Transformer& model_;
  const ParameterStore& store_;
  const Setup setup_;
  const parallel::pipeline::Schedule& schedule_;
  const Layout& layout_;
  data::BatchLayout batch_layout_;
  std::vector<Chunk> chunks_;  // of this rank, ascending
  std::vector<Ring> rings_;
  std::vector<Step> steps_;
  int32_t blocks_ = 0;
  size_t block_bytes_ = 0;
  Buffer batches_;
  int32_t* batch_ = nullptr;
  const uint64_t* state_rng_ = nullptr;
  Buffer arena_;
  size_t arena_bytes_ = 0, unshared_bytes_ = 0;
  RecomputeChoice recompute_;
};

}  // namespace saturate::train
