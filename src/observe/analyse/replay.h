// SPDX-License-Identifier: Apache-2.0
// A capture run again as a graph of dependencies, as it was or with a change applied: what a fix
// can bring at most. Edges: a host call follows the one before it after the host's own time; an
// operation follows its call by the launch latency, and the one before it on its stream; it waits
// for another stream, and a synchronisation for an operation, where the capture shows that it did.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "observe/analyse/host_timeline.h"
#include "observe/analyse/leaf.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

struct ReplayOp {
  uint32_t stream = 0, name = 0, device = 0;
  int64_t bytes = 0;          // of a copy
  bool moves_within = false;  // a copy within the device, which a kernel beside it could make
  int64_t blocks = 0;         // of a kernel's grid
  bool graph = false;         // a whole graph, launched at once, whose kernels do not show
  bool pageable = false;
  bool has_room = false;  // twice its blocks still have a multiprocessor each
  Leaf leaf = Leaf::other_kernel;
  // By their names, however short. Memory-bound, not of an optimizer on many tensors; of these each
  // element by itself; and of these what only changes the order of memory.
  bool memory_kernel = false, pointwise = false, layout = false;
  bool optimizes = false;  // updates weights, by its name
  bool product = false;    // a matrix product, convolution or attention, however short
  bool tf32 = false;       // on tensor cores, with inputs of fp32
  // By their names: attention with inputs of fp32, products of 16 bits and of whole numbers, and
  // what writes into a part of a buffer.
  bool float32_attention = false, half_product = false, integer_product = false,
       updates_part = false;
  bool backward = false;        // of a backward pass, by its name
  bool recomputed = false;      // of the forward pass, in the backward pass: find_recomputed()
  bool rounding = false;        // of fp32 to 16 bits, by its name
  bool shows_elements = false;  // its blocks say how many elements it works on
  // A rounding directly before a product, in a program that trains nothing; and one of weights, as
  // its number of elements shows: find_weight_casts().
  bool of_operand = false, of_weight = false;
  bool of_scattered = false;  // a copy of weights into one block: find_scattered_weights()
  bool of_update = false;     // a large copy within the device, of what a part of is written then
  // A kernel that only copies, by its name; one that puts several into one; and the next one on its stream, where that takes no
  // longer than the copies before it: find_readers_of_copies().
  bool copies = false, joins = false, reads_copies = false;
  // A softmax, by its name; what lies with one between two products that are an attention's, and its
  // products: find_written_attention().
  bool softmax = false, beside_attention = false, of_weights = false, of_attention = false;
  bool doubles = false;      // computes in float64, by its name
  bool double_code = false;  // and by nothing but its code
  bool may_double = false;   // a graph, which does not show it: find_types_before()
  bool may_single = false;   // the same of products of fp32 without tensor cores
  bool may_tf32 = false;     // and with them
  bool loops = false;        // repeats the same few short operations once more: find_loops()
  bool repeats = false;      // begins a run of operations on elements anew: find_repeats()
  bool detour = false;       // a Fourier transform of an awkward length, by its name
  bool sorts = false;        // of a sort, by its name
  bool slow = false;         // a kernel that others leave behind, by its name; or is_serial()
  bool gathers = false;      // picks rows by indices, by its name
  bool recurrent = false;    // of a recurrent layer of cuDNN's, by its name
  bool later_part = false;   // of the second or a later micro-batch of a step: find_micro_batches()
  bool reads_mask = false;   // of an attention that can read a mask of numbers, and may
  bool for_read = false;     // brings forth the value that the host reads next, as it seems
  int64_t duration_ns = 0;
  int64_t measured_start_ns = 0;
  int64_t extra_ns = 0;       // waits that nothing in the capture explains
  uint32_t after = kNone;     // an operation of another stream that it waited for
  double after_part = 1;      // of whose time, where it found room beside that
  bool back_to_back = false;  // starts as soon as a graph lets it after the one before: of an edit
  bool from_call_start = false;  // its call waited for it
  int64_t offset_ns = 0;         // then: from the start of the call to its own
};

enum class ReplayCall : uint8_t { launch, copy, sync, blocking_copy, allocate, load, other };

// One call of the host and the host's own time before it.
struct ReplayEvent {
  ReplayCall kind = ReplayCall::other;
  uint32_t process = 0;   // an index: each process has its own time line
  int64_t host_ns = 0;    // its own code
  int64_t loader_ns = 0;  // waiting for data
  // When the data came, that others prepare at their own pace: no earlier, however fast the rest
  // is. Relative to the first call; -1: the wait is work of this thread, or there was none.
  int64_t arrival_ns = -1;
  int64_t no_core_ns = 0;  // ready, but not on a core
  int64_t blocked_ns = 0;  // other waits
  int64_t call_ns = 0;     // without waiting for the device
  // The least that the same call after the same one took, of eight or more (their tenth part is
  // faster): the pace of a host whose cores, locks and memory nobody else wants. Else its own.
  int64_t least_host_ns = INT64_MAX, least_call_ns = INT64_MAX;
  bool feeds_host = false;    // brings data (64 KiB and more) to long host work that follows
  bool prepares = false;      // makes data, or copies what was made: see find_preparations()
  bool compiles = false;      // the host makes code, as its stacks show
  bool tries = false;         // and what it issues is tried while it does
  bool pins = false;          // takes or gives back pinned host memory
  bool with_release = false;  // a wait beside allocations, with nothing issued between
  uint32_t waits_for = kNone;
  int64_t return_ns = 0;           // of a copy that waits: from the end of the device's part
  uint32_t first_op = 0, ops = 0;  // what it issued
};

struct ReplayTimes {
  double step_ns = 0;  // mean over the steps of the window but the first
  int64_t total_ns = 0;
};

struct DispatchScale {
  double factor = 1;
  bool assumed = false;  // hidden, so the step does not show it
};

class Replay {
 public:
  // Up to `max_ops` operations of whole steps out of the middle of [from_ns, to_ns); `begins` are
  // the starts of steps on `device`, or empty. The trace must be sorted.
  Replay(const Trace& trace, const HostTimeline& host, uint32_t device,
         const std::vector<int64_t>& begins, int64_t from_ns, int64_t to_ns,
         int64_t max_ops = 200'000);

  // A change: rewrites events and operations in place before the run. Sees them in order of the
  // host, each event with the operations it issued.
  using Edit = std::function<void(ReplayEvent&, ReplayOp*)>;
  ReplayTimes run(const Edit& edit = {}) const;

  // Takes the cost of recording out of the calls: the same time off each, as much as makes the
  // unchanged run faster by `slowdown`, but at most 5 us; where the calls are not what the step
  // waits for, out of the gaps between kernels. What the program does when it is not recorded is
  // then the unchanged run. Returns    by how much it became faster: less than `slowdown` where
  // recording cannot have cost so much. Cost       some 30 runs.
  double remove_cost(double slowdown);

  bool usable() const { return measured_.step_ns > 0; }
  const ReplayTimes& measured() const { return measured_; }
  // |replayed - measured| / measured of the unchanged run, and the share of the time that is waits
  // which nothing explains.
  double error() const { return error_; }
  double unexplained() const { return unexplained_; }
  // Values that are copied to the host, a kernel.
  double reads_per_kernel() const { return reads_per_kernel_; }
  // Whether anything was computed: a program that gets ready only allocates and copies.
  bool computes() const;
  // What a step takes that has none of `part`, where a fifth of the steps and eight or more hardly
  // have any and compute as much as the others, or update the weights as they do: measured, not
  // replayed. 0 where there are fewer. One part lengthens its own step or the one before, whose end
  // waits for it: so twice as many of the longest are left out.
  struct WithoutPart {
    double step_ns = 0;
    double more_ns = 0;  // of a mean step: computed beyond that, by kernels that those have as well
  };
  WithoutPart step_without(const std::function<int64_t(const ReplayEvent&)>& part) const;
  // Micro-batches of a step whose gradients are added up before the weights change; 1 where there are none.
  int64_t micro_batches() const { return micro_batches_; }
  // Of the kernels of all but their first, the share that is marked: steps that were recorded in part are not.
  double later_part_found() const { return later_part_found_; }
  int64_t steps() const { return static_cast<int64_t>(marks_.size()) - 1; }
  // Of a step: stretches of kernels of the forward pass that run again between kernels of the
  // backward pass, two or more; 0 where no stack shows that layers run again.
  double recomputed_stretches() const { return recomputed_stretches_; }
  // Shrinks dispatch and the calls that issue work or allocate, which recording lengthens, until
  // the unchanged run takes `step_ns` a step. Returns    the factor; 1 when it does not take longer
  // anyway, or when they are not what makes it longer. Where they are hidden (behind a loader, say)
  // the step does not show what recording costs them: then `hidden` is the factor, what the most
  // that such a recording was seen to cost leaves of them, for predictions are ceilings. Errors
  // Error{invalid_argument} when the step would take over a quarter longer without any of them.
  DispatchScale scale_dispatch(double step_ns, double hidden = 1);

  // Time a step of the operations that `of` gives a duration for, one after the other; of the
  // device where it is longest.
  double serial_ns(const std::function<int64_t(const ReplayOp&)>& of) const;
  bool whole_steps() const { return whole_steps_; }

  // Each event with what it issued, in order of the host; `step` counts the steps by the first
  // operation of each.
  void visit(
      const std::function<void(const ReplayEvent&, const ReplayOp*, int64_t step)>& see) const;

 private:
  void build(const Trace& trace, const HostTimeline& host, uint32_t device, size_t first_op,
             size_t end_op);
  void measure_latencies();
  void find_waits();
  void find_room(uint32_t i, int64_t expected_ns,
                 const std::vector<std::vector<uint32_t>>& by_start);
  double unexplained_share() const;
  void find_least(const std::vector<uint64_t>& keys);
  void find_feeds();
  void find_releases();
  void find_preparations();
  void find_reads();
  void find_recomputed();
  void find_weight_casts();
  void find_copies_of_updates();
  void find_scattered_weights(const Trace& trace);
  void find_readers_of_copies();
  void find_written_attention();
  void find_repeats();
  void find_loops();
  void find_micro_batches();
  void find_types_before(const Trace& trace, size_t first_op);
  size_t first_counted() const { return marks_.size() > 3 ? 1 : 0; }  // of the marks
  ReplayTimes times_of(const std::vector<int64_t>& starts) const;
  bool begins_beside_work() const;
  double busiest_stream_ns(const std::vector<int64_t>& starts,
                           const std::vector<int64_t>& ends) const;

  std::vector<ReplayEvent> events_;
  std::vector<ReplayOp> ops_;                         // by event
  std::vector<int64_t> call_start_ns_, call_end_ns_;  // measured, by event
  std::vector<uint32_t> event_of_;                    // by operation
  std::vector<uint32_t> marks_;                       // operations that begin steps
  std::vector<int64_t> stream_free_ns_;               // when the window begins
  uint32_t streams_ = 0;
  std::vector<int64_t> process_start_ns_;  // the first call of each process
  int64_t latency_ns_ = 0, gap_ns_ = 0, sync_return_ns_ = 0;
  ReplayTimes measured_;
  double error_ = 1, unexplained_ = 0, reads_per_kernel_ = 0, recomputed_stretches_ = 0;
  int64_t micro_batches_ = 1;
  double later_part_found_ = 1;
  bool whole_steps_ = false;
};

}  // namespace saturate::observe
