// SPDX-License-Identifier: Apache-2.0
// One interface for NCCL (GPUs), MPI (CPUs) and a single process.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/stream.h"

namespace saturate::parallel {

// Collectives on device data run beside the computation: begin_* is ordered after all work enqueued on
// `compute` so far, and work enqueued after wait() sees the result. On CUDA both only enqueue (events and
// a communication stream), so they can be captured in a graph; on the CPU a worker thread runs them.
// All ranks must make the same calls in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const char* name() const noexcept = 0;  // "nccl", "mpi", "single"

  // data[i] = sum over ranks, in place; dtype f32 or f64, device memory. Bitwise repeatable for a given
  // number of ranks. Errors: collective (thrown here or by wait()).
  virtual void begin_all_reduce(void* data, int64_t count, DType dtype, const Stream& compute) = 0;
  virtual void wait(const Stream& compute) = 0;

  // Host-side, blocking; small data only.
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  virtual void barrier() = 0;
  virtual double all_reduce_sum(double value) = 0;
  virtual double all_reduce_max(double value) = 0;
};

}  // namespace saturate::parallel
