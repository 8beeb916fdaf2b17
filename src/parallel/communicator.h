// SPDX-License-Identifier: Apache-2.0
// One interface for NCCL (GPUs), MPI and Gloo (CPUs), ranks in one process, and a single rank.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "parallel/collective.h"
#include "parallel/control_channel.h"
#include "parallel/launch.h"
#include "runtime/context.h"

namespace saturate::parallel {

// A started collective; of none (nothing to wait for) when false.
struct Ticket {
  int64_t number = 0;
  explicit operator bool() const noexcept { return number != 0; }
};

// Collectives on device data run beside the computation: start() is ordered after all work enqueued
// on `compute` so far, and work enqueued after wait() sees the result. On CUDA both only enqueue
// (events and a communication stream), so they can be captured in a graph; on the CPU a worker
// thread runs them. A rank's collectives run in the order of their starts, which must be one for all
// ranks of a group, each from one thread (mismatch_of() and require_matching() say whether it is). A
// start() in a stream capture has its wait() in the same capture, and its like has run before outside
// (NCCL connects at first use); graphs with collectives are destroyed before the communicator.
class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return world_.size(); }
  virtual const char* name() const noexcept = 0;  // "nccl", "mpi", "gloo", "lockstep", "single"

  const Group& world() const noexcept { return world_; }
  // Collective over all ranks, outside captures: every rank names the group it is in, so that the
  // lists are a partition of the ranks (such as Mesh::group's). Connected when it returns.
  // Errors: invalid_argument (ranks not ascending, not here, or without this one), collective.
  Group make_group(std::vector<int> ranks);

  // Starts `c` on device memory; see CollectiveKind for input and output. Moves take any type; sums are plain sums, never averages, of f32,
  // f64 and i32 in their type, of bf16 and f16 with an f32 addition and one rounding to the type
  // for each two ranks that are joined. Bitwise repeatable for given ranks.
  // Errors: invalid_argument (counts, root, a group without this rank, the wrong device);
  // collective, here or in wait().
  Ticket start(const Collective& c, const void* input, void* output, const Context& compute);
  // Waits for `ticket` and what was started before it; an empty ticket needs no wait.
  virtual void wait(Ticket ticket, const Context& compute) = 0;

  // Host-side, blocking; small data only. Sums are made in the order of ranks.
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  virtual double all_reduce_sum(double value) = 0;
  virtual double all_reduce_max(double value) = 0;
  void barrier() { all_reduce_sum(0); }

  // The step and what this rank does in it ("training"; the text lives for ever), which failure
  // reports name. Any thread, any time.
  virtual void set_step(int64_t step) noexcept = 0;
  virtual void set_action(const char* action, Pace pace) noexcept = 0;

  // Call it in the outermost catch, while the communicator lives. With several processes all of
  // them print one line "rank 3 failed at step 120 while training, in <collective>: cause" and end
  // with exit_code_of(cause) within 10 seconds, also those stuck inside a collective, and this call
  // does not return. A rank that dies without a word (kill -9) or stops (SIGSTOP) is reported the
  // same way by the others. With one process it does nothing. The destructor is collective; run by a
  // passing exception it reports a failure instead.
  virtual void report_failure(const std::exception& cause) = 0;

 protected:
  Communicator(Device device, int rank, int size);
  // Arguments have been checked, and there is something to do.
  virtual Ticket run(const Collective& c, const void* input, void* output,
                     const Context& compute) = 0;
  virtual void connect(const Group& group) = 0;

  const Device device_;

 private:
  const int rank_;
  Group world_;
  int32_t groups_ = 0;  // made so far
};

// The collectives of the host over a control channel, and the failures it carries.
class ChannelCommunicator : public Communicator {
 public:
  ~ChannelCommunicator() override = default;
  void broadcast(void* data, int64_t bytes, int root) override;
  double all_reduce_sum(double value) override;
  double all_reduce_max(double value) override;
  void set_step(int64_t step) noexcept override;
  void set_action(const char* action, Pace pace) noexcept override;
  void report_failure(const std::exception& cause) override;

 protected:
  ChannelCommunicator(Device device, int rank, int size);
  // Whether the destructor runs because an exception passes; after reporting it.
  bool unwinding();

  std::unique_ptr<ControlChannel> channel_;

 private:
  const int exceptions_at_start_;
};

// The communicator of this process: none for one rank; NCCL for CUDA devices; for the CPU MPI under
// mpirun (or srun with PMI), else Gloo.
//
// Order   results are bitwise repeatable for a given number of ranks: Gloo's sums are made in the
//         order of ranks; Open MPI chooses its algorithm by size and count alone; NCCL by topology
//         and size (NCCL_ALGO and NCCL_PROTO pin it across machines; NCCL_NVLS_ENABLE and the like
//         are left to the user).
// Environment  SATURATE_HEARTBEAT: seconds without a sign of life after which a rank counts as lost
//         (ControlOptions::heartbeat_s), for ranks that are stopped on purpose.
// Errors  unsupported (this build lacks NCCL, MPI or Gloo; says what to do), io or invalid_argument
//         (see meet()).
std::unique_ptr<Communicator> make_communicator(Device device, const LaunchInfo& launch,
                                                ControlOptions options = {});

// Collective: returns when the lists of what the ranks are about to start fit together, else throws
// the same on all. Lists that are equal and over all ranks cost one small reduction; others travel
// to every rank. Errors: invalid_argument with the text of mismatch_of().
void require_matching(Communicator& ranks, const std::vector<Collective>& mine);

}  // namespace saturate::parallel
