// SPDX-License-Identifier: Apache-2.0
// One interface for NCCL (GPUs), MPI (CPUs) and a single process.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>

#include "base/dtype.h"
#include "parallel/control_channel.h"
#include "parallel/launch.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace saturate::parallel {

// Collectives on device data run beside the computation: begin_* is ordered after all work enqueued
// on `compute` so far, and work enqueued after wait() sees the result. On CUDA both only enqueue
// (events and a communication stream), so they can be captured in a graph; on the CPU a worker
// thread runs them. All ranks must make the same calls in the same order, each from one thread. A
// begin_* inside a stream capture has its wait() inside the same capture; graphs that hold
// collectives are destroyed before the communicator.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const char* name() const noexcept = 0;  // "nccl", "mpi", "tcp", "single"

  // data[i] = sum over ranks, in place; dtype f32 or f64, device memory. Bitwise repeatable for a
  // given number of ranks. Errors: collective (thrown here or by wait()).
  virtual void begin_all_reduce(void* data, int64_t count, DType dtype, const Stream& compute) = 0;
  virtual void wait(const Stream& compute) = 0;

  // Host-side, blocking; small data only.
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  virtual void barrier() = 0;
  virtual double all_reduce_sum(double value) = 0;
  virtual double all_reduce_max(double value) = 0;

  // The step that failure reports name. Any thread, any time.
  virtual void set_step(int64_t step) noexcept = 0;

  // Call it in the outermost catch, while the communicator lives. With several ranks all of them
  // print one line "rank 3 failed at step 120: cause" and end with exit code 1 within 10 seconds,
  // also those stuck inside a collective, and this call does not return. A rank that dies without a
  // word (kill -9) is reported the same way by the others. With one rank it does nothing. The
  // destructor is collective; run by a passing exception it reports a failure instead.
  virtual void report_failure(const std::exception& cause) = 0;
};

// The communicator of this process: none for one rank; NCCL for CUDA devices; MPI for the CPU under
// mpirun (or srun with PMI), else TCP through rank 0, which is fit for tests and small models only.
//
// Order   results are bitwise repeatable for a given number of ranks: TCP adds in the order of
//         ranks; Open MPI chooses its algorithm by size and count alone; NCCL by topology and size
//         (NCCL_ALGO and NCCL_PROTO pin it across machines; NCCL_NVLS_ENABLE and the like are left
//         to the user).
// Errors  unsupported (this build lacks NCCL or MPI; says what to do), io or invalid_argument (see
// meet()).
std::unique_ptr<Communicator> make_communicator(Device device, const LaunchInfo& launch,
                                                ControlOptions options = {});

}  // namespace saturate::parallel
