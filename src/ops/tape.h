// SPDX-License-Identifier: Apache-2.0
// A step as a list of launches. Model code records operations once, symbolically: nothing runs, no
// memory is taken. backward() appends the gradient's operations. The planner then gives every value
// an offset in one arena, and the list runs as it is (CPU) or captured as a CUDA graph (GPU).
//
// Values are written once (in-place operations make an alias and end the life of what they
// overwrite), so lifetimes are exact and gradients can share storage without copies.
//
// The list is cut into segments (forward, backward). Segments of several micro-batches, each in a
// slot, may run in any order that keeps those of a slot in turn: what lives from one segment to
// another has a copy for each slot (the stash), the rest of the arena is shared (the scratch).
// Operations lie on lanes, which are streams: see tape_plan.cpp for what orders them.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/philox.h"
#include "kernels/gemm/matmul.h"
#include "ops/parameters.h"
#include "ops/tape_plan.h"
#include "parallel/collective.h"
#include "runtime/context.h"
#include "runtime/stream.h"

namespace saturate {

// Handle of a matrix (rows, cols) on a tape; an invalid one means "none".
struct Value {
  int32_t id = -1;
  explicit operator bool() const noexcept { return id >= 0; }
  friend bool operator==(Value, Value) = default;
};
using Renames = std::map<int32_t, Value>;  // by the id that closures hold

// Rows [at, at + rows) of a value are rows first, first + 1, ... of the matrix that ranks share.
struct RowRun {
  int64_t at = 0, rows = 0, first = 0;
};

class Tape;
namespace kernels {
struct FoldList;
}
namespace ops {
struct WeightsInFp8;
}

// What names an operation's random masks: where it stands in the model and what it does there, so
// that neither the order of recording nor recomputation nor a layer's rank changes a mask. Numbers
// enter masks: append, never renumber.
enum class Stack : uint8_t { encoder, decoder };
enum class MaskKind : uint8_t {
  embedding,
  attention,
  activation,
  residual,
  routing,
  adapter_in,  // of what a mixer's first projection is given, the encoder's memory, and its result
  adapter_memory,
  adapter_out
};

// What a recorded operation sees while it runs.
class Run {
 public:
  // Whether results are added to what is there, and where memory lies; see Tape::RunOptions.
  struct Place {
    bool accumulate = false;
    int32_t slot = 0;
    std::span<const int32_t> block_slots = {};
    char* scratch = nullptr;
    bool scales_known = false;
  };
  Run(const Context& context, const Tape& tape, char* arena, const Place& place,
      const Renames* renames = nullptr, kernels::FoldList* fold_list = nullptr)
      : ctx(context),
        folds(fold_list),
        tape_(tape),
        arena_(arena),
        place_(place),
        renames_(renames) {}
  const Context& ctx;
  kernels::FoldList* const folds;            // null: second stages of sums run at once
  void* operator()(Value v) const;           // its memory; null for "none"
  void* at(Value v, int64_t element) const;  // the same from one of its elements on
  template <class T>
  T* as(Value v) const {
    return static_cast<T*>((*this)(v));
  }
  // Memory given to the tape by address, of this run's slot of it (Tape::per_slot); null stays null.
  template <class T>
  T* operator()(T* p) const {
    return static_cast<T*>(const_cast<void*>(of_slot(p)));
  }
  RngRef operator()(RngRef rng) const {
    rng.state = (*this)(rng.state);
    return rng;
  }
  // Whether a parameter gradient is added to what is there: always except for the first
  // contribution of the first micro-step.
  bool adds(bool first_contribution) const noexcept {
    return place_.accumulate || !first_contribution;
  }
  // Whether a step has ended with the scales of fp8 products, so that no operand is looked through for one.
  bool scales_known() const noexcept { return place_.scales_known; }

 private:
  const void* of_slot(const void* p) const;

  const Tape& tape_;
  char* arena_;
  Place place_;
  const Renames* renames_;
};

enum class TapeMode : uint8_t { training, inference };

// What losses beside that of the labels, such as those that balance experts, need of the step: the
// factors that the labels' loss has as well (ops::LossSpec), and where routing is counted.
struct AuxiliaryLosses {
  float grad_scale = 1.0f;
  const float* device_scale = nullptr;  // device memory
  // (layers, kernels::kRoutingBlocks, experts + kernels::kRoutingTotals); null: nothing is counted
  double* routing = nullptr;
};

// Collectives and transfers are operations like others; what they move, among whom and beside what
// is data for those who check lists of ranks against each other and who estimate times.
enum class OperationKind : uint8_t { compute, collective, transfer };
struct OperationTraits {
  OperationKind kind = OperationKind::compute;
  int32_t group = 0;  // of the communicator, for collectives and transfers
  int64_t bytes = 0;  // that cross the link
  int32_t lane = 0;
  std::shared_ptr<const parallel::Collective> collective = {};  // null for compute
  double flops = 0;  // of products; 0 where memory traffic alone counts
};

// Which results of an operation are made again for the backward pass: none, all, or those that
// Tape::again_from() makes.
enum class Recompute : uint8_t { none, whole, from_kept };

// A lane's stream, and a context on it whose workspace no other lane has.
struct Lane {
  const Stream* stream = nullptr;
  Context ctx;
};

class Tape {
 public:
  using RunFn = std::function<void(const Run&)>;
  using BackwardFn = std::function<void(Tape&)>;

  // `rng_state` is StepState::rng in device memory, null when nothing is random.
  Tape(const ParameterStore& parameters, TapeMode mode, const uint64_t* rng_state);
  Tape(const Tape&) = delete;

  // --- values
  Value external(const char* label, DType dtype, int64_t rows, int64_t cols, void* memory);
  Value make(const char* label, DType dtype, int64_t rows, int64_t cols);
  Value alias(const char* label, Value of);  // same memory and shape; `of` must not be read later
  // The copy in the compute dtype, for matrix products. One that is held in 4 bits (ParameterSpec::storage)
  // becomes a value of the arena, which an operation recorded here makes for those that read it next.
  Value parameter(ParameterId id);
  // For gradients: the same of such a parameter's value, so that the first need not live until then;
  // w itself elsewhere.
  Value parameter_again(Value w);
  Value wide_parameter(ParameterId id);  // the fp32 master, for norms and position tables
  // The packed copy of a parameter's value, for lists of inference on a store that packs; null:
  // there is none. Errors: out_of_memory.
  const kernels::PackedWeights* packed(Value v) const;
  // The same of a table whose rows are looked up there as well (ParameterStore::pack).
  const kernels::PackedWeights* packed_table(Value v) const;
  // The compute copy of a parameter as a value of the arena, which an operation writes (a gather of
  // its parts) before others read it.
  Value gathered_parameter(ParameterId id);
  void keep(Value v);  // readable after the run has ended
  // Addresses in [base, base + bytes), given to operations or as external memory, stand for those
  // of slot 0: slot s has its own `stride` * s bytes further. Batches and random state are such.
  // Returns the block's number, by which a run may give it a slot of its own.
  int32_t per_slot(const void* base, size_t bytes, size_t stride);
  // The memory at `memory` instead of the arena's for a value that make() made, once all operations
  // are recorded and before plan(). What goes to other ranks lies so.
  void put_at(Value v, void* memory);

  struct Info {
    const char* label;
    DType dtype;
    int64_t rows, cols;
    bool external = false;  // memory given by the caller (null while only planning)
    void* memory = nullptr;
    int32_t root = -1;       // for an alias: the value that owns the storage
    int32_t parameter = -1;  // index in the store
    bool kept = false;       // alive after the run
    size_t offset = 0;       // of an alias: bytes from where its root's memory begins
    size_t bytes() const { return static_cast<size_t>(rows * cols) * size_of(dtype); }
  };
  const Info& info(Value v) const { return values_[static_cast<size_t>(v.id)]; }
  int32_t storage_of(Value v) const;  // id of the value that owns the memory
  int32_t values() const noexcept { return static_cast<int32_t>(values_.size()); }

  // --- operations
  struct Shortcut {  // see again_from()
    Value kept;
    std::vector<Value> reads;
    RunFn run;
  };
  // A product that may be multiplied in one launch with others (kernels/gemm/wgmma/matmul_group.h).
  struct GroupMember {
    kernels::MatmulArgs sizes;
    std::function<kernels::MatmulArgs(const Run&)> args;
    Value gradient = {};  // the left operand, where that is all of a value
  };
  // A bias gradient, the sum of the rows of `of`, that a group's product of the same gradient may make
  // beside its own: where it goes, and whether it is added to what is there.
  struct RowSum {
    Value of;
    std::function<std::pair<float*, bool>(const Run&)> out;
  };
  struct Operation {
    const char* name;
    std::vector<Value> reads, writes;
    RunFn run;
    BackwardFn backward;
    OperationTraits traits;
    int32_t segment = 0;
    int32_t region = -1;  // that it lies in, or whose gradients it computes
    bool deferrable = false;
    bool paced = false;  // its reads say when it may start, not what it needs
    std::shared_ptr<const Renames> renames = {};
    std::shared_ptr<const Shortcut> shortcut = {};
    Recompute recompute = Recompute::none;
    std::shared_ptr<const GroupMember> member = {};
    std::shared_ptr<const RowSum> row_sum = {};
    Value stage = {};  // see may_fold_later()
    std::vector<Value> folded = {};
    std::shared_ptr<kernels::FoldList> folds = {};
  };
  // reads and writes must name every value `run` touches ("none" is ignored). `backward` is called
  // by backward() when a value in `writes` has a gradient; it records the gradient's operations.
  void record(const char* op, std::vector<Value> reads, std::vector<Value> writes, RunFn run,
              BackwardFn backward = {}, OperationTraits traits = {});
  // An operation whose results are parameter gradients and scratch, so that nothing in the backward
  // pass waits for it: backward() may move it towards the end.
  void record_parameter_gradient(const char* op, std::vector<Value> reads,
                                 std::vector<Value> writes, RunFn run, OperationTraits traits = {});
  // For an operation recorded before, outside of any region: what it touches as well.
  void extend(int32_t operation, Value read, std::initializer_list<Value> writes);
  // For the operation recorded last, one of record_parameter_gradient() that is this product.
  void may_be_grouped(GroupMember member);
  void may_be_grouped(RowSum sum);
  // For the operation recorded last: its results `folded` are the second stage of sums whose first is
  // its result `stage`. It leaves that to Run::folds, where there is one.
  void may_fold_later(Value stage, std::vector<Value> folded);
  // Operations recorded from here on belong to a segment of this name, the next after those there
  // are. The first is "forward"; backward() begins "backward".
  void segment(const char* name);
  // Operations recorded between these two are a region: those of them that recompute() names run
  // again before the region's gradients do, into other storage, so that their results need not live
  // on. They are bitwise the same: the same launches on the same values.
  void begin_region();
  void end_region();
  bool in_region() const noexcept { return region_ >= 0; }
  // For the operation recorded last, which lies in a region: `kept`, one of its results, is enough
  // to make the others again from these reads.
  void again_from(Value kept, std::vector<Value> reads, RunFn run);
  // Before backward(). An operation that works in place runs again with those that wrote its memory
  // before it, or not at all; whoever reads what is then overwritten runs again as well.
  void recompute(int32_t operation, Recompute how);
  const std::vector<OperationRange>& regions() const noexcept { return regions_; }
  // Operations recorded from here on belong to this mixer (attention, feed-forward, ...) of a
  // layer.
  void layer(Stack stack, int64_t layer, int64_t mixer);
  // Row 0 of the values recorded from here on is row `first` of a matrix of `whole` rows, which other
  // ranks compute the rest of: random() numbers masks by it. Before it is set, values are whole.
  void set_rows(int64_t first, int64_t whole) noexcept { first_row_ = first, whole_rows_ = whole; }
  // The rows of the matrix are cut into so many chunks, an even number, of which rank i of chunks / 2
  // has the chunks i and chunks - 1 - i, one behind the other: first_row() then counts rows in the
  // order of ranks. 0: rank after rank has a run of rows.
  void set_chunks(int64_t chunks) noexcept { chunks_ = chunks; }
  int64_t chunks() const noexcept { return chunks_; }
  // Where the rows [first, first + rows) in the order of ranks lie in the matrix.
  std::vector<RowRun> row_runs(int64_t first, int64_t rows) const;
  // The same of a value recorded now.
  std::vector<RowRun> row_runs(int64_t rows) const { return row_runs(first_row_, rows); }
  int64_t first_row() const noexcept { return first_row_; }
  int64_t whole_rows() const noexcept { return whole_rows_; }  // 0: not set
  // Random numbers of the one operation of this kind there, from the first row of the first of
  // row_runs() on. Errors: invalid_argument when another
  // operation has them, or the model has more layers (4096) or mixers (32) than sites.
  RngRef random(MaskKind kind);
  // Set before the layers are recorded whose losses it is for.
  void set_auxiliary(const AuxiliaryLosses& losses) noexcept { auxiliary_ = losses; }
  const AuxiliaryLosses& auxiliary() const noexcept { return auxiliary_; }
  // Of ops/fp8_product.h, which sets it; null where nobody has.
  std::shared_ptr<ops::WeightsInFp8> weights_in_fp8;
  bool training() const noexcept { return mode_ == TapeMode::training; }
  DType compute_type() const noexcept { return parameters_.compute_type(); }
  DType wide_type() const noexcept { return parameters_.wide_type(); }
  // Bytes of workspace that every context it runs with has: what kernels are chosen for. 32 MiB on a
  // GPU unless set before the first operation is recorded.
  void set_workspace_bytes(size_t bytes) noexcept { workspace_bytes_ = bytes; }
  size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  Device device() const noexcept { return parameters_.device(); }
  const ParameterStore& parameters() const noexcept { return parameters_; }
  size_t operations() const noexcept { return operations_.size(); }
  const Operation& operation(size_t i) const { return operations_[i]; }

  // --- gradients
  // Gradient of v so far, or none. An operation that contributes makes a new value that includes
  // what was there and sets it.
  Value gradient(Value v) const;
  void set_gradient(Value v, Value g);
  // Adds g to v's gradient with an operation of its own; for operations that cannot add by
  // themselves.
  void add_gradient(Value v, Value g);
  // The gradient of v summed over its rows is all of `bias`'s part in it: whoever makes the whole
  // gradient may sum its columns on the way and say so. Said by what records v.
  void sums_to_bias(Value v, Value bias);
  // That bias, where one is to be had; none also where ranks share gradients (ZeRO 2 and 3), which need
  // those of a unit together.
  Value bias_of(Value v) const;
  // The gradient `g` of v is set and holds all that v gets, and bias_of(v) has its sums.
  void set_summed_gradient(Value v, Value g);
  // Whether that was said of v. What else adds to its gradient afterwards is a mistake.
  bool bias_is_summed(Value v) const;
  // Memory of a parameter's gradient, in wide_type; *first tells whether this is its first
  // contribution. Of a frozen parameter: memory of the arena that nothing reads.
  Value parameter_gradient(Value parameter, bool* first);
  // Before anything with its gradient is recorded: no contribution of this tape is the first.
  // Another tape or the caller's zeros come before it.
  void add_to_gradient(ParameterId id) { added_to_.insert(id.index); }
  // Records the gradients of everything recorded so far, last to first; operations that serve
  // frozen parameters alone are left out, and with them the backward pass below the lowest
  // parameter that trains. Then the last operations of record_parameter_gradient move behind the
  // gradient that is finished last (of the embedding table, as a rule), until they hold a quarter
  // of its elements: its reduction over the ranks has no other work to hide behind; with transfers
  // on other lanes none does where it has no such reduction. Results do not change, not even in
  // their last bit. With `split` all of these operations that can follow the others make a segment
  // of their own, "weight_gradients", which other work may come before.
  void backward(bool split = false);

  // After backward(): weight gradients that may be grouped wait for others until their units fill
  // rounds of `places`, and are one operation, "linear_weight_gradient_group"; none passes an
  // operation that writes what it reads or touches what it writes. On the CPU the operations of a
  // group run one after the other. backward() does so itself where that pays: on Hopper, where no
  // rank waits for the gradients.
  void group_weight_gradients(int64_t places);

  // After backward(): one operation behind the last, "bias_gradient_folds", runs the second stages that
  // operations leave to it: on a GPU their launches take longer than their work. Those whose results
  // others read or write stay. backward() does so itself where group_weight_gradients() is called.
  void fold_at_the_end();

  // Parameters in the order in which backward finishes their gradients, and after which operation.
  struct FinishedGradient {
    int32_t parameter;
    int32_t operation;
  };
  std::vector<FinishedGradient> finished_gradients() const;

  // After which operation this rank's share of a unit's gradients (a bucket of a group) holds what
  // this run adds to it. Of gradients that ranks share; after plan().
  struct ReducedUnit {
    int32_t group;
    size_t bucket;
    int32_t operation;
  };
  std::vector<ReducedUnit> reduced_units() const;

  // --- planning and running
  // Gives every value its place; returns the arena's size in bytes for so many slots. Operations of
  // lanes other than 0 move to where they may start, which changes operations' numbers. A gather
  // that is to start no earlier than others end, so that its memory may be theirs, names one of
  // their results among its reads. Nothing may be recorded afterwards.
  size_t plan(int32_t slots = 1);
  const TapePlan& layout() const noexcept { return plan_; }
  // Operations of a segment; all of them without a name. Errors: invalid_argument (no such name).
  OperationRange range(const char* segment = nullptr) const;
  struct RunOptions {
    OperationRange range;  // whole segments
    int32_t slot = 0;
    bool accumulate = false;
    std::span<const int32_t> block_slots = {};  // by per_slot()'s number; none: all take `slot`
    char* scratch = nullptr;                    // null: behind the slots' stashes
    bool scales_known = false;                  // Run::scales_known()
    // Lanes 0, 1, ...: `ctx` is lane 0's. Empty: all operations run on `ctx`, in order.
    std::span<const Lane> lanes = {};
    std::function<void(int32_t)> after = {};
  };
  // Enqueues the range's operations in order. `after` (may be empty) is called after each operation
  // with its index: where gradient buckets start their way to the other ranks. Lanes start behind
  // what lane 0 holds, and lane 0 goes on when all have finished. Never synchronises.
  void run(const Context& ctx, void* arena, const RunOptions& options) const;
  void run(const Context& ctx, void* arena, bool accumulate,
           const std::function<void(int32_t)>& after = {}) const {
    run(ctx, arena, {.range = range(), .accumulate = accumulate, .after = after});
  }
  // Sum of all values' sizes: what memory would be without sharing (for the guide and `--verbose`).
  size_t unshared_bytes() const;

 private:
  friend class Run;
  Info& at(Value v) { return values_[static_cast<size_t>(v.id)]; }
  Value add(Info info);
  Value renamed(Value v) const;
  void run_again(OperationRange region, Value pace);
  bool recomputes() const;
  Value part(const char* label, Value of, int64_t rows, int64_t cols, int64_t element);
  Value dequantized(ParameterId id);
  Value gathered(ParameterId id);
  Value unit_gradient(int32_t parameter);
  void record_reductions();
  void leave_out_unread();
  // Whether a parameter's gradient is added up with other ranks'.
  bool is_summed(Value gradient) const;
  void defer_parameter_gradients(bool all);
  void hoist_lanes();
  void reorder(const std::vector<int32_t>& order);

  const ParameterStore& parameters_;
  TapeMode mode_;
  size_t workspace_bytes_;
  const uint64_t* rng_state_;
  AuxiliaryLosses auxiliary_;
  uint32_t site_ = 0;         // of the layer and mixer recorded now
  std::set<uint32_t> sites_;  // that operations have
  int64_t first_row_ = 0, whole_rows_ = 0, chunks_ = 0;
  std::vector<Info> values_;
  std::vector<Operation> operations_;
  std::vector<const char*> segments_{"forward"};
  std::vector<OperationRange> regions_;
  int32_t region_ = -1;
  std::shared_ptr<Renames> renames_;  // while gradients of a region that runs again are recorded
  struct SlotBlock {
    const char* base;
    size_t bytes, stride;
  };
  std::vector<SlotBlock> slot_blocks_;
  std::vector<Value> gradients_;  // by value id
  std::map<int32_t, Value> biases_,
      summed_;                       // of sums_to_bias() and set_summed_gradient(), by value
  struct GatheredUnit {              // the last gather of a bucket of parameters
    std::map<int32_t, Value> parts;  // by parameter
    int32_t region, number;
  };
  std::map<std::pair<int32_t, size_t>, GatheredUnit> gathered_;  // by group and bucket
  int32_t gathers_ = 0;
  Value before_gather_;  // written before the unit of the last gather began
  struct UnitGradient {
    Value whole;
    int32_t group;
    size_t bucket;
  };
  std::vector<UnitGradient> unit_gradients_;
  std::vector<Value> parameter_values_, wide_parameter_values_,
      parameter_gradients_;                 // by parameter
  std::vector<int32_t> last_contribution_;  // operation index, by parameter
  std::set<int32_t> added_to_;              // parameters, see add_to_gradient()
  bool planned_ = false;
  TapePlan plan_;
  mutable std::vector<Event> events_;  // by operation that another lane waits for, then fork, joins
};

}  // namespace saturate
